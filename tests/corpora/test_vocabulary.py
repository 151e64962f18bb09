from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfish_rnn.corpora import Vocabulary
from selfish_rnn.errors import UserError

WORDS = st.text(min_size=1).filter(lambda text: text.split() == [text])
TOKENS = st.lists(WORDS, unique=True).map(lambda words: (*[word for word in words if word != "<eos>"], "<eos>"))


@given(TOKENS, st.data())
def test_decode_undoes_encode(tokens: tuple[str, ...], data: st.DataObject) -> None:
    vocabulary = Vocabulary(tokens)
    words = data.draw(st.lists(st.sampled_from(tokens)))
    assert vocabulary.decode(vocabulary.encode(words)) == words
    assert vocabulary.decode(vocabulary.encode(" ".join(words))) == words
    assert vocabulary.decode(range(len(vocabulary))) == list(tokens)


@given(TOKENS, st.sampled_from(["whitespace", "prose"]))
def test_json_keeps_everything(tokens: tuple[str, ...], tokenizer: str) -> None:
    vocabulary = Vocabulary(tokens, tokenizer)
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


def test_file_keeps_the_manner_of_splitting(tmp_path: Path) -> None:
    vocabulary = Vocabulary(("the", "type", ",", "<eos>", "<unk>"), "prose")
    (tmp_path / "vocabulary.json").write_text(vocabulary.to_json(), encoding="utf-8")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded == vocabulary
    assert loaded.encode("The type, naturally") == [0, 1, 2, 4]


def test_special_tokens() -> None:
    vocabulary = Vocabulary(("a", "<eos>", "<unk>"))
    assert (vocabulary.eos_id, vocabulary.unknown_id) == (1, 2)
    assert Vocabulary(("<eos>",)).unknown_id is None
    assert "a" in vocabulary
    assert "b" not in vocabulary


def test_missing_word_without_unknown_is_named() -> None:
    vocabulary = Vocabulary(("cat", "<eos>"))
    with pytest.raises(UserError, match=r"'dog' is not in the vocabulary"):
        vocabulary.encode("cat dog")
    with pytest.raises(UserError, match=r"did you mean 'cat'\?"):
        vocabulary.encode("Cat")


def test_decode_takes_tensors_and_refuses_foreign_ids() -> None:
    vocabulary = Vocabulary(("a", "<eos>"))
    assert vocabulary.decode(torch.tensor([1, 0])) == ["<eos>", "a"]
    for foreign in (-1, 2):
        with pytest.raises(IndexError, match="outside the vocabulary of 2 tokens"):
            vocabulary.decode([foreign])


def test_join_breaks_lines_at_eos() -> None:
    assert Vocabulary(("a", "<eos>")).join(["a", ",", "<eos>", "a"]) == "a ,\na"
    assert Vocabulary(("a", "<eos>"), "prose").join(["a", ",", "<eos>", "a"]) == "a,\na"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ('{"tokenizer": "whitespace", "tokens": [1]}', "list of strings"),
        ('{"tokens": ["<eos>"]}', "field tokenizer"),
        ('{"tokenizer": "letters", "tokens": ["<eos>"]}', "unknown tokenizer 'letters'"),
        ('{"tokenizer": "prose", "tokens": ["a"]}', "<eos>"),
        ('{"tokenizer": "prose", "tokens": ["<eos>", "<eos>"]}', "twice"),
    ],
)
def test_malformed_json_is_explained(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        Vocabulary.from_json(text)
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(UserError, match=r"broken\.json"):
        Vocabulary.load(tmp_path / "broken.json")


def test_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.json"):
        Vocabulary.load(tmp_path / "absent.json")
