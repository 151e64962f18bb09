"""Text from a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from selfish_rnn.corpora import Vocabulary
from selfish_rnn.models import LanguageModel
from selfish_rnn.training.evaluation import generate
from tiny_runs import trained


@pytest.fixture(scope="module")
def finished(texts: Path) -> LanguageModel:
    trainer = trained(texts, optimizer={"name": "adam", "lr": 0.02}).trainer
    trainer.model.vocabulary = trainer.corpus.vocabulary
    return trainer.model.eval()


def test_generated_text_follows_the_seed(finished: LanguageModel):
    vocabulary = finished.vocabulary

    def text(seed: int | None, temperature: float = 1.0) -> str:
        return generate(finished, vocabulary, "the cat", tokens=30, temperature=temperature, seed=seed)

    assert text(1).startswith("the cat")
    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(None) != text(None)
    assert text(1, temperature=0) == text(2, temperature=0)


def test_greedy_text_is_the_likeliest_word_each_time(finished: LanguageModel):
    vocabulary = finished.vocabulary
    words = vocabulary.encode("old river")
    with torch.no_grad():
        for _ in range(8):  # without carrying any state
            scores, _ = finished(torch.tensor([vocabulary.eos_id, *words]).view(-1, 1))
            words.append(int(scores[-1, 0].argmax()))
    expected = vocabulary.join(vocabulary.decode(words))
    assert generate(finished, vocabulary, "old river", tokens=8, temperature=0) == expected


def test_the_unknown_word_is_never_written(finished: LanguageModel):
    tokens = list(finished.vocabulary.tokens)
    favourite = tokens[int(finished(torch.tensor([[finished.vocabulary.eos_id]]))[0].argmax())]
    tokens[tokens.index(favourite if favourite != "<eos>" else "cat")] = "<unk>"
    text = generate(finished, Vocabulary(tuple(tokens)), "never seen", tokens=40, seed=1, temperature=2.0)
    assert "<unk>" not in text.removeprefix("<unk> <unk>")


def test_an_empty_prompt_starts_a_sentence(finished: LanguageModel):
    assert generate(finished, finished.vocabulary, "", tokens=5, seed=1)
