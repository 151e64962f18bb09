"""Every kind of kernels this processor can run, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from selfish_rnn.engine import native

TARGETS = native.targets() if native.available() else ()


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.target()
    native.use_target(request.param)
    yield request.param
    native.use_target(before)
