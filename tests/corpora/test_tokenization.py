from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfish_rnn.corpora.vocabulary import PROSE, join_prose, split_prose


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The class doesn't exist.", ["the", "class", "doesn't", "exist", "."]),
        ("Python\N{RIGHT SINGLE QUOTATION MARK}s rules", ["python", "'s", "rules"]),
        ('"str.encode()" (see 3.13)', ['"', "str", ".encode", "(", ")", '"', "(", "see", "3.13", ")"]),
        ("left-to-right, e.g. <unk>", ["left-to-right", ",", "e.g.", "<unk>"]),
        ("__init__ and so on...", ["__init__", "and", "so", "on", "..."]),
        ("", []),
    ],
)
def test_split(text: str, words: list[str]) -> None:
    assert split_prose(text) == words


@pytest.mark.parametrize(
    "text",
    [
        'the "str.encode()" method returns bytes, not "none".',
        "a class's body (see 3.13) isn't run; it is left-to-right: so [1].",
        'the forms "\'a\'" and "len(x)" are equal...',
    ],
)
def test_join_reads_as_it_was_written(text: str) -> None:
    assert join_prose(split_prose(text)) == text


@given(st.text())
def test_splitting_loses_nothing_but_case_and_space(text: str) -> None:
    words = PROSE.split(text)
    assert all(word.split() == [word] for word in words)
    assert PROSE.split(text.lower()) == words


@given(st.lists(st.sampled_from(["the", "(", ")", '"', "'", ",", ".", "'s", ".x", "<unk>", "["])))
def test_join_only_chooses_spaces(words: list[str]) -> None:
    assert join_prose(words).replace(" ", "") == "".join(words)
