"""Loading of corpora by name or folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from selfish_rnn.corpora import python_docs
from selfish_rnn.corpora.cache import cache_path, load_cached, store
from selfish_rnn.corpora.corpus import SPLITS, Corpus, encode_texts
from selfish_rnn.corpora.known import KNOWN, read_known
from selfish_rnn.corpora.vocabulary import PROSE, WHITESPACE
from selfish_rnn.errors import UserError, nearest, short_repr

KNOWN_CORPORA: tuple[str, ...] = (python_docs.NAME, *KNOWN)
LONGEST_WORD = 10_000
_FILES = "train.txt, valid.txt and test.txt"


def load_corpus(name_or_folder: str | Path) -> Corpus:
    """Load ``"python-docs"``, ``"ptb"``, ``"wikitext-2"``, or a folder with train.txt, valid.txt and test.txt.

    >>> load_corpus("python-docs")      # needs no file and no network
    >>> load_corpus("data/my-novel")    # UTF-8, words separated by whitespace, one sentence per line

    A known name wins over a folder of that name; write ``./ptb`` or pass a ``Path`` to mean the folder. Streams are
    cached by the content of the texts, so a second load is fast and a changed file is noticed.
    """
    if name_or_folder == python_docs.NAME:
        texts = {split: text.encode() for split, text in python_docs.python_docs_texts().items()}
        return _tokens(python_docs.NAME, texts, PROSE.name, origin=Path(python_docs.NAME))
    if isinstance(name_or_folder, str) and name_or_folder in KNOWN:
        texts = read_known(KNOWN[name_or_folder])
        return _tokens(name_or_folder, texts, WHITESPACE.name, origin=Path(name_or_folder))
    folder = _folder(name_or_folder)
    texts = {split: _read(folder / f"{split}.txt") for split in SPLITS}
    return _tokens(folder.resolve().name, texts, WHITESPACE.name, origin=folder)


def _tokens(name: str, texts: dict[str, bytes], tokenizer: str, origin: Path) -> Corpus:
    path = cache_path(texts, tokenizer)
    corpus = load_cached(name, path) if path else None
    if corpus is None:
        decoded = {split: _decode(texts[split], origin / f"{split}.txt") for split in SPLITS}
        corpus = encode_texts(name, decoded, tokenizer)
        longest = max(corpus.vocabulary.tokens, key=len)
        if len(longest) > LONGEST_WORD:
            raise UserError(
                f"the corpus {name} has a word of {len(longest)} characters, {short_repr(longest, 40)}: words are "
                f"separated by spaces and have at most {LONGEST_WORD} characters"
            )
        if path:
            store(corpus, path)
    return corpus


def _folder(name_or_folder: str | Path) -> Path:
    folder = Path(os.path.expanduser(name_or_folder))
    if os.path.isdir(folder) and name_or_folder != "":
        return folder
    if os.path.isfile(folder):
        raise UserError(f"{folder} is a file; a corpus is a folder with {_FILES}")
    looks_like_path = isinstance(name_or_folder, Path) or any(
        separator in name_or_folder for separator in (os.sep, os.altsep) if separator
    )
    if looks_like_path:
        raise UserError(f"the corpus folder {folder} does not exist; it must contain {_FILES}")
    name = str(name_or_folder)
    raise UserError(
        f"unknown corpus {name!r}{nearest(name.lower(), KNOWN_CORPORA)}: it must be a known corpus "
        f"({', '.join(KNOWN_CORPORA)}) or a folder with {_FILES}"
    )


def _read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe or a device may never end
            raise UserError(f"cannot read {path}: it is not a file of text")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"the corpus folder {path.parent} has no {path.name}; it must contain {_FILES}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _decode(content: bytes, path: Path) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: byte 0x{content[error.start]:02x} at offset {error.start}; "
            "convert the file to UTF-8"
        ) from error
    text = text.removeprefix("\ufeff")  # Windows editors put this mark first; it is not part of a word
    if not text or text.isspace():
        raise UserError(f"{path} is empty; it should hold text, words separated by spaces, one sentence per line")
    return text
