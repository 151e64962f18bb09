"""Increasing lists of whole numbers in few bytes: gaps of variable length, compressed."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

_PLAIN, _INVERTED = b"\0", b"\1"


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
