"""History of a run's topologies: the topology after every rewiring, compressed in one file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from selfish_rnn.errors import UserError
from selfish_rnn.files import append, clear_write_errors
from selfish_rnn.topology import GateLayout, Rewiring, Topology
from selfish_rnn.topology.sampling import false_indices

Numbers = npt.NDArray[np.int64]

_BITS, _GAPS = b"\0", b"\1"
_HEAD = struct.Struct("<I")


class Recording:
    """A record under construction; matrices are encoded as they are added, so that memory holds one at a time."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._lists: list[bytes] = []

    def add(self, name: str, rewiring: Rewiring, after: Topology | None = None) -> None:
        """Add the rewiring of a matrix; ``after`` is the topology after it, computed if it is not passed."""
        before = rewiring.before
        survivors = before.positions.numpy()[false_indices(rewiring.removed).numpy()]
        removed = encode_subset(np.flatnonzero(rewiring.removed.numpy()), before.count)
        grown = encode_subset(ranks_of_places(rewiring.grown.numpy(), survivors), before.size - len(survivors))
        count = len(survivors) + len(rewiring.grown)
        entry = {"name": name, "count": count, "sum": topology_sum(after or rewiring.topology)}
        self._add({**entry, "removed": len(removed), "grown": len(grown)}, removed, grown)

    def add_whole(self, name: str, topology: Topology) -> None:
        """Add the complete topology of a matrix."""
        positions = encode_subset(topology.positions.numpy(), topology.size)
        gates = list(zip(topology.gates.names, topology.gates.sizes, strict=True))
        entry = {
            "name": name,
            "count": topology.count,
            "sum": topology_sum(topology),
            "shape": topology.shape,
            "gates": gates,
        }
        self._add({**entry, "whole": len(positions)}, positions)

    def _add(self, entry: dict[str, Any], *lists: bytes) -> None:
        self._entries.append(entry)
        self._lists.extend(lists)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def payload(self, step: int, epoch: int) -> bytes:
        """Return the bytes of the record: the length of its head, its head, its lists."""
        head = json.dumps({"step": step, "epoch": epoch, "matrices": self._entries}).encode()
        return b"".join([_HEAD.pack(len(head)), head, *self._lists])


