"""Metrics and events keep exactly what belongs to the run, through kills, resumes and full disks."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from selfish_rnn.errors import UserError
from selfish_rnn.runs.logs import EventLog, MetricsLog
from tiny_runs import epoch_record

FULL = Path("/dev/full")
needs_full_device = pytest.mark.skipif(
    not FULL.is_char_device(), reason="this system has no /dev/full to stand for a full disk"
)


def line_of(epoch: int) -> bytes:
    return json.dumps(epoch_record(epoch).to_json()).replace("NaN", '"NaN"').encode() + b"\n"


def test_records_come_back_and_are_plain_json(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.read() == []
    assert log.last() is None
    assert log.truncate_after(3) == 0
    written = [
        epoch_record(1, train_loss=0.1 + 0.2, valid_loss=1.0, density={"m": {"forget": 0.1, "all": 1 / 3}}),
        epoch_record(2, train_loss=-math.inf, valid_loss=math.inf, measures={"live_units": {"rnn": [3, math.inf]}}),
    ]
    for record in written:
        log.append(record)
    assert log.read() == written
    assert log.last() == written[-1]
    log.append(epoch_record(3, valid_loss=math.nan))
    assert math.isnan(log.read()[-1].valid_loss)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for line in log.path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_truncation_drops_later_records_and_a_torn_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for epoch in (1, 2, 3):
        log.append(epoch_record(epoch, train_loss=epoch / 3))
    before = log.path.read_bytes().splitlines(keepends=True)
    torn = before[2][:-5]
    with log.path.open("ab") as file:
        file.write(torn)
    assert len(log.read()) == 3, "the torn line is left out"
    assert log.last() == log.read()[-1]
    assert log.truncate_after(20) == 2
    assert log.path.read_bytes() == before[0] + before[1]
    assert log.truncate_after(20) == 0
    log.append(epoch_record(3))
    assert [record.step for record in log.read()] == [10, 20, 30]


@pytest.mark.parametrize("cut", [0, 1, 5, 20, 21])
def test_any_torn_end_is_dropped(tmp_path: Path, cut: int) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(epoch_record(1))
    kept = log.path.read_bytes()
    log.append(epoch_record(2, measures={"name": "é"}))
    log.path.write_bytes(kept + log.path.read_bytes()[len(kept) : len(kept) + cut])
    log.truncate_after(50)
    assert log.path.read_bytes() == kept
    log.append(epoch_record(2))
    assert [record.epoch for record in log.read()] == [1, 2]


def test_damage_in_the_middle_is_named_and_a_resume_goes_on(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.path.write_bytes(line_of(1) + b"\0\0\0\0\n\xff\n[1]\n" + b'{"epoch": 1}\n' + line_of(2))
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl"):
        log.read()
    last = log.last()
    assert last is not None
    assert last.epoch == 2
    assert log.truncate_after(20) == 4
    assert [record.epoch for record in log.read()] == [1, 2]


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.path.write_bytes(line_of(1) + b'{"epoch": 2}\n')
    with pytest.raises(UserError, match=r"^line 2 of .*metrics\.jsonl has no valid step .*: delete that line$"):
        log.read()


@needs_full_device
def test_a_full_disk_is_said_clearly(tmp_path: Path) -> None:
    # Only appending may meet the device: an atomic write would replace it, which root is allowed to do.
    link = tmp_path / "metrics.jsonl"
    link.symlink_to(FULL)
    with pytest.raises(UserError, match=r"metrics\.jsonl: the disk is full; nothing .* lost: free some space$"):
        MetricsLog(link).append(epoch_record(1))
    assert FULL.is_char_device()


@needs_full_device
def test_a_full_disk_stops_events_without_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    events = EventLog(tmp_path)
    events.scalars({"loss": 1.0}, step=1)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.symlink_to(FULL)
    with pytest.raises(UserError, match=r"tfevents.*the disk is full"):
        events.scalars({"loss": 1.0}, step=2)
    assert FULL.is_char_device()
    monkeypatch.setattr(os, "mkdir", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(UserError, match="the disk is full"):
        EventLog(tmp_path / "new").scalars({"loss": 1.0}, step=1)
    assert capfd.readouterr() == ("", "")


def test_a_failed_append_leaves_no_torn_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(epoch_record(1))
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 5, limits[1]))
    try:
        with pytest.raises(UserError, match=r"metrics\.jsonl"):
            log.append(epoch_record(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.append(epoch_record(3))
    assert [record.epoch for record in log.read()] == [1, 3]


def test_tensorboard_reads_the_events_and_hides_what_a_resume_repeats(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = EventLog(tmp_path)
    for step in (1, 2, 3):
        first.scalars({"loss": float(step), "density/lstm.weight_hh_l0/input": 0.33}, step)
    resumed = EventLog(tmp_path, resumed_at=2)
    resumed.scalars({"loss": 30.0}, step=3)
    resumed.scalars({"loss": 40.0}, step=4)
    assert len(list(tmp_path.iterdir())) == 2
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1), (2, 2), (3, 30), (4, 40)]
    assert [event.step for event in events.Scalars("density/lstm.weight_hh_l0/input")] == [1, 2]


def test_a_torn_event_file_does_not_hide_the_resumed_one(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    EventLog(tmp_path).scalars({"loss": 1.0}, 1)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 3])
    EventLog(tmp_path, resumed_at=1).scalars({"loss": 2.0}, 2)
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2]


@pytest.mark.slow
def test_importing_is_lazy_and_quiet(tmp_path: Path) -> None:
    code = f"""
import sys, selfish_rnn.runs.logs as records
assert not any(name.startswith("tensorboard") for name in sys.modules)
records.EventLog({str(tmp_path)!r}).scalars({{"loss": 1.0}}, 1)
assert "tensorflow" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_without_tensorboard_no_events_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    EventLog(tmp_path / "events").scalars({"loss": 1.0}, step=1)
    assert not (tmp_path / "events").exists()
