"""``selfish-rnn reproduce`` as a person or a script uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from reproduce_cases import made_up
from test_adoption import run_folder, settings
from typer.testing import CliRunner

from selfish_rnn.cli.reproduce import reproduce
from selfish_rnn.errors import UserError
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.results import Results

APP = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
APP.command()(reproduce)

IN_A_PROCESS = (sys.executable, "-c", "import test_command; test_command.APP()")


def said(*words: object) -> Any:
    answer = CliRunner().invoke(APP, [str(word) for word in words])
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer


def test_bare_it_lists_the_items_with_what_is_finished_and_how_long_the_rest_takes(tmp_path: Path) -> None:
    results = Results(tmp_path, "small")
    for seed in (1, 2):
        results.save(*made_up(Case("stacked-lstm"), seed, 100.0))
    lines = {line.split()[0]: line.split()[-4:] for line in said("--results", tmp_path).output.splitlines() if line}
    assert all(item in lines for item in ITEMS)
    # Three seeds of two rules and five of Selfish and by matrix, 720 seconds each, as the two that are finished took.
    assert lines["gate-rules"] == ["16", "2", "3.2", "2.8"]
    # Nine runs of two hours on all cores.
    hours = f"{18 * (os.cpu_count() or 1):.3g}"
    assert lines["time-to-quality"] == ["9", "0", hours, hours]


def test_a_dry_run_prints_commands_and_starts_nothing(tmp_path: Path) -> None:
    Results(tmp_path, "small").save(*made_up(Case("stacked-lstm"), 1, 100.0))
    answer = said("gate-rules", "--results", tmp_path, "--runs", tmp_path / "runs", "--seeds", "1", "--dry-run")
    lines = answer.output.splitlines()
    assert [line.split()[0] for line in lines] == ["to", "to", "finished", "to"]
    base = (
        "to do     selfish-rnn train ptb-stacked-lstm-small model.init_range=0.3 optimizer.average_from=20 "
        "optimizer.nonmono=5 'restart_at=[36, 52]' model.dropout="
    )
    assert lines[0].startswith(base)
    assert lines[0].endswith(
        " method=selfish method.redistribution=gates-by-magnitude optimizer.name=snt-asgd seed=1"
        "  # stacked-lstm/gates-by-magnitude-snt-asgd-s0.67-seed1"
    )
    assert "averages=[{kind: nt, from: 20}, {kind: snt, from: 20, restart: false}" in lines[2]
    assert lines[3].endswith("  # stacked-lstm/by-matrix-snt-asgd-s0.67-seed1")
    assert not (tmp_path / "runs").exists()


def test_only_some_runs_of_an_item_are_asked_for_by_parts_of_their_names(tmp_path: Path) -> None:
    words = ("time-to-quality", "gates", "--results", tmp_path, "--dry-run")
    every = [line.split("# ")[1] for line in said(*words).output.splitlines()]
    some = [line.split("# ")[1] for line in said(*words, "--only", "s0.9-,rhn").output.splitlines()]
    assert some == [name for name in every if "s0.9-" in name or "rhn" in name]
    assert 0 < len(some) < len(every)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gates", "--only", "s0.99"], r"no run of gates has s0.99 in its name; --dry-run lists the names"),
        (["gate-rule"], r"unknown item 'gate-rule' \(did you mean 'gate-rules'\?\)"),
        (["--scale", "smal"], r"unknown scale 'smal' \(did you mean 'small'\?\)"),
        (["gates", "--seeds", "1;2"], "--seeds must be integers"),
        (["--adopt"], "--adopt needs run folders, and --commit"),
    ],
)
def test_what_is_wrong_is_one_clear_line(words: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told) as caught:
        said(*words, "--results", tmp_path)
    assert "\n" not in str(caught.value)


def test_folders_are_adopted_each_by_itself(tmp_path: Path) -> None:
    good = run_folder(tmp_path / "good", settings("seed=3"))
    bad = run_folder(tmp_path / "bad", settings("epochs=59"))
    answer = said("--adopt", bad, good, "--commit", "b64a65b", "--results", tmp_path / "results")
    assert answer.exit_code == 1
    first, second = answer.output.splitlines()
    assert first.startswith(f"refused: {bad} matches no run of scale small; the nearest has: epochs 59 instead")
    assert second.startswith(f"{good} is stacked-lstm/selfish-snt-asgd-s0.67-seed3: ")
    assert said("--adopt", good, "--commit", "b64a65b", "--results", tmp_path / "results").exit_code == 0


def test_a_run_begun_with_other_settings_is_not_continued(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "small" / "stacked-lstm" / "selfish-snt-asgd-s0.67-seed1"
    folder.parent.mkdir(parents=True)
    run_folder(folder, settings("epochs=59"), finished=False)
    with pytest.raises(UserError, match="was started with epochs 59 instead of 60; delete it, or give another --runs"):
        said("gate-rules", "--seeds", 1, "--runs", tmp_path / "runs", "--results", tmp_path / "results")


def processes_of(folder: Path) -> list[int]:
    """The processes that train runs below a folder."""
    result = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        words = command.split(b"\0")
        if f"{folder}/".encode() in command and (b"train" in words or b"resume" in words):
            result.append(int(entry.name))
    return result


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("what", ["the scheduler alone", "all processes"])
def test_killed_and_started_again_it_repeats_no_finished_run(what: str, tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    words = ["gate-rules", "--scale", "tiny", "--runs", str(runs), "--results", str(results)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    scheduler = subprocess.Popen([*IN_A_PROCESS, *words], env=environment, start_new_session=True)
    while not (finished := sorted(results.glob("tiny/*/*-seed1.json"))) or not processes_of(runs):
        assert scheduler.poll() is None
        time.sleep(0.05)
    scheduler.kill()
    scheduler.wait()
    for process in processes_of(runs) if what == "all processes" else []:
        os.kill(process, signal.SIGKILL)
    name = json.loads(finished[0].read_text())["run"]
    before = finished[0].stat().st_mtime_ns, (runs / "tiny" / name / "summary.json").stat().st_mtime_ns

    again = subprocess.run([*IN_A_PROCESS, *words], env=environment, capture_output=True, text=True, check=True)
    assert f"{name}  finished before" in again.stdout
    assert before == (finished[0].stat().st_mtime_ns, (runs / "tiny" / name / "summary.json").stat().st_mtime_ns)
    planned = len(ITEMS["gate-rules"].planned_cases)
    assert len(list(results.glob("tiny/*/*-seed1.json"))) == planned
    logs = {log.name: log.read_text().count("run folder") for log in runs.rglob("*.log")}
    assert len(logs) == planned
    assert logs[f"{Path(name).name}.log"] == 1
    assert sum(logs.values()) <= (planned if what == "the scheduler alone" else planned + 1)


@pytest.mark.slow
def test_ctrl_c_stops_runs_with_a_checkpoint(tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    words = ["time-to-quality", "--scale", "tiny", "--seconds", "600", "--runs", str(runs), "--results", str(results)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    scheduler = subprocess.Popen([*IN_A_PROCESS, *words], env=environment, stdout=subprocess.PIPE, text=True)
    while not list(runs.rglob("metrics.jsonl")):
        assert scheduler.poll() is None
        time.sleep(0.05)
    scheduler.send_signal(signal.SIGINT)
    out, _ = scheduler.communicate()
    assert scheduler.returncode == 130
    assert "Stopped; the same command resumes." in out
    (begun,) = runs.rglob("checkpoints")
    assert list(begun.glob("*.safetensors"))
    assert not list(results.rglob("*.json"))
