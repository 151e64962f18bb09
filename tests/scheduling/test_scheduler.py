"""Many commands, a few at a time: what is done is not done again, whatever happens to whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from selfish_rnn.runs.logs import MetricsLog
from selfish_rnn.scheduling import scheduler
from selfish_rnn.scheduling.jobs import RunProgress, read_progress
from selfish_rnn.scheduling.scheduler import Job, Progress, run
from tiny_runs import epoch_record

WORK = """
import pathlib, signal, sys, time
folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
folder.mkdir(exist_ok=True)
signal.signal(signal.SIGINT, lambda *_: (folder.joinpath("asked").touch(), sys.exit(130)))
with open(folder / "starts", "a") as starts: starts.write("x")
time.sleep(seconds)
folder.joinpath("done").touch()
"""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "POLL_SECONDS", 0.02)


def job(folder: Path, seconds: float = 0.0, code: str = WORK, limit: float | None = None) -> Job:
    return Job(
        name=folder.name,
        folder=folder,
        command=lambda: [sys.executable, "-c", code, str(folder), str(seconds)],
        done=(folder / "done").exists,
        limit=limit,
    )


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text())


def states(progress: Progress) -> dict[str, str]:
    return {outcome.job.name: outcome.state for outcome in progress.outcomes}


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.02)


def test_all_jobs_are_done_no_more_at_a_time_than_workers(tmp_path: Path) -> None:
    most = 0

    def listen(progress: Progress) -> None:
        nonlocal most
        most = max(most, len(progress.running))

    progress = run([job(tmp_path / name, 0.1) for name in "abcde"], 2, listen)
    assert states(progress) == dict.fromkeys("abcde", "finished")
    assert most == 2


def test_what_is_done_is_not_started(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "done").touch()
    assert states(run([job(tmp_path / name) for name in "ab"], 1)) == {"a": "finished before", "b": "finished"}
    assert not (tmp_path / "a" / "starts").exists()


def test_a_job_that_fails_does_not_stop_the_others_and_its_log_is_told(tmp_path: Path) -> None:
    bad = job(tmp_path / "bad", code="import sys; print('first'); sys.exit('no more')")
    progress = run([bad, job(tmp_path / "good")], 1)
    assert states(progress) == {"bad": "failed", "good": "finished"}
    (failed,) = progress.failed
    assert failed.code == 1
    assert sorted(failed.tail()) == ["first", "no more"]


def test_a_command_that_ends_well_without_a_result_has_failed(tmp_path: Path) -> None:
    assert states(run([job(tmp_path / "a", code="")], 1)) == {"a": "failed"}


def test_a_job_out_of_time_is_asked_to_stop(tmp_path: Path) -> None:
    def listen(progress: Progress) -> None:
        # The limit may pass before Python has started; then there is nobody to ask.
        if progress.running:
            wait_for(tmp_path / "slow" / "starts")

    progress = run([job(tmp_path / "slow", 60, limit=0.2), job(tmp_path / "fast", limit=60)], 2, listen)
    assert states(progress) == {"slow": "out of time", "fast": "finished"}
    assert (tmp_path / "slow" / "asked").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_passed_on_and_nothing_new_is_started(tmp_path: Path, number: int) -> None:
    def interrupt() -> None:
        wait_for(tmp_path / "a" / "starts")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    before = signal.getsignal(number)
    progress = run([job(tmp_path / "a", 60), job(tmp_path / "b")], 1)
    thread.join()
    assert states(progress) == {"a": "stopped", "b": "stopped"}
    assert (tmp_path / "a" / "asked").exists()
    assert not (tmp_path / "b").exists()
    assert signal.getsignal(number) == before


@pytest.mark.slow
def test_a_job_left_over_from_a_killed_scheduler_is_waited_for(tmp_path: Path) -> None:
    code = f"""
import sys, pathlib
sys.path[:0] = {sys.path!r}
from test_scheduler import job, run
run([job(pathlib.Path({str(tmp_path / "a")!r}), 3.0)], 1)
"""
    scheduler = subprocess.Popen([sys.executable, "-c", code])
    wait_for(tmp_path / "a" / "starts")
    scheduler.kill()
    scheduler.wait()
    seen = []
    progress = run(
        [job(tmp_path / name, 3.0 if name == "a" else 0.0) for name in "ab"],
        1,
        lambda now: seen.append(len(now.elsewhere)),
    )
    assert states(progress) == {"a": "finished before", "b": "finished"}
    assert starts(tmp_path / "a") == 1
    assert max(seen) == 1


def test_progress_is_read_from_a_run_that_is_being_trained(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "none") == RunProgress()
    (tmp_path / "config.yaml").write_text("corpus: ptb\nepochs: 10\n")
    assert read_progress(tmp_path) == RunProgress(epochs=10)
    metrics = MetricsLog(tmp_path / "metrics.jsonl")
    metrics.append(epoch_record(3))
    metrics.append(epoch_record(4, valid_perplexity=310.5, seconds=8.0))
    with metrics.path.open("a") as file:
        file.write('{"epoch": 5, "valid')
    assert read_progress(tmp_path) == RunProgress(4, 10, 310.5, 12.0)


KILLED = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
with open(folder / "starts", "a") as starts: starts.write("x")
if len((folder / "starts").read_text()) <= float(sys.argv[2]): os.kill(os.getpid(), signal.SIGKILL)
folder.joinpath("done").touch()
"""


def test_a_job_whose_process_is_killed_is_started_again(tmp_path: Path) -> None:
    progress = run([job(tmp_path / "a", 2, KILLED), job(tmp_path / "b")], 1)
    assert states(progress) == {"a": "finished", "b": "finished"}
    assert starts(tmp_path / "a") == 3
    assert [one.name for one in progress.killed] == ["a", "a"]


def test_a_job_that_is_always_killed_fails_in_the_end(tmp_path: Path) -> None:
    always = job(tmp_path / "a", 1000, KILLED)
    assert states(run([always], 1)) == {"a": "failed"}
    assert starts(tmp_path / "a") == 1 + always.retries
