"""Logs of a run: ``metrics.jsonl`` and TensorBoard events."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from selfish_rnn.errors import UserError
from selfish_rnn.files import append, clear_write_errors, write_atomically
from selfish_rnn.training.records import EpochRecord

# JSON lacks these numbers, and most readers other than Python's reject the bare words.
_SPECIAL = ("NaN", "Infinity", "-Infinity")

TAIL_BYTES = 65536
"""Upper bound of the size of a record."""


class MetricsLog:
    """A file with one :class:`EpochRecord` per line, as JSON.

    Every line is handed to the operating system before ``append`` returns. NaN and infinities are written as strings:
    ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.

    Example::

        log = MetricsLog(run / "metrics.jsonl")
        log.append(record)
        log.read()[-1].valid_perplexity
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, record: EpochRecord) -> None:
        """Add one record; a failed write leaves no torn line."""
        line = json.dumps(_converted(record.to_json(), _as_text), allow_nan=False)
        append(self.path, line.encode() + b"\n")

    def read(self) -> list[EpochRecord]:
        """Return all records except a torn last line; any other invalid line is a ``UserError``."""
        records = []
        for number, line in enumerate(self._lines(), start=1):
            content, source = _parse(line), f"line {number} of {self.path}"
            if content is not None:
                records.append(EpochRecord.from_json(content, source))
            elif line.endswith(b"\n"):
                raise UserError(f"{source} is not a JSON object; delete that line")
        return records

    def last(self) -> EpochRecord | None:
        """Return the last valid record, or None; reads only the end of the file."""
        try:
            with open(self.path, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(file.tell() - TAIL_BYTES, 0))
                lines = list(file)
        except OSError:
            return None
        records = (_record(line) for line in reversed(lines))
        return next((record for record in records if record is not None), None)

    def truncate_after(self, step: int) -> int:
        """Drop invalid lines and records of later updates; return the number of dropped lines.

        A resumed run repeats the epochs after its checkpoint, whose records would otherwise be there twice.
        """
        lines = self._lines()
        valid = [line for line in lines if (record := _record(line)) is not None and record.step <= step]
        if len(valid) < len(lines):
            write_atomically(self.path, b"".join(valid))
        return len(lines) - len(valid)

    def _lines(self) -> list[bytes]:
        try:
            # splitlines would also break at bytes that a damaged line may contain.
            return list(io.BytesIO(self.path.read_bytes()))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error


def _converted(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _converted(item, convert) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_converted(item, convert) for item in value]
    return convert(value)


def _as_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_number(value: Any) -> Any:
    return float(value) if value in _SPECIAL else value


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a complete line, or None."""
    try:
        content = json.loads(line)
        # A line without an end was still being written; the next record would be appended to it.
        complete = line.endswith(b"\n") and isinstance(content, dict)
        return _converted(content, _as_number) if complete else None
    except (ValueError, RecursionError):
        return None


def _record(line: bytes) -> EpochRecord | None:
    """Return the record of a line, or None if the line is invalid."""
    content = _parse(line)
    try:
        return None if content is None else EpochRecord.from_json(content, "line")
    except UserError:
        return None


def tensorboard_installed() -> bool:
    """Return whether TensorBoard events can be written; the extra ``tensorboard`` installs their requirements."""
    return importlib.util.find_spec("tensorboard") is not None


class EventLog:
    """Scalars as TensorBoard events; without TensorBoard nothing is written.

    Records are built with TensorBoard's classes and written directly. ``SummaryWriter`` writes from a thread, which on
    a full disk prints a traceback and loses the error at the end of a run. It also imports TensorFlow wherever that is
    installed, which is slow and prints messages.

    Args:
        folder: folder of the events; the file is created with the first scalars.
        resumed_at: step of the checkpoint that a run resumes from; TensorBoard hides later events of earlier files.

    Example::

        EventLog(run / "events").scalars({"loss/train": 4.2, "prune_rate": 0.7}, step=100)
    """

    def __init__(self, folder: str | os.PathLike[str], resumed_at: int | None = None) -> None:
        self.folder = Path(folder)
        self._resumed_at = resumed_at
        self._path: Path | None = None

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add the value of each name at ``step``."""
        if not tensorboard_installed():
            return
        # Imported here because only training needs TensorBoard's protocol buffers.
        summary_module = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        if self._path is None:
            self._path = self._start()
        entries = [summary_module.Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        summary = summary_module.Summary(value=entries)
        append(self._path, _event_record(step=step, summary=summary))

    def _start(self) -> Path:
        with clear_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            names = os.listdir(self.folder)
        # TensorBoard reads files in the order of their names, so the file of a resumed run must come last, even
        # within the same second or after the clock was set back.
        matches = (re.match(r"events\.out\.tfevents\.(\d+)\.", name) for name in names)
        moment = max([int(time.time()), *(int(match.group(1)) + 1 for match in matches if match)])
        path = self.folder / f"events.out.tfevents.{moment:010d}.{socket.gethostname()}.{os.getpid()}.0"
        header = _event_record(file_version="brain.Event:2")
        if self._resumed_at is not None:
            session_log = importlib.import_module("tensorboard.compat.proto.event_pb2").SessionLog
            start = session_log(status=session_log.START)
            # TensorBoard hides this step too, and the step of the checkpoint must stay visible.
            header += _event_record(step=self._resumed_at + 1, session_log=start)
        append(path, header)
        return path


def _event_record(**fields: Any) -> bytes:
    event = importlib.import_module("tensorboard.compat.proto.event_pb2").Event(wall_time=time.time(), **fields)
    record_writer = importlib.import_module("tensorboard.summary.writer.record_writer")
    buffer = io.BytesIO()
    record_writer.RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()
