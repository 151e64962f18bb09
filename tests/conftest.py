"""For every test, and the processes it starts: one thread, and a cache of its own instead of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from selfish_rnn.topology import ALLOCATIONS, GROWTHS, METHODS, POOLS, REDISTRIBUTIONS, REMOVALS, SCHEDULES
from tiny_runs import write_corpus

# Without deadlines, because the machine may be busy, and with the same examples in every run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFISH_RNN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus folder of a few hundred words; do not change its files."""
    return write_corpus(tmp_path_factory.mktemp("corpora") / "texts")


@pytest.fixture
def tables_as_before() -> Iterator[None]:
    """What a test registers is taken out again."""
    tables: list[dict[str, Any]] = [ALLOCATIONS, GROWTHS, METHODS, POOLS, REDISTRIBUTIONS, REMOVALS, SCHEDULES]
    before = [table.copy() for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
