"""What a run came to, and text from its model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from selfish_rnn.runs.outcome import evaluate_splits, generate, load_best, summarise

from selfish_rnn.corpora import Vocabulary, unigram_perplexity
from selfish_rnn.errors import UserError
from selfish_rnn.training.evaluation import evaluate, perplexity
from selfish_rnn.training.trainer import Trainer
from tiny_runs import budget_of, trained

ADAM = {"name": "adam", "lr": 0.02}


@pytest.fixture(scope="module")
def finished(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return trained(texts, tmp_path_factory.mktemp("run"), optimizer=ADAM)


def best_of(trainer: Trainer):
    return load_best(trainer.experiment, trainer.folder, len(trainer.corpus.vocabulary))


def test_the_summary_is_of_the_best_model_and_of_exact_counts(finished: Trainer):
    summary = summarise(finished)
    best = best_of(finished)
    assert summary["test_perplexity"] == perplexity(evaluate(best, finished.corpus.test, batch_size=2, window=11))
    assert summary["valid_perplexity"] == perplexity(finished.position.best_valid_loss)
    assert summary["unigram_perplexity"] == unigram_perplexity(finished.corpus)
    assert summary["active_weights"] == budget_of(finished)
    assert summary["total_weights"] == sum(w.mask.numel() for w in finished.sparsifier.weights)
    dense = sum(p.numel() for p in best.parameters()) - summary["total_weights"]
    assert summary["active_parameters"] - summary["active_weights"] == dense > 0
    assert summary["total_parameters"] - summary["total_weights"] == dense
    assert summary["sparsity"] == pytest.approx(0.6, abs=0.01)
    assert (summary["epochs"], summary["steps"], summary["seed"], summary["threads"]) == (3, 30, 5, 1)


def test_each_split_has_its_own_batch_size(finished: Trainer):
    best = best_of(finished)
    measured = evaluate_splits(best, finished.experiment, finished.corpus)
    assert measured == {
        "valid_perplexity": perplexity(evaluate(best, finished.corpus.valid, batch_size=4, window=11)),
        "test_perplexity": perplexity(evaluate(best, finished.corpus.test, batch_size=2, window=11)),
    }


def test_a_best_model_that_is_missing_or_damaged_is_the_users_error(texts: Path, tmp_path: Path):
    trainer = trained(texts, tmp_path, epochs=1)
    data = bytearray(trainer.folder.model.read_bytes())
    data[-3] ^= 1
    trainer.folder.model.write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        best_of(trainer)
    trainer.folder.model.unlink()
    with pytest.raises(UserError, match=r"model\.safetensors does not exist"):
        best_of(trainer)


def test_generated_text_follows_the_seed(finished: Trainer):
    model, vocabulary = best_of(finished), finished.corpus.vocabulary

    def text(seed: int | None, temperature: float = 1.0) -> str:
        return generate(model, vocabulary, "the cat", tokens=30, temperature=temperature, seed=seed)

    assert text(1).startswith("the cat")
    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(None) != text(None)
    assert text(1, temperature=0) == text(2, temperature=0)


def test_greedy_text_is_the_likeliest_word_each_time(finished: Trainer):
    model, vocabulary = best_of(finished), finished.corpus.vocabulary
    words = vocabulary.encode("old river")
    with torch.no_grad():
        for _ in range(8):  # without carrying any state
            scores, _ = model(torch.tensor([vocabulary.eos_id, *words]).view(-1, 1))
            words.append(int(scores[-1, 0].argmax()))
    expected = vocabulary.join(vocabulary.decode(words))
    assert generate(model, vocabulary, "old river", tokens=8, temperature=0) == expected


def test_the_unknown_word_is_never_written(finished: Trainer):
    model = best_of(finished)
    tokens = list(finished.corpus.vocabulary.tokens)
    favourite = tokens[int(model(torch.tensor([[finished.corpus.vocabulary.eos_id]]))[0].argmax())]
    tokens[tokens.index(favourite if favourite != "<eos>" else "cat")] = "<unk>"
    text = generate(model, Vocabulary(tuple(tokens)), "never seen", tokens=40, seed=1, temperature=2.0)
    assert "<unk>" not in text.removeprefix("<unk> <unk>")


def test_an_empty_prompt_starts_a_sentence(finished: Trainer):
    assert generate(best_of(finished), finished.corpus.vocabulary, "", tokens=5, seed=1)
