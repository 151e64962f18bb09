"""Folders of corpora, and cached token streams."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import torch

from selfish_rnn.corpora.corpus import SPLITS, Corpus
from selfish_rnn.corpora.vocabulary import Vocabulary
from selfish_rnn.errors import UserError
from selfish_rnn.files import WriteError, load_tensors, save_tensors

DATA_VARIABLE = "SELFISH_RNN_DATA"
CACHE_VARIABLE = "SELFISH_RNN_CACHE"


def data_directory() -> Path | None:
    """Return the folder of the user's own copies of known corpora, ``$SELFISH_RNN_DATA``, or None."""
    value = os.environ.get(DATA_VARIABLE)
    return Path(os.path.expanduser(value)) if value else None


def cache_directory() -> Path | None:
    """Return ``$SELFISH_RNN_CACHE``, else ``$XDG_CACHE_HOME/selfish-rnn``, else ``~/.cache/selfish-rnn``.

    Return None if the user has no home directory; corpora are not cached then.
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


# Increase this when tokenization or the layout of the file changes.
_FORMAT = "selfish-rnn tokens 2"


def cache_path(texts: dict[str, bytes], tokenizer: str) -> Path | None:
    """Return the file for the cached streams of these texts, or None without a cache directory."""
    directory = cache_directory()
    if directory is None:
        return None
    key = hashlib.sha256(f"{_FORMAT} {tokenizer}".encode())
    for split in SPLITS:
        # Digests have a fixed length, so that different divisions of a text never share a key.
        key.update(hashlib.sha256(texts[split]).digest())
    return directory / "tokens" / f"{key.hexdigest()}.safetensors"


def load_cached(name: str, path: Path) -> Corpus | None:
    """Return the corpus cached at ``path``, or None if the file is missing or damaged."""
    try:
        tensors, metadata = load_tensors(path)
        vocabulary = Vocabulary.from_json(metadata["vocabulary"])
        streams = {split: tensors[split] for split in SPLITS}
    except (UserError, KeyError):
        return None
    if any(stream.dtype != torch.int32 or stream.dim() != 1 for stream in streams.values()):
        return None
    return Corpus(name, vocabulary, **{split: stream.to(torch.int64) for split, stream in streams.items()})


def store(corpus: Corpus, path: Path) -> None:
    """Cache a corpus at ``path``; ignore a full or read-only disk, which only makes the next load slower."""
    streams = {split: getattr(corpus, split).to(torch.int32) for split in SPLITS}
    with contextlib.suppress(WriteError):
        save_tensors(path, streams, {"vocabulary": corpus.vocabulary.to_json()})
