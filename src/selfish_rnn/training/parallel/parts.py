"""A batch in parts whose gradients are added up: one after the other, on several ranks, or both."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import State
from selfish_rnn.training.parallel.ranks import Ranks
from selfish_rnn.training.state import fresh_random_state, random_state, restore_random_state

BATCH_DIMENSION = -2
"""Of the tensors of a recurrent state, which are (layers x) batch x width."""


@dataclass
class BatchPart:
    """Some columns of every batch, the recurrent state they carry, and where their random numbers stand."""

    columns: slice
    device: str
    random: dict[str, Any]
    hidden: State = ()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside this block torch's generators are those of this part."""
        restore_random_state(self.random, self.device)
        yield
        self.random = random_state(self.device)


class BatchParts:
    """The parts of a batch, and which of them are this rank's: ``mine``.

    A batch of B columns is cut into P parts of B/P columns, ``sub_batches`` of them for every rank. Rank r of R
    computes the parts from rP/R to (r+1)P/R. A part draws its dropout from a generator of its own, so which rank
    computes it makes no difference: 2 ranks do what 1 rank does with twice the ``sub_batches``. A run that is continued
    with another number of ranks keeps its P, or takes the next multiple that those ranks can share.
    """

    def __init__(self, experiment: Experiment, ranks: Ranks, initial_state: Callable[[int], State]) -> None:
        self.ranks = ranks
        self._experiment = experiment
        self._initial_state = initial_state
        self._cut(experiment.sub_batches * ranks.size)
        self.begin_epoch()

    def _cut(self, count: int) -> None:
        self.count, self._width = count, self._experiment.batch_size // count
        own = range(count)[self.ranks.share(count)]
        self.mine = [
            BatchPart(
                slice(index * self._width, (index + 1) * self._width), self._experiment.device, self._seeded(index)
            )
            for index in own
        ]

    def _seeded(self, index: int) -> dict[str, Any]:
        """The first part goes on where building the model stopped, the others have seeds of their own."""
        device = self._experiment.device
        if index == 0:
            return random_state(device)
        return fresh_random_state(zlib.crc32(f"{self._experiment.seed} part {index}".encode()), device)

    def refuse_uneven(self) -> None:
        """Refuse a batch that cannot be cut into so many parts of the same size."""
        refuse_uneven_parts(self._experiment, self.count, self.ranks.size)

    def begin_epoch(self) -> None:
        """Carry nothing from the last window to the next."""
        for part in self.mine:
            part.hidden = self._initial_state(self._width)

    def state_dict(self) -> dict[str, Any]:
        """Carried states and random numbers of all parts; all ranks call it together."""
        own = [(list(part.hidden), part.random) for part in self.mine]
        if self.ranks.size > 1:
            own = [([tensor.cpu() for tensor in hidden], random) for hidden, random in own]
        every = self.ranks.gather(own)
        return {"hidden": [hidden for hidden, _ in every], "random": [random for _, random in every]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up all parts that were saved, by however many ranks."""
        saved, random = state["hidden"], state["random"]
        if isinstance(random, Mapping):  # one generator for all parts, as there once was
            random = [random]
        self._cut(math.lcm(len(saved), self.ranks.size))
        self.refuse_uneven()
        whole = [torch.cat(tensors, BATCH_DIMENSION) for tensors in zip(*saved, strict=True)]
        for index, part in zip(range(self.count)[self.ranks.share(self.count)], self.mine, strict=True):
            part.hidden = tuple(_columns(tensor, part.columns).to(part.device) for tensor in whole)
            expected = self._initial_state(self._width)
            if [tensor.shape for tensor in part.hidden] != [tensor.shape for tensor in expected]:
                raise ValueError("the carried state is of another shape")
            if index < len(random):
                torch.Generator().set_state(random[index]["cpu"])  # which refuses what is no state
                part.random = random[index]


def _columns(tensor: Tensor, columns: slice) -> Tensor:
    return tensor.narrow(BATCH_DIMENSION, columns.start, columns.stop - columns.start).clone()


def refuse_uneven_parts(experiment: Experiment, parts: int, ranks: int) -> None:
    """Refuse a batch that cannot be cut into parts of the same size."""
    if experiment.batch_size % parts:
        raise UserError(
            f"batch_size {experiment.batch_size} cannot be divided into {parts} equal parts, {parts // ranks} for each "
            f"of {ranks} ranks: use another number of ranks, or another batch_size in a new run"
        )
