"""What is slow as a whole is not even imported where slow tests are left out: its frameworks take seconds to import."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SLOW_AS_A_WHOLE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return True if SLOW_AS_A_WHOLE.search(collection_path.read_text()) else None
