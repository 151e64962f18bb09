"""How a line of text becomes words, and how words become a readable line again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

EOS = "<eos>"
UNKNOWN = "<unk>"

# Alternatives are tried in this order, so the narrower patterns stand before the general word.
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
    """A named pair of functions: ``split`` a text into words, ``join`` the words of one line for printing."""

    name: str
    split: Callable[[str], list[str]]
    join: Callable[[Iterable[str]], str]


def plain_typography(text: str) -> str:
    """Typographic quotes, dashes and ellipses as they are typed on a keyboard, which is how prompts are written."""
    return text.translate(_TYPOGRAPHY)


def split_prose(text: str) -> list[str]:
    """Lowercase and separate words from punctuation: ``"Don't (ever)."`` gives ``don't ( ever ) .``"""
    return _PROSE_TOKEN.findall(plain_typography(text).lower())


def join_prose(words: Iterable[str]) -> str:
    """Join words with spaces, but punctuation, brackets and quotes without those a reader would not write.

    >>> join_prose(['see', '"', 'int', '(', ')', '"', '.'])
    'see "int()".'
    """
    pieces: list[str] = []
    open_quotes: set[str] = set()
    glued = True
    previous = ""
    for word in words:
        closing_quote = word in open_quotes
        # A call such as `len(x)` has no space before its bracket; only inside quotes is a bracket surely a call.
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
