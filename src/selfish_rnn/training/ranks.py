"""Data-parallel training: ranks, their parts of a batch, and their process group."""

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

from selfish_rnn.errors import ReportedByRankZero, UserError
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import State
from selfish_rnn.sparsifier.distributed import collective, ranks
from selfish_rnn.training.state import fresh_random_state, random_state, restore_random_state

__all__ = ["ALONE", "BatchPart", "BatchParts", "Ranks", "check_even_parts", "joined", "restartable"]


Value = TypeVar("Value")

BUCKET = 4 * 2**20
"""Number of gradient entries that are sent at once, which bounds the size of the copy."""


@dataclass(frozen=True)
class Ranks:
    """This process among the processes that train together.

    All ranks call every method except :meth:`share` together, in the same order. A lost rank makes them raise
    :class:`~selfish_rnn.errors.RankLostError`.

    >>> Ranks(rank=1, size=2).share(20)
    slice(10, 20)
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """Return the rank of this process in the default group of ``torch.distributed``, or :data:`ALONE`."""
        return cls(distributed.get_rank(), ranks()) if ranks() > 1 else ALONE

    @property
    def is_main(self) -> bool:
        """True on the rank that does all file and console output."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Return the part of ``count`` items that belongs to this rank; parts are as equal as possible."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def from_main(self, make: Callable[[], Value]) -> Value:
        """Return the result of ``make`` on rank 0 to all ranks; a :class:`UserError` there is raised on all of them."""
        if self.size == 1:
            return make()
        sent: list[Any] = [None, None]
        raised: UserError | None = None
        if self.is_main:
            try:
                sent[0] = make()
            except UserError as error:
                raised, sent[1] = error, str(error)
        with collective():
            distributed.broadcast_object_list(sent, src=0)
        if raised is not None:
            raise raised
        if sent[1] is not None:
            raise ReportedByRankZero(sent[1])
        return cast(Value, sent[0])

    def gather(self, values: Sequence[Value]) -> list[Value]:
        """Return the values of all ranks, in the order of the ranks."""
        if self.size == 1:
            return list(values)
        lists: list[Any] = [None] * self.size
        with collective():
            distributed.all_gather_object(lists, list(values))
        return [value for values in lists for value in values]

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether a rank has set it."""
        return list(flags) if self.size == 1 else [total > 0 for total in self._summed([float(flag) for flag in flags])]

    def sum(self, value: float) -> float:
        """Return the sum over ranks, in double precision."""
        return value if self.size == 1 else self._summed([value])[0]

    def _summed(self, values: list[float]) -> list[float]:
        numbers = torch.tensor(values, dtype=torch.float64)
        with collective():
            distributed.all_reduce(numbers)
        return cast(list[float], numbers.tolist())

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all ranks, in place.

        A packed parameter contains only the existing weights of a matrix, so its gradient costs (1 - S) of a dense one.
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
"""A process that trains alone."""


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and sum(member.numel() for member in bucket) + gradient.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


BATCH_DIMENSION = -2
"""Batch dimension of the tensors of a recurrent state, which are (layers x) batch x width."""


@dataclass
class BatchPart:
    """Some columns of every batch with their recurrent state and random generators."""

    columns: slice
    device: str
    random: dict[str, Any]
    hidden: State = ()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Use the random generators of this part inside a block."""
        restore_random_state(self.random, self.device)
        yield
        self.random = random_state(self.device)


