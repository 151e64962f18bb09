"""Every kind of kernels this processor can run, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from selfish_rnn.engine import library

TARGETS = library.targets() if library.available() else ()


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    before = library.target()
    library.use_target(request.param)
    yield request.param
    library.use_target(before)
