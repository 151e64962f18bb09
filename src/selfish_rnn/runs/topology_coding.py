"""Records of topologies as bytes: increasing lists of whole numbers as gaps of variable length, compressed."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from selfish_rnn.errors import UserError
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
