"""The processes that train one model together, as one of them sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn

from selfish_rnn.errors import SaidByFirst, UserError
from selfish_rnn.sparsifier.ranks import collective, ranks

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
