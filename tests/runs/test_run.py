"""Runs are started, opened and continued."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from selfish_rnn.corpora import unigram_perplexity
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors
from selfish_rnn.runs import run as runs
from selfish_rnn.runs.export import ExportedModel, export
from selfish_rnn.runs.run import Run, experiment_corpus
from selfish_rnn.training.evaluation import evaluate, evaluate_splits, perplexity
from selfish_rnn.training.metrics import Listener
from selfish_rnn.training.trainer import Trainer
from tiny_runs import (
    Recorder,
    bits,
    budget_of,
    epoch_record,
    finished_run,
    result_of,
    stop_after,
    tiny_experiment,
    tiny_run,
    write_corpus,
)

pytestmark = pytest.mark.slow


def test_a_run_leaves_everything_in_its_folder_and_opens_again(texts: Path, tmp_path: Path):
    started = tiny_run(texts, tmp_path / "run", epochs=1)
    summary = started.train()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.yaml", "corpus.json", "metrics.jsonl", "events", "topologies.bin", "checkpoints", "model.safetensors",
        "vocabulary.json",
        "summary.json",
    }  # fmt: skip
    opened = Run.open(tmp_path / "run")
    assert opened.experiment == started.experiment
    assert opened.vocabulary == opened.corpus.vocabulary
    assert json.loads((tmp_path / "run/summary.json").read_text()) == summary


def test_the_number_of_threads_is_written_down(texts: Path, tmp_path: Path):
    run = tiny_run(texts, tmp_path / "run", threads=None)
    assert run.experiment.threads == torch.get_num_threads()
    assert Run.open(tmp_path / "run").experiment.threads == torch.get_num_threads()


def test_train_tokens_cut_only_the_training_text(texts: Path):
    whole = experiment_corpus(tiny_experiment(texts))
    cut = experiment_corpus(tiny_experiment(texts, train_tokens=100))
    assert torch.equal(cut.train, whole.train[:100])
    assert torch.equal(cut.valid, whole.valid)
    assert cut.vocabulary == whole.vocabulary


def test_a_smaller_vocabulary_goes_with_the_run_and_its_export(texts: Path, tmp_path: Path):
    run = tiny_run(texts, tmp_path / "run", vocabulary=5)
    summary = run.train()
    assert len(run.vocabulary) == 5
    export(Run.open(tmp_path / "run"), tmp_path / "model.safetensors")
    exported = ExportedModel.read(tmp_path / "model.safetensors")
    assert exported.corpus(str(texts)).vocabulary == run.vocabulary
    again = evaluate_splits(exported.model(packed=False), exported.evaluation, exported.corpus(str(texts)))
    assert again["test_perplexity"] == pytest.approx(summary["test_perplexity"])


@pytest.mark.parametrize(
    "changes",
    [{"corpus": "/nowhere/texts"}, {"test_batch_size": 300}, {"model": {"dropout": 1.5}}, {"train_tokens": 3}],
    ids=str,
)
def test_what_cannot_be_trained_leaves_no_folder(texts: Path, tmp_path: Path, changes: dict[str, Any]):
    with pytest.raises(UserError):
        tiny_run(texts, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_continued_changes_nothing(texts: Path, tmp_path: Path):
    finished_run(texts, tmp_path / "run")
    before = result_of(tmp_path / "run")
    Run.open(tmp_path / "run").train()
    assert result_of(tmp_path / "run") == before


def test_a_command_given_again_goes_on_with_the_run_of_its_settings_and_no_other(texts: Path, tmp_path: Path):
    stop_after(tiny_run(texts, tmp_path / "run"), 13)
    with pytest.raises(UserError, match="already holds a run"):
        tiny_run(texts, tmp_path / "run")
    changed = tiny_experiment(texts, seed=6, optimizer={"name": "snt-asgd", "lr": 5.0})
    with pytest.raises(
        UserError, match=r"contains a run with other settings, in optimizer\.lr, seed: give another folder"
    ):
        Run.start(changed, tmp_path / "run", again=True)
    again = Run.start(tiny_experiment(texts), tmp_path / "run", again=True)
    again.train()
    finished_run(texts, tmp_path / "undisturbed")
    assert result_of(tmp_path / "run") == result_of(tmp_path / "undisturbed")


def test_a_command_given_again_starts_what_was_killed_before_it_was_started(texts: Path, tmp_path: Path):
    (tmp_path / "run" / ".config.yaml.x.partial").mkdir(parents=True)
    run = Run.start(tiny_experiment(texts), tmp_path / "run", again=True)
    assert run.folder.config.exists()


def test_a_run_is_sent_to_another_process_whole(texts: Path, tmp_path: Path):
    run = tiny_run(texts, tmp_path / "run")
    sent = pickle.loads(pickle.dumps(run))
    assert sent.experiment == run.experiment
    assert sent.folder.path == run.folder.path
    assert torch.equal(sent.corpus.train, run.corpus.train)


def test_a_corpus_changed_since_is_refused(tmp_path: Path):
    texts = write_corpus(tmp_path / "texts")
    finished_run(texts, tmp_path / "run", epochs=1)
    (texts / "train.txt").write_text("entirely other words\n" * 200)
    for use in (lambda run: run.train(), lambda run: run.corpus):
        with pytest.raises(UserError, match=r"the corpus .* differs from the one in .*corpus.json"):
            use(Run.open(tmp_path / "run"))


def test_settings_changed_since_are_refused(texts: Path, tmp_path: Path):
    run = tiny_run(texts, tmp_path / "run", epochs=2)
    run.train()
    config = run.folder.config
    before = config.read_text()
    config.write_text(before.replace("epochs: 2", "epochs: 3").replace("lr: 4.0", "lr: 1.0"))
    with pytest.raises(UserError, match=r"config\.yaml was changed since .*, in optimizer\.lr, epochs: restore it"):
        Run.open(tmp_path / "run").train()
    config.write_text(before.replace("checkpoint_every: 10.0", "checkpoint_every: 5.0"))
    Run.open(tmp_path / "run").train()


def test_a_run_with_results_but_no_checkpoint_is_not_begun_anew(texts: Path, tmp_path: Path):
    run = tiny_run(texts, tmp_path / "run", epochs=2)
    run.train()
    model = run.folder.model.read_bytes()
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="has results but no checkpoint"):
        Run.open(tmp_path / "run").train()
    assert run.folder.model.read_bytes() == model


@pytest.mark.parametrize("missing", ["corpus.json", None])
def test_a_run_that_another_process_trains_is_left_untouched(texts: Path, tmp_path: Path, missing: str | None):
    run = tiny_run(texts, tmp_path / "run")
    stop_after(run, 15)
    run.folder.metrics.append(epoch_record(2))  # as the other process does right after its checkpoint
    if missing is not None:
        (tmp_path / "run" / missing).unlink()
    before = contents(tmp_path / "run")
    with run.folder.locked(), pytest.raises(UserError, match="another process is training the run"):
        Run.open(tmp_path / "run").train()
    assert contents(tmp_path / "run") == before
    Run.open(tmp_path / "run").train()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_loads_its_corpus_and_chooses_its_engine_once(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[str] = []
    for name in ("load_corpus", "choose_engine"):
        original = getattr(runs, name)

        def counted(*arguments: Any, name: str = name, original: Any = original) -> Any:
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(runs, name, counted)
    finished_run(texts, tmp_path / "run", epochs=1)
    assert calls == ["load_corpus", "choose_engine"]
    Run.open(tmp_path / "run").train()
    assert calls == ["load_corpus", "choose_engine"] * 2


# What is written down


def test_metrics_and_events_hold_what_listeners_are_told(texts: Path, tmp_path: Path):
    recorder = finished_run(texts, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    records = run.folder.metrics.read()
    assert records == recorder.epochs
    events = EventAccumulator(str(tmp_path / "run" / "events"))
    events.Reload()
    for tag, key in (("loss/valid", "valid_loss"), ("perplexity/train", "train_perplexity")):
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [10, 20, 30]
        assert [scalar.value for scalar in scalars] == pytest.approx(
            [getattr(record, key) for record in records], rel=1e-6
        )
    tags = set(events.Tags()["scalars"])
    assert {"rewiring/prune_rate", "density/rnn.weight_hh_l0/forget", "weights_above_0.1/decoder.weight"} <= tags


def test_the_best_model_is_the_one_kept(texts: Path, tmp_path: Path):
    recorder = finished_run(texts, tmp_path / "run", epochs=4, optimizer={"name": "adam", "lr": 0.2})
    tensors, metadata = load_tensors(tmp_path / "run" / "model.safetensors")
    assert bits(tensors) == bits(recorder.bests[-1])
    assert metadata["epoch"] == str(recorder.trainer.state.best_epoch)


def test_a_request_to_stop_leaves_a_checkpoint_of_that_update(texts: Path, tmp_path: Path):
    run = tiny_run(texts, tmp_path / "run")
    stop_after(run, 13)
    assert run.folder.checkpoints.steps() == [10, 13]
    assert not run.folder.summary.exists()


def test_topologies_are_written_once_in_a_checkpoint(texts: Path, tmp_path: Path):
    finished_run(texts, tmp_path / "run", epochs=1)
    state = Run.open(tmp_path / "run").folder.checkpoints.load().state["trainer"]
    assert "topologies" not in state["sparsifier"]
    assert state["shapes"] == state["sparsifier"]["shapes"]
    assert {name.removesuffix(".bits") for name in state["model"] if name.endswith(".bits")} == {*state["shapes"]}


def test_another_number_of_threads_is_told(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stop_after(tiny_run(texts, tmp_path / "run"), 3)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    recorder = stop_after(Run.open(tmp_path / "run"), 3)
    assert recorder.notes == [
        "the run was started with 1 threads and continues with 8: results may differ in the last digits"
    ]


# What it came to


ADAM = {"name": "adam", "lr": 0.02}


def test_the_summary_is_of_the_best_model_and_of_exact_counts(texts: Path, tmp_path: Path):
    run, recorder = tiny_run(texts, tmp_path / "run", optimizer=ADAM), Recorder()
    summary = run.train(recorder)
    trainer, best, corpus = recorder.trainer, run.model(), run.corpus
    assert summary["test_perplexity"] == perplexity(evaluate(best, corpus.test, batch_size=2, window=11))
    assert summary["valid_perplexity"] == perplexity(trainer.state.best_valid_loss)
    assert summary["valid_perplexity"] == evaluate_splits(best, run.experiment, corpus)["valid_perplexity"]
    assert summary["unigram_perplexity"] == unigram_perplexity(corpus)
    assert summary["vocabulary"] == len(corpus.vocabulary)
    assert summary["active_weights"] == budget_of(trainer)
    assert summary["total_weights"] == sum(w.mask.numel() for w in trainer.sparsifier.weights)
    dense = sum(p.numel() for p in best.parameters()) - summary["total_weights"]
    assert summary["active_parameters"] - summary["active_weights"] == dense > 0
    assert summary["total_parameters"] - summary["total_weights"] == dense
    assert summary["sparsity"] == pytest.approx(0.6, abs=0.01)
    assert (summary["epochs"], summary["steps"], summary["seed"], summary["threads"]) == (3, 30, 5, 1)


def test_a_best_model_that_is_missing_or_damaged_is_the_users_error(texts: Path, tmp_path: Path):
    finished_run(texts, tmp_path / "run", epochs=1)
    run = Run.open(tmp_path / "run")
    data = bytearray(run.folder.model.read_bytes())
    data[-3] ^= 1
    run.folder.model.write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        run.model()
    run.folder.model.unlink()
    with pytest.raises(UserError, match=r"model\.safetensors does not exist"):
        run.model()


# What goes wrong


def test_divergence_is_the_users_error_that_keeps_the_last_checkpoint(texts: Path, tmp_path: Path):
    run = tiny_run(texts, tmp_path / "run", checkpoint_every=1e-9, clip=None)

    def spoil(_: object) -> None:
        if len(recorder.steps) == 14:
            next(recorder.trainer.model.parameters()).data.fill_(float("nan"))

    recorder = Recorder(spoil)
    with pytest.raises(UserError) as caught:
        run.train(recorder)
    text = str(caught.value)
    assert text.startswith("training diverged: embedding.weight contains NaN or infinity after update 14; ")
    assert "the last good checkpoint, of update 13, is kept" in text
    assert "Try a smaller optimizer.lr (now 4)" in text
    assert "clip (now None)" in text
    assert run.folder.checkpoints.steps()[-1] == 13


def test_a_run_that_diverges_at_once_says_that_nothing_is_kept(texts: Path, tmp_path: Path):
    class Spoiler(Listener):
        def on_start(self, trainer: Trainer) -> None:
            next(trainer.model.parameters()).data.fill_(float("nan"))

    with pytest.raises(UserError, match=r"became nan at update 1; there is no checkpoint yet\. Try"):
        tiny_run(texts, tmp_path / "run").train(Spoiler())
