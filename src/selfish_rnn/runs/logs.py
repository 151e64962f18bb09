"""What a run writes down as it goes: ``metrics.jsonl`` for programs, TensorBoard events for eyes."""

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

# JSON has no such numbers, and most readers other than Python's refuse the bare words.
_SPECIAL = ("NaN", "Infinity", "-Infinity")


class MetricsLog:
    """A file of one JSON object per line, each handed to the operating system before ``append`` returns.

    NaN and infinities are written as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; ``read`` gives the
    numbers back.

    Example::

        log = MetricsLog(run / "metrics.jsonl")
        log.append({"step": 100, "loss": 4.2})
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record; if that fails, nothing of it stays in the file."""
        line = json.dumps(_converted(record, _as_text), allow_nan=False)
        append(self.path, line.encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Return all records; a last line torn by a kill is left out, any other damage is a ``UserError``."""
        records = []
        for number, line in enumerate(self._lines(), start=1):
            record = _parse(line)
            if record is None and line.endswith(b"\n"):
                raise UserError(f"line {number} of {self.path} is not a JSON object; delete that line")
            if record is not None:
                records.append(record)
        return records

    def truncate_after(self, step: int) -> int:
        """Drop records whose ``step`` is greater, and damaged lines; return how many lines went.

        A resumed run repeats what came after its checkpoint, so those records would otherwise be there twice.
        Records without a ``step`` stay.
        """
        lines = self._lines()
        kept = [line for line in lines if _belongs(line, step)]
        if len(kept) < len(lines):
            write_atomically(self.path, b"".join(kept))
        return len(lines) - len(kept)

    def _lines(self) -> list[bytes]:
        try:
            # Not splitlines, which also breaks at bytes that a damaged line may hold.
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
    """Return the record of a whole line, or None where there is none."""
    try:
        record = json.loads(line)
        # Without its end a line was still being written, and the next record would be glued to it.
        whole = line.endswith(b"\n") and isinstance(record, dict)
        return _converted(record, _as_number) if whole else None
    except (ValueError, RecursionError):
        return None


def _belongs(line: bytes, step: int) -> bool:
    record = _parse(line)
    if record is None:
        return False
    at = record.get("step")
    return not (isinstance(at, (int, float)) and at > step)


def tensorboard_installed() -> bool:
    """Return whether TensorBoard events can be written; the extra ``tensorboard`` installs what they need."""
    return importlib.util.find_spec("tensorboard") is not None


class EventLog:
    """Scalars as TensorBoard events; without TensorBoard nothing is written.

    The records are made with TensorBoard's own classes but written here and at once: ``SummaryWriter`` writes from
    a thread, which on a full disk prints a traceback and, at the end of a run, loses the error; and it imports
    TensorFlow, slow and talkative, wherever that is installed.

    Args:
        folder: where the events go; the file is made with the first scalars.
        resumed_at: step of the checkpoint a run continues from; TensorBoard then hides what came after it.

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
        # Imported here because only runs that train need TensorBoard's protocol buffers.
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
        # TensorBoard reads files in the order of their names, so a resumed run's must come after all others
        # even when it starts within the same second or the clock was set back.
        found = (re.match(r"events\.out\.tfevents\.(\d+)\.", name) for name in names)
        moment = max([int(time.time()), *(int(match.group(1)) + 1 for match in found if match)])
        path = self.folder / f"events.out.tfevents.{moment:010d}.{socket.gethostname()}.{os.getpid()}.0"
        header = _event_record(file_version="brain.Event:2")
        if self._resumed_at is not None:
            session_log = importlib.import_module("tensorboard.compat.proto.event_pb2").SessionLog
            start = session_log(status=session_log.START)
            # TensorBoard hides this step too, and the checkpoint's own belongs to what is kept.
            header += _event_record(step=self._resumed_at + 1, session_log=start)
        append(path, header)
        return path


def _event_record(**fields: Any) -> bytes:
    event = importlib.import_module("tensorboard.compat.proto.event_pb2").Event(wall_time=time.time(), **fields)
    record_writer = importlib.import_module("tensorboard.summary.writer.record_writer")
    buffer = io.BytesIO()
    record_writer.RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()
