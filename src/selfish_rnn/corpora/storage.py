"""Where corpora are looked for and kept."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "SELFISH_RNN_DATA"
CACHE_VARIABLE = "SELFISH_RNN_CACHE"


def data_directory() -> Path | None:
    """The folder of the user's own copies of known corpora, ``$SELFISH_RNN_DATA``."""
    value = os.environ.get(DATA_VARIABLE)
    return Path(os.path.expanduser(value)) if value else None


def cache_directory() -> Path | None:
    """``$SELFISH_RNN_CACHE``, else ``$XDG_CACHE_HOME/selfish-rnn``, else ``~/.cache/selfish-rnn``.

    ``None`` where the user has no home: then nothing is kept.
    """
    value = os.environ.get(CACHE_VARIABLE)
    if value:
        return Path(os.path.expanduser(value))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification asks to ignore relative paths
        return Path(base) / "selfish-rnn"
    try:
        return Path.home() / ".cache" / "selfish-rnn"
    except RuntimeError:
        return None