def split_payload(payload: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return the head and the lists of a record."""
    (length,) = _HEAD.unpack_from(payload)
    start = _HEAD.size
    return json.loads(payload[start : start + length]), memoryview(payload)[start + length :]


def decode_whole(entry: Mapping[str, Any], lists: memoryview) -> tuple[Topology, memoryview]:
    shape = tuple(entry["shape"])
    gates = GateLayout(tuple(name for name, _ in entry["gates"]), tuple(size for _, size in entry["gates"]))
    positions = decode_subset(lists[: entry["whole"]], math.prod(shape))
    return _checked(Topology(shape, gates, torch.from_numpy(positions)), entry), lists[entry["whole"] :]


def decode_rewiring(
    before: Topology, entry: Mapping[str, Any], lists: memoryview
) -> tuple[Topology, torch.Tensor, torch.Tensor, memoryview]:
    middle = entry["removed"]
    end = middle + entry["grown"]
    marks = np.zeros(before.count, dtype=np.bool_)
    marks[decode_subset(lists[:middle], before.count)] = True
    positions = before.positions.numpy()
    survivors: Numbers = positions[~marks]
    grown = places_of_ranks(decode_subset(lists[middle:end], before.size - len(survivors)), survivors)
    after = Topology(before.shape, before.gates, torch.from_numpy(survivors)).joined(torch.from_numpy(grown))
    return _checked(after, entry), torch.from_numpy(positions[marks]), torch.from_numpy(grown), lists[end:]


def topology_sum(topology: Topology) -> int:
    """Return a checksum of the positions of a topology."""
    return zlib.crc32(np.ascontiguousarray(topology.positions.numpy()).data)


def _checked(topology: Topology, entry: Mapping[str, Any]) -> Topology:
    if topology_sum(topology) != entry["sum"]:
        raise UserError(f"the record of {entry['name']} does not fit the records before it: they are of another run")
    return topology


def encode_subset(numbers: Numbers, population: int) -> bytes:
    """Return different, increasing numbers below ``population`` as compressed bytes.

    Dense subsets are a bitmap. Sparse ones are the gaps between the numbers, as planes of their bytes: the high bytes
    are nearly all zero and cost next to nothing. Random subsets of at most 70 % are within 10 % of the entropy

        population · H(count / population) / 8 bytes,   H(p) = -p log2 p - (1 - p) log2 (1 - p)
    """
    if 8 * len(numbers) >= population:
        bits = np.zeros(population, dtype=np.bool_)
        bits[numbers] = True
        return _BITS + zlib.compress(np.packbits(bits).tobytes())
    gaps = np.diff(numbers, prepend=-1).astype(_gap_type(population))
    planes = gaps.view(np.uint8).reshape(len(gaps), gaps.itemsize).T
    return _GAPS + zlib.compress(planes.tobytes())


def decode_subset(data: bytes | memoryview, population: int) -> Numbers:
    """Undo :func:`encode_subset`."""
    content = np.frombuffer(zlib.decompress(data[1:]), dtype=np.uint8)
    if bytes(data[:1]) == _BITS:
        return np.flatnonzero(np.unpackbits(content, count=population))
    kind = _gap_type(population)
    gaps = np.ascontiguousarray(content.reshape(kind.itemsize, -1).T).view(kind)
    return np.cumsum(gaps, dtype=np.int64) - 1


def _gap_type(population: int) -> np.dtype[Any]:
    return np.dtype("<u4" if population < 2**32 else "<u8")


def ranks_of_places(places: Numbers, taken: Numbers) -> Numbers:
    """Return the number of free places before each place; both lists are increasing, and ``places`` are free."""
    return places - np.searchsorted(taken, places)


def places_of_ranks(ranks: Numbers, taken: Numbers) -> Numbers:
    """Undo :func:`ranks_of_places`."""
    free_before = taken - np.arange(len(taken))
    return ranks + np.searchsorted(free_before, ranks, side="right")


MARK = b"SRNN-TP2"
_FRAME = struct.Struct("<QI")


@dataclass(frozen=True)
class Moment:
    """Moment of a record: number of updates, and epoch (0 before the first)."""

    step: int
    epoch: int


@dataclass(frozen=True)
class TopologyRecord:
    """One record: ``topologies`` after it, and for a rewiring the removed and regrown positions.

    A position that one rewiring removes and regrows is in both. ``removed`` and ``grown`` are empty in records of
    complete topologies.
    """

    step: int
    epoch: int
    topologies: Mapping[str, Topology]
    removed: Mapping[str, torch.Tensor]
    grown: Mapping[str, torch.Tensor]


class TopologyHistory:
    """Topologies of a run at its start and after every rewiring.

    ::

        history = TopologyHistory("topologies.bin")
        history.start({weight.name: weight.topology for weight in sparsifier.weights})
        with history.recording(step, epoch) as recording:      # once per rewiring
            recording.add(weight.name, rewiring)               # once per matrix
        history.topologies(epoch=5)["rnn.weight_hh_l0"].density

    Records are appended to one file, completely or not at all. An incomplete record at the end, from a crash, is
    ignored by reads and removed before the next write. Damage anywhere else is an error.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._checked = False

    # Writing

    def start(self, topologies: Mapping[str, Topology], step: int = 0, epoch: int = 0) -> None:
        """Record every topology completely; a run without rewirings (ISS) may do so at any time."""
        with self.recording(step, epoch) as recording:
            for name, topology in topologies.items():
                recording.add_whole(name, topology)

    def append(self, step: int, epoch: int, rewirings: Mapping[str, Rewiring]) -> None:
        """Record the rewiring of each named matrix; other matrices are unchanged."""
        with self.recording(step, epoch) as recording:
            for name, rewiring in rewirings.items():
                recording.add(name, rewiring)

    def continue_from(self, topologies: Mapping[str, Topology], step: int, epoch: int) -> None:
        """Prepare for the start of a run, or for its continuation from this moment.

        Later records are removed. If the remaining ones do not end with these topologies, because there are none or a
        crash of the machine lost some, the topologies are recorded completely.
        """
        self.truncate_after(step)
        sums: dict[str, int] = {}
        for head, _, _ in self._frames():
            sums |= {entry["name"]: entry["sum"] for entry in head["matrices"]}
        if sums != {name: topology_sum(topology) for name, topology in topologies.items()}:
            self.start(topologies, step, epoch)

    @contextlib.contextmanager
    def recording(self, step: int, epoch: int) -> Iterator[Recording]:
        """Collect a record inside a block and write it at the end; an empty or failed block writes nothing."""
        recording = Recording()
        yield recording
        if recording:
            self._cut_torn_tail()
            mark = b"" if self.path.exists() else MARK
            payload = recording.payload(step, epoch)
            append(self.path, mark + _FRAME.pack(len(payload), _checksum(payload)) + payload)

    def truncate_after(self, step: int) -> int:
        """Remove the records of later updates, which a resumed run repeats; return their number."""
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
            if end <= len(MARK):  # the mark itself may be incomplete
                file.write(MARK)
            file.truncate(end)

    # Reading

    def __len__(self) -> int:
        return len(self.moments())

    def moments(self) -> list[Moment]:
        """Return the moment of each record."""
        return [Moment(head["step"], head["epoch"]) for head, _, _ in self._frames()]

    def counts(self) -> Iterator[tuple[Moment, dict[str, int]]]:
        """Yield the number of weights of each matrix after each record, without reading positions."""
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
        """Return all topologies after a number of updates or an epoch; by default the last ones."""
        topologies: Mapping[str, Topology] | None = None
        for record in self:
            if (step is not None and record.step > step) or (epoch is not None and record.epoch > epoch):
                break
            topologies = record.topologies
        if topologies is None:
            missing = "does not exist: the run did not save its topologies (keep_topologies)"
            raise ValueError(f"{self.path} {'has no record that early' if self.path.exists() else missing}")
        return dict(topologies)

    def topology(self, name: str, *, step: int | None = None, epoch: int | None = None) -> Topology:
        """Return one of :meth:`topologies`."""
        topologies = self.topologies(step=step, epoch=epoch)
        if name not in topologies:
            raise ValueError(f"{self.path} has no matrix {name!r}; known are {', '.join(topologies)}")
        return topologies[name]

    def _frames(self) -> Iterator[tuple[dict[str, Any], memoryview, int]]:
        """Yield the head, the lists and the end in the file of every complete record."""
        try:
            file = open(self.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error
        with file:
            mark = file.read(len(MARK))
            if mark != MARK:
                if MARK.startswith(mark):  # the first write was interrupted
                    return
                raise UserError(
                    f"{self.path} is not a history of topologies, or of an earlier version: restore it or remove it"
                )
            while (payload := _next_payload(file)) is not None:
                yield *split_payload(payload), file.tell()
            if _more_records(file):
                raise UserError(
                    f"{self.path} is damaged at byte {file.tell()}, and complete records follow: restore it from a "
                    "copy, or remove it and do without the run's topologies"
                )


def _next_payload(file: BinaryIO) -> bytes | None:
    """Return the payload of the next record; without a complete one return None and do not move in the file."""
    start = file.tell()
    frame = file.read(_FRAME.size)
    if len(frame) == _FRAME.size:
        length, checksum = _FRAME.unpack(frame)
        # A damaged length may be any number, so it is compared with the size of the file.
        if 0 < length <= os.fstat(file.fileno()).st_size - file.tell():
            payload = file.read(length)
            if _checksum(payload) == checksum:
                return payload
    file.seek(start)
    return None


def _more_records(file: BinaryIO) -> bool:
    """Return whether a complete record follows a damaged one, if its length is right; do not move in the file."""
    start = file.tell()
    frame = file.read(_FRAME.size)
    complete = False
    if len(frame) == _FRAME.size:
        length = _FRAME.unpack(frame)[0]
        if length < os.fstat(file.fileno()).st_size - file.tell():
            file.seek(length, os.SEEK_CUR)
            complete = _next_payload(file) is not None
    file.seek(start)
    return complete


def _checksum(payload: bytes) -> int:
    """Return the checksum of a payload and its length, so that zeros are never a record."""
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(8, "little")))
