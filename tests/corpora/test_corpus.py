from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfish_rnn.corpora import Corpus, Vocabulary, truncated, unigram_perplexity, with_frequent_words, with_words
from selfish_rnn.corpora.corpus import SPLITS, encode_texts
from selfish_rnn.errors import UserError

LINES = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=5), min_size=1, max_size=6)


def text_of(lines: list[list[str]]) -> str:
    return "".join(" ".join(line) + " \n" for line in lines)


@given(LINES, LINES, LINES)
def test_ids_follow_first_appearance(train: list[list[str]], valid: list[list[str]], test: list[list[str]]) -> None:
    lines = {"train": train, "valid": valid, "test": test}
    corpus = encode_texts("letters", {split: text_of(lines[split]) for split in SPLITS}, "whitespace")
    flat = {split: [word for line in lines[split] for word in (*line, "<eos>")] for split in SPLITS}
    assert list(corpus.vocabulary.tokens) == list(dict.fromkeys(flat["train"] + flat["valid"] + flat["test"]))
    for split in SPLITS:
        stream = getattr(corpus, split)
        assert stream.dtype == torch.int64
        assert stream.dim() == 1
        assert corpus.vocabulary.decode(stream) == flat[split]


def test_only_line_ends_end_lines() -> None:
    text = {"train": "a\r\nb\rc\n\nd\u2028e\x85f", "valid": "a\n", "test": "a"}
    corpus = encode_texts("ends", text, "whitespace")
    words = corpus.vocabulary.decode(corpus.train)
    assert words == ["a", "<eos>", "b", "<eos>", "c", "<eos>", "<eos>", "d", "e", "f", "<eos>"]


def small_corpus() -> Corpus:
    return encode_texts("small", {"train": "a a b", "valid": "c", "test": "a c"}, "whitespace")


def test_unigram_perplexity_by_hand() -> None:
    # Training counts a 2, b 1, <eos> 1, c 0: N = 4, V = 4; the test stream is a, c, <eos>.
    expected = math.exp(-(math.log(3 / 8) + math.log(1 / 8) + math.log(2 / 8)) / 3)
    assert unigram_perplexity(small_corpus()) == pytest.approx(expected, rel=1e-12)


def test_uniform_text_has_the_perplexity_of_its_vocabulary() -> None:
    ids = torch.arange(50)
    vocabulary = Vocabulary((*map(str, range(49)), "<eos>"))
    assert unigram_perplexity(Corpus("uniform", vocabulary, ids, ids, ids)) == pytest.approx(50)


def test_unigram_perplexity_of_nothing() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(UserError, match="test stream of the corpus empty is empty"):
        unigram_perplexity(Corpus("empty", Vocabulary(("<eos>",)), nothing, nothing, nothing))


def test_truncated_shortens_only_training() -> None:
    corpus = small_corpus()
    shorter = truncated(corpus, 2)
    assert shorter.train.tolist() == corpus.train[:2].tolist()
    assert shorter.vocabulary is corpus.vocabulary
    assert shorter.valid is corpus.valid
    assert shorter.test is corpus.test
    assert truncated(corpus, 1000).train.tolist() == corpus.train.tolist()
    with pytest.raises(UserError, match="at least 1 token, not 0"):
        truncated(corpus, 0)


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f", "<unk>"]), min_size=1, max_size=40).map(" ".join)


@given(train=TEXTS, valid=TEXTS, test=TEXTS, words=st.integers(3, 9))
def test_frequent_words_are_kept_and_the_others_unknown(train: str, valid: str, test: str, words: int) -> None:
    whole = encode_texts("letters", {"train": train, "valid": valid, "test": test}, "whitespace")
    small = with_frequent_words(whole, words)
    if words >= len(whole.vocabulary):
        assert small is whole
        return
    assert len(small.vocabulary) == words
    assert {"<unk>", "<eos>"} <= set(small.vocabulary.tokens)
    counts = Counter([*train.split(), "<eos>"])
    kept = set(small.vocabulary.tokens) - {"<unk>", "<eos>"}
    lost = set(whole.vocabulary.tokens) - set(small.vocabulary.tokens)
    assert min((counts[word] for word in kept), default=0) >= max((counts[word] for word in lost), default=0)
    for split in ("train", "valid", "test"):
        before = whole.vocabulary.decode(getattr(whole, split))
        after = small.vocabulary.decode(getattr(small, split))
        assert after == [word if word in small.vocabulary else "<unk>" for word in before]


def test_too_few_or_foreign_words() -> None:
    with pytest.raises(UserError, match="at least 3 words, <eos>, <unk> and another, not 2"):
        with_frequent_words(small_corpus(), 2)
    with pytest.raises(UserError, match="does not have the word 'elsewhere'"):
        with_words(small_corpus(), Vocabulary(("elsewhere", "<unk>", "<eos>")))
