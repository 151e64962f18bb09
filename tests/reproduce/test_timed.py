"""Runs that end by the clock, with processes that only pretend to train."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from selfish_rnn.corpora import Vocabulary
from selfish_rnn.experiment.presets import to_yaml
from selfish_rnn.reproduce.execution import Executor
from selfish_rnn.reproduce.paper.figures import TIME_TO_QUALITY
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import TINY
from selfish_rnn.runs.logs import MetricsLog
from selfish_rnn.scheduling.scheduler import SELFISH_RNN, Job, Process
from tiny_runs import epoch_record

SCALE = replace(TINY, marks=2)
RUN = PlannedRun(SCALE, TIME_TO_QUALITY.rows[-1].case, 1)
BUDGET = 0.8


class Pretended:
    """Works until it is asked to stop; an evaluation ends at once."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int, /) -> None:
        assert number == signal.SIGINT
        self.code = 130


class Pretender:
    """Launches processes that pretend: an epoch each time a run is trained, a better network at each evaluation."""

    def __init__(self, folder: Path, fail: str = "") -> None:
        self.folder, self.fail = folder, fail
        self.commands: list[str] = []
        self.epochs = 0

    def __call__(self, job: Job, log: IO[bytes]) -> Process:
        what = job.command()[len(SELFISH_RNN)]
        self.commands.append(what)
        if what == self.fail:
            return Pretended(2)
        if what == "evaluate":
            log.write(f"valid perplexity {100 - self.epochs}.00\ntest perplexity 1,{90 - self.epochs}.50\n".encode())
            log.flush()
            return Pretended(0)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.yaml").write_text(to_yaml(RUN.experiment))
        (self.folder / "vocabulary.json").write_text(Vocabulary(("<eos>",)).to_json())
        self.epochs += 1
        MetricsLog(self.folder / "metrics.jsonl").append(epoch_record(self.epochs, seconds=0.01 * self.epochs))
        return Pretended(None)


@pytest.fixture
def executor(tmp_path: Path) -> Executor:
    return Executor(SCALE, tmp_path / "runs", Results(tmp_path / "results", "tiny"))


@pytest.mark.slow
def test_a_run_is_stopped_measured_and_continued_at_every_mark(executor: Executor) -> None:
    pretender = Pretender(executor.folder(RUN))
    progress = replace(executor, launch=pretender).train_timed([RUN], BUDGET)
    assert pretender.commands == ["train", "evaluate", "resume", "evaluate"]
    assert [outcome.state for outcome in progress.outcomes] == ["out of time"]
    result = executor.results.get(RUN)
    assert result is not None
    assert result.points == [
        {"seconds": BUDGET / 2, "valid_perplexity": 99.0, "test_perplexity": 189.5},
        {"seconds": BUDGET, "valid_perplexity": 98.0, "test_perplexity": 188.5},
    ]
    assert replace(executor, launch=pretender).train_timed([RUN], BUDGET).outcomes == []
    assert len(pretender.commands) == 4


@pytest.mark.slow
def test_time_that_was_spent_before_a_kill_is_not_spent_again(executor: Executor) -> None:
    pretender = Pretender(executor.folder(RUN))
    first = replace(executor, launch=pretender, scale=replace(SCALE, marks=1))
    first.train_timed([RUN], BUDGET / 2)
    next(executor.results.folder.rglob("*.json")).unlink()
    again = replace(executor, launch=pretender, results=Results(executor.results.folder.parent, "tiny"))
    again.train_timed([RUN], BUDGET)
    # The first half is over and measured already.
    assert pretender.commands == ["train", "evaluate", "resume", "evaluate"]


def test_a_run_that_fails_is_told_and_has_no_result(executor: Executor) -> None:
    progress = replace(executor, launch=Pretender(executor.folder(RUN), fail="train")).train_timed([RUN], BUDGET)
    assert [outcome.state for outcome in progress.outcomes] == ["failed"]
    assert executor.results.get(RUN) is None


@pytest.mark.slow
def test_an_evaluation_that_fails_is_told(executor: Executor) -> None:
    progress = replace(executor, launch=Pretender(executor.folder(RUN), fail="evaluate")).train_timed([RUN], BUDGET)
    assert "failed" in [outcome.state for outcome in progress.outcomes]
