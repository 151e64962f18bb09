"""What is slow as a whole is not even imported where slow tests are left out: its frameworks take seconds to import."""

from __future__ import annotations

from pathlib import Path

import pytest

SLOW = ("test_accelerate.py", "test_huggingface.py", "test_lightning.py")
"""Files that mark all of their tests ``slow``."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path.name in SLOW and config.option.markexpr == "not slow" else None
