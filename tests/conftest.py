"""For every test, and the processes it starts: one thread, and a cache of its own instead of the user's.

The process that hands out the tests of ``-n 2`` reads this file, too, and has no use for torch: what takes long to
import is imported where it is needed.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis without deadlines, because the machine may be busy, and with the same examples in every run.

    Where slow tests are left out, a test that does not say how many examples it wants has 40 of them instead of 100.
    """
    if config.getoption("numprocesses", 0) and not hasattr(config, "workerinput"):
        return
    from hypothesis import settings

    examples = 40 if config.option.markexpr == "not slow" else 100
    settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=examples)
    settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import torch

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFISH_RNN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        # No power cut threatens a file of a test: none waits for the disk. tests/runs/test_power_cut.py looks at the
        # calls of a real process.
        patch.setattr(os, "fsync", os.fstat)
        torch.set_num_threads(1)
        gc.freeze()  # modules and collected tests live to the end: a collection need not look at them
        yield


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus folder of a few hundred words; do not change its files."""
    from tiny_runs import write_corpus

    return write_corpus(tmp_path_factory.mktemp("corpora") / "texts")


@pytest.fixture
def tables_as_before() -> Iterator[None]:
    """What a test registers is taken out again."""
    from selfish_rnn.topology import ALLOCATIONS, GROWTHS, METHODS, POOLS, REDISTRIBUTIONS, REMOVALS, SCHEDULES

    tables: list[dict[str, Any]] = [ALLOCATIONS, GROWTHS, METHODS, POOLS, REDISTRIBUTIONS, REMOVALS, SCHEDULES]
    before = [table.copy() for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
