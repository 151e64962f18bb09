"""The topology after every rewiring, compressed in one file."""

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

_PLAIN, _INVERTED = b"\0", b"\1"
_HEAD = struct.Struct("<I")


class Recording:
    """A record in the making: what is added is coded at once, so that one matrix is held at a time."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._lists: list[bytes] = []

    def add(self, name: str, rewiring: Rewiring, after: Topology | None = None) -> None:
        """What a rewiring did to the matrix of this name, ``after`` which it is so; that is made if it is not given."""
        before = rewiring.before
        kept = before.positions.numpy()[false_indices(rewiring.removed).numpy()]
        removed = encode_subset(np.flatnonzero(rewiring.removed.numpy()), before.count)
        grown = encode_subset(ranks_of_places(rewiring.grown.numpy(), kept), before.size - len(kept))
        count = len(kept) + len(rewiring.grown)
        entry = {"name": name, "count": count, "sum": topology_sum(after or rewiring.topology)}
        self._add({**entry, "removed": len(removed), "grown": len(grown)}, removed, grown)

    def add_whole(self, name: str, topology: Topology) -> None:
        """The whole topology of the matrix of this name."""
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
        """The bytes of the record: the length of its head, its head, its lists."""
        head = json.dumps({"step": step, "epoch": epoch, "matrices": self._entries}).encode()
        return b"".join([_HEAD.pack(len(head)), head, *self._lists])


def split_payload(payload: bytes) -> tuple[dict[str, Any], memoryview]:
    """The head and the lists of a record."""
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
    kept: Numbers = positions[~marks]
    grown = places_of_ranks(decode_subset(lists[middle:end], before.size - len(kept)), kept)
    after = Topology(before.shape, before.gates, torch.from_numpy(kept)).joined(torch.from_numpy(grown))
    return _checked(after, entry), torch.from_numpy(positions[marks]), torch.from_numpy(grown), lists[end:]


def topology_sum(topology: Topology) -> int:
    """What tells a topology from others of the same matrix."""
    return zlib.crc32(np.ascontiguousarray(topology.positions.numpy()).data)


def _checked(topology: Topology, entry: Mapping[str, Any]) -> Topology:
    if topology_sum(topology) != entry["sum"]:
        raise UserError(f"the record of {entry['name']} does not fit those before it: the history was put together")
    return topology


def encode_subset(chosen: Numbers, population: int) -> bytes:
    """Different numbers below ``population``, increasing, as bytes.

    If they are more than half of them, those left out are written. The gaps in between are geometrically distributed
    where the choice was random; then a code of whole bits for every gap comes within a few percent of what is possible:

        population · H(count / population) / 8 bytes,   H(p) = -p log2 p - (1 - p) log2 (1 - p)
    """
    inverted = 2 * len(chosen) > population
    numbers = _others(chosen, population) if inverted else chosen
    gaps = np.diff(numbers, prepend=-1) - 1
    # Gaps of random lists do not repeat each other, so longer matches are not looked for, only runs.
    compressor = zlib.compressobj(level=6, strategy=zlib.Z_RLE)
    return (_INVERTED if inverted else _PLAIN) + compressor.compress(_varints(gaps)) + compressor.flush()


def decode_subset(data: bytes | memoryview, population: int) -> Numbers:
    """Undo :func:`encode_subset`."""
    numbers = np.cumsum(_from_varints(zlib.decompress(data[1:])) + 1) - 1
    return _others(numbers, population) if bytes(data[:1]) == _INVERTED else numbers


def ranks_of_places(places: Numbers, taken: Numbers) -> Numbers:
    """For places that are not taken, how many free ones come before each; both lists increase."""
    return places - np.searchsorted(taken, places)


def places_of_ranks(ranks: Numbers, taken: Numbers) -> Numbers:
    """Undo :func:`ranks_of_places`."""
    free_before = taken - np.arange(len(taken))
    return ranks + np.searchsorted(free_before, ranks, side="right")


def _others(numbers: Numbers, population: int) -> Numbers:
    left = np.ones(population, dtype=np.bool_)
    left[numbers] = False
    return np.flatnonzero(left)


def _varints(numbers: Numbers) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    lengths = np.ones(len(numbers), dtype=np.int64)
    for bits in range(7, 63, 7):
        longer = numbers >= 1 << bits
        if not longer.any():
            break
        lengths += longer
    if len(numbers) == lengths.sum():
        return numbers.astype(np.uint8).tobytes()
    starts = np.cumsum(lengths) - lengths
    data = np.empty(lengths.sum(), dtype=np.uint8)
    for place in range(lengths.max()):
        here = np.flatnonzero(lengths > place)
        more = (lengths[here] > place + 1).astype(np.int64) << 7
        data[starts[here] + place] = (numbers[here] >> 7 * place & 127) | more
    return data.tobytes()


def _from_varints(data: bytes) -> Numbers:
    content = np.frombuffer(data, dtype=np.uint8)
    last = content < 128
    if last.all():
        return content.astype(np.int64)
    stops = np.flatnonzero(last) + 1
    starts = np.concatenate([[0], stops[:-1]])
    numbers = np.zeros(len(stops), dtype=np.int64)
    for place in range((stops - starts).max()):
        here = np.flatnonzero(stops - starts > place)
        numbers[here] |= (content[starts[here] + place].astype(np.int64) & 127) << 7 * place
    return numbers


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
