"""Data-parallel training: ranks, their parts of a batch, and how they join."""

from __future__ import annotations

import contextlib
import math
import os
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from selfish_rnn.errors import SaidByFirst, UserError
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import State
from selfish_rnn.sparsifier.distributed import collective, ranks
from selfish_rnn.training.state import fresh_random_state, random_state, restore_random_state

__all__ = ["ALONE", "BatchPart", "BatchParts", "Ranks", "joined", "refuse_uneven_parts", "restartable"]


Value = TypeVar("Value")

BUCKET = 4 * 2**20
"""How many numbers travel at a time, so that the copy of the gradients that is sent stays small."""


@dataclass(frozen=True)
class Ranks:
    """One of the processes that train together, and how many there are.

    All methods but :meth:`share` are called by all ranks together, in the same order. A rank that is gone makes them
    raise :class:`~selfish_rnn.errors.RankLostError`.

    >>> Ranks(rank=1, size=2).share(20)
    slice(10, 20)
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """This process in the default group of ``torch.distributed``, or alone."""
        return cls(distributed.get_rank(), ranks()) if ranks() > 1 else ALONE

    @property
    def first(self) -> bool:
        """Whether this is the one that reads and writes files, and speaks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This rank's part of so many things: the r-th of R pieces as equal as can be."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def from_first(self, make: Callable[[], Value]) -> Value:
        """What ``make`` gives on the first rank, on all of them; a :class:`UserError` there is one everywhere."""
        if self.size == 1:
            return make()
        sent: list[Any] = [None, None]
        raised: UserError | None = None
        if self.first:
            try:
                sent[0] = make()
            except UserError as error:
                raised, sent[1] = error, str(error)
        with collective():
            distributed.broadcast_object_list(sent, src=0)
        if raised is not None:
            raise raised
        if sent[1] is not None:
            raise SaidByFirst(sent[1])
        return cast(Value, sent[0])

    def gather(self, values: Sequence[Value]) -> list[Value]:
        """The values of all ranks, one rank's after the other's."""
        if self.size == 1:
            return list(values)
        every: list[Any] = [None] * self.size
        with collective():
            distributed.all_gather_object(every, list(values))
        return [value for own in every for value in own]

    def any(self, *flags: bool) -> list[bool]:
        """Of each flag whether a rank has it set."""
        return list(flags) if self.size == 1 else [total > 0 for total in self._summed([float(flag) for flag in flags])]

    def sum(self, value: float) -> float:
        """The sum over ranks, in double precision."""
        return value if self.size == 1 else self._summed([value])[0]

    def _summed(self, values: list[float]) -> list[float]:
        numbers = torch.tensor(values, dtype=torch.float64)
        with collective():
            distributed.all_reduce(numbers)
        return cast(list[float], numbers.tolist())

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all ranks, in place; what a parameter does not store does not travel.

        A packed parameter is the existing weights of a matrix, so its gradient costs (1 - S) of a dense one.
        """
        if self.size == 1:
            return
        for bucket in _buckets(parameter.grad for parameter in parameters if parameter.grad is not None):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            with collective():
                distributed.all_reduce(flat)
            for gradient, summed in zip(
                bucket, torch.split(flat, [gradient.numel() for gradient in bucket]), strict=True
            ):
                gradient.copy_(summed.view_as(gradient))


ALONE = Ranks()
"""A process that trains on its own."""


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and sum(held.numel() for held in bucket) + gradient.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


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


TIMEOUT = timedelta(minutes=10)
"""How long a rank that does not answer is waited for; one whose process ends is missed at once."""

_GROUP = "selfish-rnn group"
_POLL = 0.02


def restartable() -> bool:
    """Whether ``torchrun --max-restarts`` may give this same command again, after a rank was lost."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


@contextlib.contextmanager
def joined(timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """Train together with the other processes that ``torchrun`` started; a process that it did not start is alone.

    Tensors on the CPU travel by gloo, those on GPUs, one for each process of a machine, by NCCL.

    >>> with joined() as ranks:
    ...     run = ranks.from_first(lambda: Run.start(experiment, path))
    ...     run.train()
    """
    if not distributed.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1":
        yield ALONE
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    with collective():
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        name = agree_on_name(store, rank, size, timeout)
        fresh = PrefixStore(name, store)
        distributed.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=timeout)
    try:
        yield Ranks.here()
    finally:
        distributed.destroy_process_group()


def agree_on_name(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """A name for this group of processes that no earlier group had.

    After a restart torchrun's store still has the addresses of the processes before, and nothing that all ranks know
    tells one start from the next: each machine counts its own failures. So the first rank makes up a name, and answers
    whoever calls it by that name; a name that nobody answers to is of a group that is gone.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    if rank == 0:
        name = uuid.uuid4().hex
        store.set(_GROUP, name)
        for other in range(1, size):
            _await(store, f"{name}/{other}", deadline)
            caller = str(store.get(f"{name}/{other}"), "ascii")
            store.set(f"{name}/{other}/{caller}", "yes")
        return name
    caller = uuid.uuid4().hex
    while True:
        _await(store, _GROUP, deadline)
        name = str(store.get(_GROUP), "ascii")
        store.set(f"{name}/{rank}", caller)
        while str(store.get(_GROUP), "ascii") == name:
            if store.check([f"{name}/{rank}/{caller}"]):
                return name
            _pause(deadline)


def _await(store: Store, key: str, deadline: float) -> None:
    while not store.check([key]):
        _pause(deadline)


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError("not all ranks have come")
    time.sleep(_POLL)