class BatchParts:
    """Parts of a batch; ``mine`` are those of this rank.

    A batch of B columns is cut into P parts of B/P columns, ``sub_batches`` of them per rank. Rank r of R computes the
    parts from rP/R to (r+1)P/R. Every part draws its dropout from its own generator, so the rank that computes it makes
    no difference: 2 ranks do the same as 1 rank with twice the ``sub_batches``. A run that is resumed with another
    number of ranks keeps its P, or uses the next multiple that those ranks can share.
    """

    def __init__(self, experiment: Experiment, ranks: Ranks, initial_state: Callable[[int], State]) -> None:
        self.ranks = ranks
        self._experiment = experiment
        self._initial_state = initial_state
        self._cut(experiment.sub_batches * ranks.size)
        self.begin_epoch()

    def _cut(self, count: int) -> None:
        self.count, self._width = count, self._experiment.batch_size // count
        indices = range(count)[self.ranks.share(count)]
        self.mine = [
            BatchPart(
                slice(index * self._width, (index + 1) * self._width), self._experiment.device, self._seeded(index)
            )
            for index in indices
        ]

    def _seeded(self, index: int) -> dict[str, Any]:
        """Return the random state of a part: the first continues after the model's, others have their own seeds."""
        device = self._experiment.device
        if index == 0:
            return random_state(device)
        return fresh_random_state(zlib.crc32(f"{self._experiment.seed} part {index}".encode()), device)

    def check_even(self) -> None:
        """Raise an error if the batch cannot be cut into parts of equal size."""
        check_even_parts(self._experiment, self.count, self.ranks.size)

    def begin_epoch(self) -> None:
        """Reset the recurrent states."""
        for part in self.mine:
            part.hidden = self._initial_state(self._width)

    def state_dict(self) -> dict[str, Any]:
        """Return recurrent and random states of all parts; all ranks call it together."""
        states = [(list(part.hidden), part.random) for part in self.mine]
        if self.ranks.size > 1:
            states = [([tensor.cpu() for tensor in hidden], random) for hidden, random in states]
        states = self.ranks.gather(states)
        return {"hidden": [hidden for hidden, _ in states], "random": [random for _, random in states]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load all saved parts, independent of the number of ranks that saved them."""
        saved, random = state["hidden"], state["random"]
        if isinstance(random, Mapping):  # earlier versions had one generator for all parts
            random = [random]
        self._cut(math.lcm(len(saved), self.ranks.size))
        self.check_even()
        whole = [torch.cat(tensors, BATCH_DIMENSION) for tensors in zip(*saved, strict=True)]
        for index, part in zip(range(self.count)[self.ranks.share(self.count)], self.mine, strict=True):
            part.hidden = tuple(_columns(tensor, part.columns).to(part.device) for tensor in whole)
            expected = self._initial_state(self._width)
            if [tensor.shape for tensor in part.hidden] != [tensor.shape for tensor in expected]:
                raise ValueError("the recurrent state has another shape")
            if index < len(random):
                torch.Generator().set_state(random[index]["cpu"])  # raises an error for an invalid state
                part.random = random[index]


def _columns(tensor: Tensor, columns: slice) -> Tensor:
    return tensor.narrow(BATCH_DIMENSION, columns.start, columns.stop - columns.start).clone()


def check_even_parts(experiment: Experiment, parts: int, ranks: int) -> None:
    """Raise an error if the batch cannot be cut into ``parts`` parts of equal size."""
    if experiment.batch_size % parts:
        raise UserError(
            f"batch_size {experiment.batch_size} cannot be divided into {parts} equal parts, {parts // ranks} for each "
            f"of {ranks} ranks: use another number of ranks, or another batch_size in a new run"
        )


TIMEOUT = timedelta(minutes=10)
"""Time to wait for a rank that does not answer; a rank whose process ended is noticed at once."""

_GROUP = "selfish-rnn group"
_POLL = 0.02


def restartable() -> bool:
    """Return whether ``torchrun --max-restarts`` may repeat this command after a rank is lost."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


@contextlib.contextmanager
def joined(timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """Join the process group of the processes that ``torchrun`` started; without torchrun the process is alone.

    Tensors on the CPU use gloo. Tensors on GPUs, one per process of a machine, use NCCL.

    >>> with joined() as ranks:
    ...     run = ranks.from_main(lambda: Run.start(experiment, path))
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
    """Return a name for this process group that no earlier group had.

    After a restart torchrun's store still contains the addresses of the previous processes, and no value that all ranks
    know distinguishes the starts, because every machine counts its own failures. Rank 0 therefore invents a name and
    acknowledges each rank that registers under it. A name without acknowledgement belongs to an earlier group.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    if rank == 0:
        name = uuid.uuid4().hex
        store.set(_GROUP, name)
        for peer in range(1, size):
            _await(store, f"{name}/{peer}", deadline)
            caller = str(store.get(f"{name}/{peer}"), "ascii")
            store.set(f"{name}/{peer}/{caller}", "yes")
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
        raise RuntimeError("not all ranks joined in time")
    time.sleep(_POLL)
