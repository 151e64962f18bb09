from __future__ import annotations

import sys

import pytest

from selfish_rnn.corpora import Corpus, load_corpus, unigram_perplexity
from selfish_rnn.corpora.corpus import SPLITS
from selfish_rnn.corpora.python_docs import _sentences_by_topic, python_docs_texts
from selfish_rnn.errors import UserError


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return python_docs_texts()


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus("python-docs")


def test_built_in_corpus(corpus: Corpus) -> None:
    sizes = {split: getattr(corpus, split).numel() for split in SPLITS}
    total = sum(sizes.values())
    assert 45_000 < total < 130_000
    assert 0.78 < sizes["train"] / total < 0.84
    assert sizes["valid"] / total == pytest.approx(0.1, abs=0.01)
    assert sizes["test"] / total == pytest.approx(0.1, abs=0.01)
    assert 1_500 < len(corpus.vocabulary) < 5_000
    assert set(corpus.train.tolist()) == set(range(len(corpus.vocabulary)))
    assert 100 < unigram_perplexity(corpus) < 400
    assert load_corpus("python-docs").train.equal(corpus.train)


def test_prompt_is_split_like_the_corpus(corpus: Corpus) -> None:
    vocabulary = corpus.vocabulary
    words = vocabulary.decode(vocabulary.encode("The class, if any, xyzzy."))
    assert words == ["the", "class", ",", "if", "any", ",", "<unk>", "."]
    assert vocabulary.join(words) == "the class, if any, <unk>."


def test_held_out_sentences_are_not_training_sentences(texts: dict[str, str]) -> None:
    # Short formulas ("see the documentation of ...") do recur; whole sections must not.
    sentences = {split: {line for line in texts[split].split("\n") if len(line.split()) >= 12} for split in SPLITS}
    for split in ("valid", "test"):
        assert len(sentences[split] & sentences["train"]) <= 0.02 * len(sentences[split])
    assert len(sentences["valid"] & sentences["test"]) <= 2


def test_markup_and_code_are_left_out() -> None:
    topics = {
        "sample": 'The "sample" topic\n****************\n\nThis is the *first* sentence of two, **really**.  Here is '
        "the second with built-\nin words. [1]\n\n   >>> print(the, code)\n   1\n\n   rule ::= the 'grammar'\n\n"
        "+---+\n| a table of the values |\n+---+\n\n* A bullet is the third one.\n\nNote:\n\n  It was a note.\n\n"
        "term (of the dictionary)\n   This explains the term in words.\n\nobject.method(self)\n\n   x = call(1)\n"
        "\nThis is the *first* sentence of two, **really**.  Here is the second with built-in words. [1]\n"
    }
    by_topic = _sentences_by_topic({**topics, "copy of sample": topics["sample"]})
    assert list(by_topic) == ["copy of sample"]
    assert [" ".join(sentence) for sentence in by_topic["copy of sample"]] == [
        "this is the first sentence of two , really .",
        "here is the second with built-in words .",
        "a bullet is the third one .",
        "it was a note .",
        "this explains the term in words .",
    ]


def test_texts_do_not_depend_on_the_order_of_topics(texts: dict[str, str]) -> None:
    from pydoc_data.topics import topics

    assert python_docs_texts(dict(reversed(topics.items()))) == texts


def test_python_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match=r"pydoc_data\.topics"):
        load_corpus("python-docs")
