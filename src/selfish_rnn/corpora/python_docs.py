"""Built-in corpus: prose of the language reference that CPython contains for its ``help()``.

This module handles text only, no tensors. The source repeats whole sections under several topics, so each paragraph
is used once; otherwise the test text would repeat training text.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from selfish_rnn.corpora.vocabulary import UNKNOWN, plain_typography, split_prose
from selfish_rnn.errors import UserError

NAME = "python-docs"
MINIMUM_COUNT = 2
HELD_OUT_SHARE = 0.1

Sentences = list[list[str]]

# Frequent English words that are not Python keywords: a paragraph without any of them is code, a table or a title.
_FUNCTION_WORD = re.compile(
    r"(?<!\S)(?:the|an?|of|to|are|this|that|these|be|by|its?|which|was|has|have|can|may|must|will|on|when|than|at)(?!\S)",
    re.IGNORECASE,
)
_PLAIN_WORD = re.compile(r"[\"*(']*[A-Za-z][a-z]*(?:[-'][a-z]+)*[\"*).,;:!?']*")
_RULE = re.compile(r"\s*([*=\-~^\"'.+#])\1{2,}\s*")
_LIST_MARK = re.compile(r"\A(?:[*•-]|\d+\.|\[\d+\]|\(?[a-z]\)|[ivx]+\.)\s+")
_ADMONITION = re.compile(r"\A(?:note|warning|see also|important|tip):\s*", re.IGNORECASE)
_CODE_SIGN = re.compile(
    r"::=|>>>|^\s*\.\.\. |^\s*[|+]|\s#\s|^\s*(?:def|class|import|from|return)\s[^.]*$", re.MULTILINE
)
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*\n]*[^\s*])?)\*{1,2}(?![\w*])")
_FOOTNOTE = re.compile(r"\s*\[\d+\](?=[\s.,;:)]|$)")
_BROKEN_WORD = re.compile(r"(?<=[a-z]-)\n\s*(?=[a-z])")
_SENTENCE_END = re.compile(r"(?<![ (]e\.g)(?<![ (]i\.e)(?<! vs)(?<=[.!?])([\")]*)\s+(?=[\"(]*[A-Z_])")


def read_topics() -> Mapping[str, str]:
    """Return the topics of ``help()`` by name."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UserError(
            f"the corpus {NAME} needs Python's own module pydoc_data.topics, which this Python was built without; "
            "install the full standard library or choose another corpus"
        ) from error
    return topics


def python_docs_texts(topics: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the texts of the splits: one sentence per line, words separated by spaces, rare words ``<unk>``."""
    splits = _divide(_sentences_by_topic(read_topics() if topics is None else topics))
    counts = Counter(word for sentence in splits["train"] for word in sentence)
    return {
        split: "".join(
            " ".join(word if counts[word] >= MINIMUM_COUNT else UNKNOWN for word in sentence) + "\n"
            for sentence in sentences
        )
        for split, sentences in splits.items()
    }


def _sentences_by_topic(topics: Mapping[str, str]) -> dict[str, Sentences]:
    seen: set[str] = set()
    result: dict[str, Sentences] = {}
    for name in sorted(topics):
        sentences: Sentences = []
        for paragraph in _paragraphs(plain_typography(topics[name])):
            # Copies have different indentation and line breaks, so they are compared as one line.
            line = " ".join(_BROKEN_WORD.sub("", paragraph).split())
            if line in seen or not _is_prose(paragraph):
                continue
            seen.add(line)
            sentences.extend(_sentences(line))
        if sentences:
            result[name] = sentences
    return result


def _divide(by_topic: Mapping[str, Sentences]) -> dict[str, Sentences]:
    """Assign whole topics to the splits.

    Topics come in the order of the hash of their name. A topic goes to test or valid while it fits into a tenth of all
    tokens, else to train. Large topics therefore train, and the shares are nearly exact.
    """
    sizes = {name: sum(len(sentence) + 1 for sentence in text) for name, text in by_topic.items()}
    room = dict.fromkeys(("test", "valid"), HELD_OUT_SHARE * sum(sizes.values()))
    chosen: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for name in sorted(by_topic, key=lambda topic: hashlib.sha256(topic.encode()).digest()):
        # The split with more free space comes first, so that large topics are shared between valid and test.
        fitting = [split for split in sorted(room, key=lambda split: -room[split]) if sizes[name] <= room[split]]
        split = fitting[0] if fitting else "train"
        if fitting:
            room[split] -= sizes[name]
        chosen[split].append(name)
    return {split: [sentence for name in names for sentence in by_topic[name]] for split, names in chosen.items()}


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n[ \t]*\n", text):
        lines = block.split("\n")
        if any(_RULE.fullmatch(line) for line in lines):
            continue
        # A term on its own line with its explanation indented below: the explanation is the paragraph.
        if len(lines) > 1 and _indent(lines[1]) > _indent(lines[0]) and not _LIST_MARK.match(lines[0].lstrip()):
            lines = lines[1:]
        yield _ADMONITION.sub("", _LIST_MARK.sub("", "\n".join(lines).strip()))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_prose(paragraph: str) -> bool:
    words = paragraph.split()
    if len(words) < 4 or _CODE_SIGN.search(paragraph):
        return False
    plain = sum(_PLAIN_WORD.fullmatch(word) is not None for word in words)
    return plain >= 0.5 * len(words) and _FUNCTION_WORD.search(paragraph) is not None


def _sentences(line: str) -> Iterator[list[str]]:
    text = _FOOTNOTE.sub("", _EMPHASIS.sub(r"\1", line))
    for sentence in _SENTENCE_END.sub(r"\1\n", text).split("\n"):
        words = split_prose(sentence)
        if words:
            yield words
