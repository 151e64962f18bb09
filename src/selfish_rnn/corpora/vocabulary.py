"""Tokenizers and vocabularies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from selfish_rnn.errors import UserError
from selfish_rnn.files import write_atomically

EOS = "<eos>"
UNKNOWN = "<unk>"

# Alternatives are tried in this order, so narrow patterns come before the general word.
_PROSE_TOKEN = re.compile(
    r"<unk>|<eos>"
    r"|\b(?:e\.g|i\.e|etc|vs)\."
    r"|\d+(?:\.\d+)+"  # 3.13
    r"|\b[^\W\d_]+'(?:t|re|ve|ll|d|m)\b"  # doesn't
    r"|(?<=\w)'s\b"  # possessive, attached to the word before it
    r"|[^\W\d_]+(?:-[^\W\d_]+)+"  # left-to-right
    r"|(?<=\w)\.[^\W\d]\w*"  # the attribute in str.encode, attached likewise
    r"|\w+"
    r"|\.\.\.|[^\w\s]"
)
_TYPOGRAPHY = str.maketrans(
    {
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\N{NO-BREAK SPACE}": " ",
    }
)
_ATTACHED_LEFT = re.compile(r"[.,;:!?%)\]}]|\.\.\.|'s|\.[^\W\d]\w*")
_NAME = re.compile(r"\.?\w+|<unk>")
_OPENING = frozenset("([{")
_QUOTES = frozenset("\"'")


@dataclass(frozen=True)
class Tokenizer:
    """A named pair of functions: ``split`` divides a text into words, ``join`` combines them for display."""

    name: str
    split: Callable[[str], list[str]]
    join: Callable[[Iterable[str]], str]


def plain_typography(text: str) -> str:
    """Replace typographic quotes, dashes and ellipses by the characters of a keyboard."""
    return text.translate(_TYPOGRAPHY)


def split_prose(text: str) -> list[str]:
    """Lowercase a text and separate words from punctuation: ``"Don't (ever)."`` gives ``don't ( ever ) .``"""
    return _PROSE_TOKEN.findall(plain_typography(text).lower())


def join_prose(words: Iterable[str]) -> str:
    """Join words with spaces, except around punctuation, brackets and quotes.

    >>> join_prose(['see', '"', 'int', '(', ')', '"', '.'])
    'see "int()".'
    """
    pieces: list[str] = []
    open_quotes: set[str] = set()
    glued = True
    previous = ""
    for word in words:
        closing_quote = word in open_quotes
        # A call such as `len(x)` has no space before its bracket; a bracket is certainly a call only inside quotes.
        call = word in _OPENING and bool(open_quotes) and _NAME.fullmatch(previous) is not None
        if not (glued or closing_quote or call or _ATTACHED_LEFT.fullmatch(word)):
            pieces.append(" ")
        pieces.append(word)
        glued = word in _OPENING
        if closing_quote:
            open_quotes.discard(word)
        elif word in _QUOTES:
            open_quotes.add(word)
            glued = True
        previous = word
    return "".join(pieces)


WHITESPACE = Tokenizer("whitespace", str.split, " ".join)
PROSE = Tokenizer("prose", split_prose, join_prose)
TOKENIZERS = {tokenizer.name: tokenizer for tokenizer in (WHITESPACE, PROSE)}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their ids, and the tokenizer that splits text into them.

    >>> vocabulary = Vocabulary(("the", "cat", "<eos>"))
    >>> vocabulary.encode("the cat")
    [0, 1]
    >>> vocabulary.decode([1, 2])
    ['cat', '<eos>']

    ``tokenizer`` is ``"whitespace"`` or ``"prose"`` (lowercase, separate punctuation). The JSON form contains it, so
    that prompts are split like the corpus.
    """

    tokens: tuple[str, ...]
    tokenizer: str = "whitespace"
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        object.__setattr__(self, "_ids", {token: index for index, token in enumerate(self.tokens)})
        if len(self._ids) != len(self.tokens):
            raise UserError("a vocabulary must not contain a token twice")
        if EOS not in self._ids:
            raise UserError(f"a vocabulary must contain the end-of-sentence token {EOS}")
        if self.tokenizer not in TOKENIZERS:
            raise UserError(f"unknown tokenizer {self.tokenizer!r}: known are {', '.join(TOKENIZERS)}")

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    @property
    def eos_id(self) -> int:
        """Id of the token that closes every line."""
        return self._ids[EOS]

    @property
    def unknown_id(self) -> int | None:
        """Id of the token for words outside the vocabulary; None if the corpus has no such token."""
        return self._ids.get(UNKNOWN)

    def encode(self, text: str | Iterable[str]) -> list[int]:
        """Return the ids of a line of text, or of words, without an end-of-sentence token.

        A word outside the vocabulary becomes ``<unk>``; it is an error if the corpus has no ``<unk>``.
        """
        words = TOKENIZERS[self.tokenizer].split(text) if isinstance(text, str) else text
        unknown = self.unknown_id
        ids = []
        for word in words:
            index = self._ids.get(word, unknown)
            if index is None:
                hint = f"; did you mean {word.lower()!r}?" if word.lower() in self._ids else ""
                raise UserError(
                    f"the word {word!r} is not in the vocabulary, and the corpus has no {UNKNOWN} to stand for it{hint}"
                )
            ids.append(index)
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id; ``ids`` may be a one-dimensional tensor."""
        words = []
        for identifier in ids:
            index = int(identifier)
            if not 0 <= index < len(self.tokens):
                raise IndexError(f"id {index} is outside the vocabulary of {len(self.tokens)} tokens")
            words.append(self.tokens[index])
        return words

    def join(self, words: Iterable[str]) -> str:
        """Return words as text for display: a line break for each ``<eos>``, natural spacing around punctuation."""
        lines: list[list[str]] = [[]]
        for word in words:
            if word == EOS:
                lines.append([])
            else:
                lines[-1].append(word)
        return "\n".join(map(TOKENIZERS[self.tokenizer].join, lines))

    def to_json(self) -> str:
        """Return the vocabulary as a JSON object with the fields ``tokenizer`` and ``tokens``."""
        return json.dumps({"tokenizer": self.tokenizer, "tokens": self.tokens}, ensure_ascii=False)

    def checksum(self) -> str:
        """Return the SHA-256 of :meth:`to_json`."""
        return hashlib.sha256(self.to_json().encode("utf-8", "surrogatepass")).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Return the vocabulary in a JSON object, the inverse of :meth:`to_json`.

        A field ``sha256``, which :meth:`save` adds, is compared with :meth:`checksum`.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the vocabulary is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise UserError("the vocabulary must be a JSON object with the fields tokenizer and tokens")
        tokens, tokenizer = content.get("tokens"), content.get("tokenizer")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise UserError("the field tokens of a vocabulary must be a list of strings")
        if not isinstance(tokenizer, str):
            raise UserError("the field tokenizer of a vocabulary must be a string")
        vocabulary = cls(tuple(tokens), tokenizer)
        if "sha256" in content and content["sha256"] != vocabulary.checksum():
            raise UserError("the vocabulary is damaged (its checksum does not match)")
        return vocabulary

    def save(self, path: str | Path) -> None:
        """Write :meth:`to_json` with a checksum to a file, atomically."""
        content = {"tokenizer": self.tokenizer, "sha256": self.checksum(), "tokens": self.tokens}
        write_atomically(Path(path), json.dumps(content, ensure_ascii=False).encode())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file that :meth:`save` wrote, or one that contains :meth:`to_json`."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, UserError) as error:
            raise UserError(f"cannot read the vocabulary {path}: {error}") from error
