"""Token streams kept on disk, so that a text is split only once.

An entry is one checksummed safetensors file: int32 streams, and the vocabulary as JSON in its header. One file,
because one rename then publishes all of it. Its name is the SHA-256 of the texts and the format, so an entry never
goes stale.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import torch

from selfish_rnn.corpora.corpus import SPLITS, Corpus
from selfish_rnn.corpora.storage import cache_directory
from selfish_rnn.corpora.vocabulary import Vocabulary
from selfish_rnn.errors import UserError
from selfish_rnn.files import WriteError, load_tensors, save_tensors

# Raise when the same text would give other tokens, or the file another layout.
_FORMAT = "selfish-rnn tokens 2"


def cache_path(texts: dict[str, bytes], tokenizer: str) -> Path | None:
    """Where the streams of these texts are kept; ``None`` without a cache directory."""
    directory = cache_directory()
    if directory is None:
        return None
    key = hashlib.sha256(f"{_FORMAT} {tokenizer}".encode())
    for split in SPLITS:
        # Digests have one length, so that no two different divisions of a text share a key.
        key.update(hashlib.sha256(texts[split]).digest())
    return directory / "tokens" / f"{key.hexdigest()}.safetensors"


def load_cached(name: str, path: Path) -> Corpus | None:
    """The corpus kept at ``path``, or ``None`` if nothing, or nothing whole, is there."""
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
    """Keep a corpus at ``path`` if that is possible; a full or forbidden disk only costs time later."""
    streams = {split: getattr(corpus, split).to(torch.int32) for split in SPLITS}
    with contextlib.suppress(WriteError):
        save_tensors(path, streams, {"vocabulary": corpus.vocabulary.to_json()})
