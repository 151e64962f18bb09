"""Interrupted, killed or damaged at any moment, a resumed run ends with the bits of one that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.run import Run
from tiny_runs import epoch_record, finished_run, result_of, stop_after, tiny_run, tiny_words

pytestmark = pytest.mark.slow

AVERAGING = {"name": "snt-asgd", "lr": 30.0, "nonmono": 0, "average_from": 1}
AVERAGES = [{"kind": "nt", "from": 2}, {"kind": "snt", "from": 0.3}, {"kind": "nt", "from": "trigger"}]
DROP = {"factor": 2.0, "patience": 0}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "snt-asgd": {"optimizer": AVERAGING, "epochs": 4, "variable_window": True},
    "nt-asgd": {"optimizer": {**AVERAGING, "name": "nt-asgd"}, "epochs": 4, "restart_at": [3]},
    "adam": {"optimizer": {"name": "adam", "lr": 0.1, "drop": DROP}, "rewire_every": 4},
    "several averages": {"optimizer": AVERAGING, "epochs": 4, "averages": AVERAGES, "restart_at": [3]},
    "averages of adam": {"optimizer": {"name": "adam", "lr": 0.1}, "averages": AVERAGES, "engine": "packed"},
    "momentum-sgd": {"optimizer": {"name": "momentum-sgd", "drop": DROP}, "variable_window": True, "sub_batches": 2},
    "mixture": {
        "model": {"name": "awd-lstm-mos", "embedding": 6, "hidden": 8, "hidden_last": 6, "layers": 2, "experts": 3},
        "optimizer": {"name": "sgd"},
        "ar": 1.0,
        "tar": 1.0,
        "epochs": 2,
    },
}


# In one process, stopped after any update


@pytest.fixture(scope="module")
def undisturbed(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of each experiment, its number of updates, and the epoch in which averaging started."""
    results = {}
    for name, changes in EXPERIMENTS.items():
        path = tmp_path_factory.mktemp(name) / "run"
        recorder = finished_run(texts, path, **changes)
        started = [record.step for record in recorder.epochs if not record.averaging][-1]
        results[name] = (result_of(path), recorder.trainer.state.step, started)
    return results


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_stopped_again_and_again_ends_the_same(
    texts: Path, tmp_path: Path, undisturbed: dict[str, Any], name: str
):
    expected, updates, _ = undisturbed[name]
    tiny_run(texts, tmp_path / "run", **EXPERIMENTS[name])
    for _ in range(updates // 7):
        stop_after(Run.open(tmp_path / "run"), 7)
    Run.open(tmp_path / "run").train()
    assert result_of(tmp_path / "run") == expected


@pytest.mark.parametrize("offset", [-1, 0, 1, 6])
def test_stopped_around_the_start_of_averaging_a_run_ends_the_same(
    texts: Path, tmp_path: Path, undisturbed: dict[str, Any], offset: int
):
    expected, updates, averaging_starts = undisturbed["snt-asgd"]
    assert 0 < averaging_starts < updates, "averaging must start inside the run for this test to say anything"
    run = tiny_run(texts, tmp_path / "run", **EXPERIMENTS["snt-asgd"])
    stop_after(run, averaging_starts + offset)
    assert run.folder.checkpoints.steps()[-1] == averaging_starts + offset
    run.train()
    assert result_of(tmp_path / "run") == expected


def test_checkpoints_after_every_update_do_not_change_the_result(
    texts: Path, tmp_path: Path, undisturbed: dict[str, Any]
):
    changes = {**EXPERIMENTS["snt-asgd"], "checkpoint_every": 1e-9}
    finished_run(texts, tmp_path / "run", **changes)
    assert result_of(tmp_path / "run") == undisturbed["snt-asgd"][0]


# Real processes, really killed

# Importing torch takes seconds, so one process imports it and forks the others: for each moment one that is killed
# there, and one that resumes.
KILLED = """
import json, os, signal, sys
from pathlib import Path

import torch
import torch._dynamo  # what the first optimizer would import
import tensorboard.summary.writer.record_writer
from selfish_rnn import cli
from selfish_rnn import files
from selfish_rnn.runs import checkpoints, folder as run_folder, recording, run as running
from selfish_rnn.training import trainer

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def kill_at(owner, name, count, matches=lambda *arguments: True, after=False, halfway=None):
    original = getattr(owner, name)
    left = count

    def patched(*arguments, **options):
        nonlocal left
        hit = False
        if matches(*arguments):
            left -= 1
            hit = left == 0
        if hit and halfway:
            halfway(original, *arguments, **options)
        if hit and not after:
            kill()
        result = original(*arguments, **options)
        if hit:
            kill()
        return result

    setattr(owner, name, patched)

def write_half(save_file, tensors, path, metadata):
    save_file(tensors, path, metadata)
    os.truncate(path, os.path.getsize(path) // 2)

def to(name):
    def matches(*arguments):
        return any(isinstance(item, (str, Path)) and Path(item).name.startswith(name) for item in arguments)

    return matches

MOMENTS = {
    "before the vocabulary is written": lambda: kill_at(run_folder.RunFolder, "write_corpus", 1),
    "inside the first epoch": lambda: kill_at(trainer.Trainer, "_update", 5),
    "inside a later epoch": lambda: kill_at(trainer.Trainer, "_update", 17, after=True),
    "while the first best model is written": lambda: kill_at(files, "save_file", 1, to("model."), halfway=write_half),
    "after a best model is written": lambda: kill_at(os, "replace", 2, to("model."), after=True),
    "while the best model of an average is written":
        lambda: kill_at(files, "save_file", 1, to("nt-"), halfway=write_half),
    "after the best model of an average is written": lambda: kill_at(os, "replace", 2, to("nt-"), after=True),
    "before the first record": lambda: kill_at(recording.RunRecorder, "on_epoch", 1),
    "between the first record and its checkpoint": lambda: kill_at(recording.RunRecorder, "on_epoch", 1, after=True),
    "while the tensors of the first checkpoint are written":
        lambda: kill_at(files, "save_file", 1, to("step-"), halfway=write_half),
    "while the tensors of a checkpoint are written":
        lambda: kill_at(files, "save_file", 2, to("step-"), halfway=write_half),
    "between the tensors and the JSON of a checkpoint": lambda: kill_at(checkpoints, "write_atomically", 2),
    "before old checkpoints are forgotten": lambda: kill_at(checkpoints.CheckpointStore, "_forget_old", 3),
    "while an old checkpoint is forgotten": lambda: kill_at(os, "unlink", 1, to("step-"), after=True),
    "before the summary": lambda: kill_at(running.Run, "_outcome", 1),
    "while the summary is written": lambda: kill_at(os, "replace", 1, to("summary.")),
}

def in_child(words, prepare=lambda: None):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["selfish-rnn", *words]
        code = 99
        try:
            prepare()
            cli.main()
        except SystemExit as left:
            code = left.code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

runs, words = Path(sys.argv[1]), sys.argv[2:]
codes = {}
for moment, prepare in MOMENTS.items():
    run = str(runs / moment)
    codes[moment] = [in_child(["train", *words, "--run", run], prepare), in_child(["resume", run])]
print(json.dumps(codes))
"""

KILL_WORDS: dict[str, Any] = {"optimizer": AVERAGING, "variable_window": True, "epochs": 3, "averages": AVERAGES}


def process(code: str, *words: object) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


COMMAND = "from selfish_rnn.cli import main; main()"


@pytest.fixture(scope="module")
def left_alone(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("alone") / "run"
    finished_run(texts, path, **KILL_WORDS)
    return result_of(path)


def test_killed_at_any_moment_a_run_resumes_to_the_same_bits(texts: Path, tmp_path: Path, left_alone: dict[str, Any]):
    output, errors = process(KILLED, tmp_path, *tiny_words(texts, **KILL_WORDS)).communicate()
    assert errors == ""
    codes = json.loads(output)
    assert len(codes) > 10
    assert codes == {moment: [-signal.SIGKILL, 0] for moment in codes}
    for moment in codes:
        assert result_of(tmp_path / moment) == left_alone, moment
        assert (tmp_path / moment / "vocabulary.json").exists(), moment


# Says where it is, then waits for a signal inside the fourteenth update.
SLOW = (
    """
import signal, sys
from selfish_rnn.training.trainer import Trainer

update = Trainer._update
def watched(self, *arguments, **options):
    if self.state.step == 13:
        print("update 14", flush=True)
        stop = signal.getsignal(signal.SIGINT).__self__
        while not stop.requested:
            signal.sigtimedwait([], 0.01)
    return update(self, *arguments, **options)
Trainer._update = watched
"""
    + COMMAND
)


def held_in_update_14(texts: Path, run: Path) -> subprocess.Popen[str]:
    child = process(SLOW, "train", *tiny_words(texts, **KILL_WORDS), "--run", run)
    assert child.stdout is not None
    assert any(line == "update 14\n" for line in child.stdout)
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_from_outside_and_a_real_resume(
    texts: Path, tmp_path: Path, left_alone: dict[str, Any], number: signal.Signals
):
    run = tmp_path / "run"
    child = held_in_update_14(texts, run)
    os.kill(child.pid, number)
    output, errors = child.communicate()
    assert errors == ""
    if number == signal.SIGINT:
        assert child.returncode == 130
        assert output.endswith(f"Stopped; resume with: selfish-rnn resume {run}\n")
        assert (run / "checkpoints/step-14.json").exists()
    else:
        assert child.returncode == -signal.SIGKILL
    resumed = process(COMMAND, "resume", run)
    output, errors = resumed.communicate()
    assert (resumed.returncode, errors) == (0, "")
    assert result_of(run) == left_alone


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_process_is_refused_and_changes_nothing_of_a_run_in_training(
    texts: Path, tmp_path: Path, left_alone: dict[str, Any]
):
    """What is there is more than the last checkpoint knows of, so that a resume would cut it back; and less."""
    run = tmp_path / "run"
    child = held_in_update_14(texts, run)
    RunFolder(run).metrics.append(epoch_record(2))
    corpus = (run / "corpus.json").read_bytes()
    (run / "corpus.json").unlink()
    before = contents(run)
    for command in (["resume", run], ["train", *tiny_words(texts), "--run", run]):
        second = process(COMMAND, *command)
        _, errors = second.communicate()
        assert second.returncode == 2
        assert "another process is training the run" in errors or "already holds a run" in errors
        assert contents(run) == before
    (run / "corpus.json").write_bytes(corpus)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    resumed = process(COMMAND, "resume", run)
    resumed.communicate()
    assert resumed.returncode == 0
    assert result_of(run) == left_alone
