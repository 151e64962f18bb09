"""Display of many runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from selfish_rnn.cli.many_runs import RunsDisplay
from selfish_rnn.runs.logs import MetricsLog
from selfish_rnn.scheduling.scheduler import Job, Outcome, Progress
from tiny_runs import epoch_record


def job(folder: Path) -> Job:
    return Job(folder.name, folder, lambda: [], lambda: False)


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    """One job of each kind."""
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "config.yaml").write_text("epochs: 60\n")
    MetricsLog(tmp_path / "running" / "metrics.jsonl").append(epoch_record(20, valid_perplexity=333.25, seconds=300.0))
    elsewhere = job(tmp_path / "elsewhere")
    return Progress(
        waiting=[elsewhere, job(tmp_path / "waiting")],
        running=[job(tmp_path / "running")],
        elsewhere=[elsewhere],
        outcomes=[Outcome(job(tmp_path / "done"), "finished"), Outcome(job(tmp_path / "bad"), "failed", code=1)],
        killed=[job(tmp_path / "done")],
    )


def shown(progress: Progress, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    with RunsDisplay(console) as display:
        display(progress)
        display(progress)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_where_every_run_stands(progress: Progress) -> None:
    text = shown(progress, terminal=True)
    rows = [line.split() for line in text.splitlines()]
    assert ["running", "running", "20/60", "333.25", "10", "min", "00", "s"] in rows
    for row in (["elsewhere", "elsewhere"], ["done", "finished"], ["bad", "failed"], ["waiting", "waiting"]):
        assert row in rows
    assert "1 done, 2 running, 1 failed, 1 waiting" in text


def test_a_log_has_a_line_for_what_happens(progress: Progress) -> None:
    assert shown(progress, terminal=False).splitlines() == [
        "done  finished",
        "bad  failed",
        "running  started",
        "done  killed, resumes from its checkpoint (retry 1 of 3)",
    ]
