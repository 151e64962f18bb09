"""Writing what people asked for, with one clear line where that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selfish_rnn.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of ``path``, and turn a failure to write into one line a person can act on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot write {path}: {reason}; put that right, or give another place") from error
