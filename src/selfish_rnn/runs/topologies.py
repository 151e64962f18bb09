"""The topology of a run from its start to its end, as one file that only grows.

The file is a mark and then records, each with its length and a checksum::

    SRNN-TOP | length, CRC-32, JSON head, lists of positions | length, CRC-32, ... | ...

A record is either every topology whole, or one rewiring: which weights went, as ranks among those that existed, and
which came, as ranks among the places that were empty. Both are lists of increasing numbers, kept as gaps of variable
length, compressed (:mod:`selfish_rnn.runs.subsets`).
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from selfish_rnn.errors import UserError
from selfish_rnn.files import append, clear_write_errors
from selfish_rnn.runs.subsets import Numbers, decode_subset, encode_subset, places_of_ranks, ranks_of_places
from selfish_rnn.topology import GateLayout, Rewiring, Topology
from selfish_rnn.topology.sampling import false_indices

FILE = "topologies.bin"
"""The name of the file in the folder of a run."""

MARK = b"SRNN-TOP"
_FRAME = struct.Struct("<QI")
_HEAD = struct.Struct("<I")


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


class Recording:
    """A record in the making: what is added is coded at once, so that one matrix is held at a time."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._lists: list[bytes] = []

    def add(self, name: str, rewiring: Rewiring) -> None:
        """What a rewiring did to the matrix of this name."""
        before = rewiring.before
        kept = before.positions.numpy()[false_indices(rewiring.removed).numpy()]
        removed = encode_subset(np.flatnonzero(rewiring.removed.numpy()), before.count)
        grown = encode_subset(ranks_of_places(rewiring.grown.numpy(), kept), before.size - len(kept))
        count = len(kept) + len(rewiring.grown)
        self._add({"name": name, "count": count, "removed": len(removed), "grown": len(grown)}, removed, grown)

    def add_whole(self, name: str, topology: Topology) -> None:
        """The whole topology of the matrix of this name."""
        positions = encode_subset(topology.positions.numpy(), topology.size)
        gates = list(zip(topology.gates.names, topology.gates.sizes, strict=True))
        entry = {"name": name, "count": topology.count, "shape": topology.shape, "gates": gates}
        self._add({**entry, "whole": len(positions)}, positions)

    def _add(self, entry: dict[str, Any], *lists: bytes) -> None:
        self._entries.append(entry)
        self._lists.extend(lists)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def frame(self, step: int, epoch: int) -> bytes:
        """The bytes of the record."""
        head = json.dumps({"step": step, "epoch": epoch, "matrices": self._entries}).encode()
        payload = b"".join([_HEAD.pack(len(head)), head, *self._lists])
        return _FRAME.pack(len(payload), _checksum(payload)) + payload


class TopologyHistory:
    """The topologies of a run at its start and after every rewiring.

    ::

        history = TopologyHistory(run / FILE)
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

    @contextlib.contextmanager
    def recording(self, step: int, epoch: int) -> Iterator[Recording]:
        """What is added in this block becomes one record at its end; if nothing is, or the block fails, none does."""
        recording = Recording()
        yield recording
        if recording:
            self._cut_torn_tail()
            mark = b"" if self.path.exists() else MARK
            append(self.path, mark + recording.frame(step, epoch))

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
                    topologies[name], lists = _whole(entry, lists)
                else:
                    topologies[name], removed[name], grown[name], lists = _rewired(topologies[name], entry, lists)
            yield TopologyRecord(head["step"], head["epoch"], dict(topologies), removed, grown)

    def topologies(self, *, step: int | None = None, epoch: int | None = None) -> dict[str, Topology]:
        """Every topology as it was after so many updates, or after an epoch; by default the last ones."""
        found: Mapping[str, Topology] | None = None
        for record in self:
            if (step is not None and record.step > step) or (epoch is not None and record.epoch > epoch):
                break
            found = record.topologies
        if found is None:
            raise ValueError(f"{self.path} has no record that early" if self.path.exists() else self._missing())
        return dict(found)

    def topology(self, name: str, *, step: int | None = None, epoch: int | None = None) -> Topology:
        """One of :meth:`topologies`."""
        found = self.topologies(step=step, epoch=epoch)
        if name not in found:
            raise ValueError(f"{self.path} has no matrix {name!r}; there are {', '.join(found)}")
        return found[name]

    def _missing(self) -> str:
        return f"{self.path} does not exist: the run kept no topologies (keep_topologies)"

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
                (length,) = _HEAD.unpack_from(payload)
                head = json.loads(bytes(payload[_HEAD.size : _HEAD.size + length]))
                yield head, payload[_HEAD.size + length :], file.tell()
            if _more_records(file):
                raise UserError(
                    f"{self.path} is damaged at byte {file.tell()}, and whole records follow: restore it from a copy, "
                    "or remove it and go without the run's topologies"
                )


def _next_payload(file: BinaryIO) -> memoryview | None:
    """The payload of the next record; none, and back where it was, if there is no whole one."""
    start = file.tell()
    frame = file.read(_FRAME.size)
    if len(frame) == _FRAME.size:
        length, checksum = _FRAME.unpack(frame)
        # A damaged length may be any number; no more is read than is there.
        if _HEAD.size <= length <= os.fstat(file.fileno()).st_size - file.tell():
            payload = file.read(length)
            if _checksum(payload) == checksum:
                return memoryview(payload)
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


def _whole(entry: Mapping[str, Any], lists: memoryview) -> tuple[Topology, memoryview]:
    shape = tuple(entry["shape"])
    gates = GateLayout(tuple(name for name, _ in entry["gates"]), tuple(size for _, size in entry["gates"]))
    empty = Topology(shape, gates, torch.empty(0, dtype=torch.int64))
    positions = decode_subset(lists[: entry["whole"]], empty.size)
    return Topology(shape, gates, torch.from_numpy(positions)), lists[entry["whole"] :]


def _rewired(
    before: Topology, entry: Mapping[str, Any], lists: memoryview
) -> tuple[Topology, torch.Tensor, torch.Tensor, memoryview]:
    middle = entry["removed"]
    end = middle + entry["grown"]
    marks = np.zeros(before.count, dtype=np.bool_)
    marks[decode_subset(lists[:middle], before.count)] = True
    positions = before.positions.numpy()
    kept: Numbers = positions[~marks]
    grown = places_of_ranks(decode_subset(lists[middle:end], before.size - len(kept)), kept)
    after = Topology(before.shape, before.gates, torch.from_numpy(kept)).joined(torch.from_numpy(grown))
    return after, torch.from_numpy(positions[marks]), torch.from_numpy(grown), lists[end:]
