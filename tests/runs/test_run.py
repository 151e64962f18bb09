"""Runs are started, opened and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from selfish_rnn.errors import UserError
from selfish_rnn.runs.run import Run, experiment_corpus
from tiny_runs import result_of, tiny_experiment, write_corpus


def finish(run: Run) -> dict[str, Any]:
    return run.execute(run.trainer())


def test_a_run_leaves_everything_in_its_folder_and_opens_again(texts: Path, tmp_path: Path):
    started = Run.start(tiny_experiment(texts, epochs=1), tmp_path / "run")
    summary = finish(started)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.yaml", "corpus.json", "metrics.jsonl", "events", "checkpoints", "model.safetensors", "vocabulary.json",
        "summary.json",
    }  # fmt: skip
    opened = Run.open(tmp_path / "run")
    assert opened.experiment == started.experiment
    assert opened.vocabulary() == opened.corpus().vocabulary
    assert json.loads((tmp_path / "run/summary.json").read_text()) == summary


def test_the_number_of_threads_is_written_down(texts: Path, tmp_path: Path):
    run = Run.start(tiny_experiment(texts, threads=None), tmp_path / "run")
    assert run.experiment.threads == torch.get_num_threads()
    assert Run.open(tmp_path / "run").experiment.threads == torch.get_num_threads()


def test_train_tokens_cut_only_the_training_text(texts: Path):
    whole = experiment_corpus(tiny_experiment(texts))
    cut = experiment_corpus(tiny_experiment(texts, train_tokens=100))
    assert torch.equal(cut.train, whole.train[:100])
    assert torch.equal(cut.valid, whole.valid)
    assert cut.vocabulary == whole.vocabulary


@pytest.mark.parametrize(
    "changes",
    [{"corpus": "/nowhere/texts"}, {"test_batch_size": 300}, {"model": {"dropout": 1.5}}, {"train_tokens": 3}],
    ids=str,
)
def test_what_cannot_be_trained_leaves_no_folder(texts: Path, tmp_path: Path, changes: dict[str, Any]):
    with pytest.raises(UserError):
        Run.start(tiny_experiment(texts, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_continued_changes_nothing(texts: Path, tmp_path: Path):
    finish(Run.start(tiny_experiment(texts), tmp_path / "run"))
    before = result_of(tmp_path / "run")
    finish(Run.open(tmp_path / "run"))
    assert result_of(tmp_path / "run") == before


def test_a_corpus_changed_since_is_refused(tmp_path: Path):
    texts = write_corpus(tmp_path / "texts")
    finish(Run.start(tiny_experiment(texts, epochs=1), tmp_path / "run"))
    (texts / "train.txt").write_text("entirely other words\n" * 200)
    for use in (Run.trainer, Run.corpus):
        with pytest.raises(UserError, match=r"the corpus .* is no longer the one that .*corpus.json tells of"):
            use(Run.open(tmp_path / "run"))


def test_settings_changed_since_are_refused(texts: Path, tmp_path: Path):
    run = Run.start(tiny_experiment(texts, epochs=2), tmp_path / "run")
    finish(run)
    config = run.folder.config
    before = config.read_text()
    config.write_text(before.replace("epochs: 2", "epochs: 3").replace("lr: 4.0", "lr: 1.0"))
    with pytest.raises(UserError, match=r"config\.yaml was changed since .*, in optimizer\.lr, epochs: put it back"):
        Run.open(tmp_path / "run").trainer()
    config.write_text(before.replace("checkpoint_every: 10.0", "checkpoint_every: 5.0"))
    Run.open(tmp_path / "run").trainer()


def test_a_run_with_results_but_no_checkpoint_is_not_begun_anew(texts: Path, tmp_path: Path):
    run = Run.start(tiny_experiment(texts, epochs=2), tmp_path / "run")
    finish(run)
    model = run.folder.model.read_bytes()
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="has results but no checkpoint"):
        Run.open(tmp_path / "run").trainer()
    assert run.folder.model.read_bytes() == model


def test_two_processes_cannot_train_one_run(texts: Path, tmp_path: Path):
    run = Run.start(tiny_experiment(texts, epochs=1), tmp_path / "run")
    trainer = run.trainer()
    with run.folder.locked(), pytest.raises(UserError, match="another process is training the run"):
        Run.open(tmp_path / "run").execute(trainer)
    run.execute(trainer)
