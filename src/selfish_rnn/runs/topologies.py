"""The topology of a run from its start to its end, as one file that only grows.

The file is a mark and then records, each with its length and a checksum::

    SRNN-TOP | length, CRC-32, JSON head, lists of positions | length, CRC-32, ... | ...

A record is either every topology whole, or one rewiring: which weights went, as ranks among those that existed, and
which came, as ranks among the places that were empty. Both are lists of increasing numbers, kept as gaps of variable
length, compressed (:mod:`selfish_rnn.runs.topology_coding`).
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from selfish_rnn.errors import UserError
from selfish_rnn.files import append, clear_write_errors
from selfish_rnn.runs.topology_coding import (
    Recording,
    decode_rewiring,
    decode_whole,
    split_payload,
    topology_sum,
)
from selfish_rnn.topology import Rewiring, Topology

MARK = b"SRNN-TOP"
_FRAME = struct.Struct("<QI")


@dataclass(frozen=True)
class Moment:
    """When a record was made: after so many updates, in or at the end of an epoch (0 before the first)."""

    step: int
    epoch: int


@dataclass(frozen=True)
class TopologyRecord:
    """One record: ``topologies`` as they are after it, and for a rewiring the positions it removed and grew.

    A position that went and came again in the same rewiring is in both; where everything was written down whole,
    ``removed`` and ``grown`` are empty.
    """

    step: int
    epoch: int
    topologies: Mapping[str, Topology]
    removed: Mapping[str, torch.Tensor]
    grown: Mapping[str, torch.Tensor]


class TopologyHistory:
    """The topologies of a run at its start and after every rewiring.

    ::

        history = TopologyHistory("topologies.bin")
        history.start({weight.name: weight.topology for weight in sparsifier.weights})
        with history.recording(step, epoch) as recording:      # once for every rewiring
            recording.add(weight.name, rewiring)               # once for every matrix
        history.topologies(epoch=5)["rnn.weight_hh_l0"].density

    A record is in the file whole or not at all: what a crash cut off at the end is passed over in reading and taken
    away before the next record is written. Damage anywhere else is an error.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._checked = False

    # Writing

    def start(self, topologies: Mapping[str, Topology], step: int = 0, epoch: int = 0) -> None:
        """Write down every topology whole; a run whose weights go without rewirings (ISS) may do so at any time."""
        with self.recording(step, epoch) as recording:
            for name, topology in topologies.items():
                recording.add_whole(name, topology)

    def append(self, step: int, epoch: int, rewirings: Mapping[str, Rewiring]) -> None:
        """Write down a rewiring: what it did to each matrix; matrices that are not named stay as they were."""
        with self.recording(step, epoch) as recording:
            for name, rewiring in rewirings.items():
                recording.add(name, rewiring)

    def continue_from(self, topologies: Mapping[str, Topology], step: int, epoch: int) -> None:
        """Get ready to go on from this moment, at the start of a run or where it is resumed.

        Later records go. If the last one that stays does not leave these topologies, because there is none or a crash
        of the machine has lost it, they are written down whole.
        """
        self.truncate_after(step)
        sums: dict[str, int] = {}
        for head, _, _ in self._frames():
            sums |= {entry["name"]: entry["sum"] for entry in head["matrices"]}
        if sums != {name: topology_sum(topology) for name, topology in topologies.items()}:
            self.start(topologies, step, epoch)

    @contextlib.contextmanager
    def recording(self, step: int, epoch: int) -> Iterator[Recording]:
        """What is added in this block becomes one record at its end; if nothing is, or the block fails, none does."""
        recording = Recording()
        yield recording
        if recording:
            self._cut_torn_tail()
            mark = b"" if self.path.exists() else MARK
            payload = recording.payload(step, epoch)
            append(self.path, mark + _FRAME.pack(len(payload), _checksum(payload)) + payload)

    def truncate_after(self, step: int) -> int:
        """Drop the records of later updates, which a resumed run makes again; return how many went."""
        ends = [len(MARK)] if self.path.exists() else []
        dropped = 0
        for head, _, end in self._frames():
            if dropped or head["step"] > step:
                dropped += 1
            else:
                ends.append(end)
        if ends:
            self._cut(ends[-1])
        return dropped

    def _cut_torn_tail(self) -> None:
        if not self._checked and self.path.exists():
            self._cut(max((end for _, _, end in self._frames()), default=len(MARK)))
        self._checked = True

    def _cut(self, end: int) -> None:
        with clear_write_errors(self.path), open(self.path, "r+b") as file:
            if end <= len(MARK):  # the mark itself may be torn
                file.write(MARK)
            file.truncate(end)

    # Reading

    def __len__(self) -> int:
        return len(self.moments())

    def moments(self) -> list[Moment]:
        """When each record was made."""
        return [Moment(head["step"], head["epoch"]) for head, _, _ in self._frames()]

    def counts(self) -> Iterator[tuple[Moment, dict[str, int]]]:
        """How many weights each matrix had after each record; no list of positions is read."""
        counts: dict[str, int] = {}
        for head, _, _ in self._frames():
            counts = {**counts, **{entry["name"]: entry["count"] for entry in head["matrices"]}}
            yield Moment(head["step"], head["epoch"]), counts

    def __iter__(self) -> Iterator[TopologyRecord]:
        topologies: dict[str, Topology] = {}
        for head, lists, _ in self._frames():
            removed: dict[str, torch.Tensor] = {}
            grown: dict[str, torch.Tensor] = {}
            for entry in head["matrices"]:
                name = entry["name"]
                if "whole" in entry:
                    topologies[name], lists = decode_whole(entry, lists)
                else:
                    topologies[name], removed[name], grown[name], lists = decode_rewiring(
                        topologies[name], entry, lists
                    )
            yield TopologyRecord(head["step"], head["epoch"], dict(topologies), removed, grown)

    def topologies(self, *, step: int | None = None, epoch: int | None = None) -> dict[str, Topology]:
        """Every topology as it was after so many updates, or after an epoch; by default the last ones."""
        found: Mapping[str, Topology] | None = None
        for record in self:
            if (step is not None and record.step > step) or (epoch is not None and record.epoch > epoch):
                break
            found = record.topologies
        if found is None:
            missing = "does not exist: the run kept no topologies (keep_topologies)"
            raise ValueError(f"{self.path} {'has no record that early' if self.path.exists() else missing}")
        return dict(found)

    def topology(self, name: str, *, step: int | None = None, epoch: int | None = None) -> Topology:
        """One of :meth:`topologies`."""
        found = self.topologies(step=step, epoch=epoch)
        if name not in found:
            raise ValueError(f"{self.path} has no matrix {name!r}; there are {', '.join(found)}")
        return found[name]

    def _frames(self) -> Iterator[tuple[dict[str, Any], memoryview, int]]:
        """Of every whole record the head, the lists, and where in the file it ends."""
        try:
            file = open(self.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error
        with file:
            mark = file.read(len(MARK))
            if mark != MARK:
                if MARK.startswith(mark):  # torn in its first bytes
                    return
                raise UserError(f"{self.path} is not a history of topologies; remove it, or restore it from a copy")
            while (payload := _next_payload(file)) is not None:
                yield *split_payload(payload), file.tell()
            if _more_records(file):
                raise UserError(
                    f"{self.path} is damaged at byte {file.tell()}, and whole records follow: restore it from a copy, "
                    "or remove it and go without the run's topologies"
                )


def _next_payload(file: BinaryIO) -> bytes | None:
    """The payload of the next record; none, and back where it was, if there is no whole one."""
    start = file.tell()
    frame = file.read(_FRAME.size)
    if len(frame) == _FRAME.size:
        length, checksum = _FRAME.unpack(frame)
        # A damaged length may be any number; no more is read than is there.
        if 0 < length <= os.fstat(file.fileno()).st_size - file.tell():
            payload = file.read(length)
            if _checksum(payload) == checksum:
                return payload
    file.seek(start)
    return None


def _more_records(file: BinaryIO) -> bool:
    """Whether after a damaged record, if its length is right, comes a whole one; the file stays where it is."""
    start = file.tell()
    frame = file.read(_FRAME.size)
    found = False
    if len(frame) == _FRAME.size:
        length = _FRAME.unpack(frame)[0]
        if length < os.fstat(file.fileno()).st_size - file.tell():
            file.seek(length, os.SEEK_CUR)
            found = _next_payload(file) is not None
    file.seek(start)
    return found


def _checksum(payload: bytes) -> int:
    """Of the length too, so that zeros are no record."""
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(8, "little")))
