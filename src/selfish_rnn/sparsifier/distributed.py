"""Processes that train one model together (``torch.distributed``): shared seeds, gradients and topologies."""

from __future__ import annotations

import contextlib
import re
import weakref
import zlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from selfish_rnn.errors import RankLostError
from selfish_rnn.sparsifier.weights import SparseWeight

if distributed.is_available():
    # Its functions have the default group of the moment they are imported as a default argument, and torch imports them
    # with the first module that is built without memory. Inside a group that would keep the group and its threads alive
    # after Python has ended, which now and then aborts the process.
    import torch.distributed.nn.functional


@contextlib.contextmanager
def collective() -> Iterator[None]:
    """Turn a failed exchange between processes into an error that names the lost rank."""
    try:
        yield
    except RuntimeError as error:  # which is all that torch's backends raise
        # The first sentence, without the place in the backend's source that some begin with.
        reason = re.sub(r"^\[\S+:\d+\] ", "", str(error).partition("\n")[0]).partition(". ")[0]
        raise RankLostError(f"a rank that trains together with {this_rank()} is gone ({reason})") from error


def this_rank() -> str:
    """Return the name of this process in messages."""
    return f"rank {distributed.get_rank()}" if ranks() > 1 else "this one"


def ranks() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def common_seed() -> int:
    """Draw a seed from torch's generator; all processes get that of rank 0."""
    seed = [int(torch.randint(2**62, ()))]
    if ranks() > 1:
        with collective():
            distributed.broadcast_object_list(seed, src=0)
    return seed[0]


def mean_over_ranks(gradient: Tensor) -> Tensor:
    """Return the mean of a gradient over all processes."""
    if ranks() == 1:
        return gradient
    shared = gradient.clone()
    with collective():
        distributed.all_reduce(shared)
    return shared.div_(ranks())


def check_same_topologies(weights: Iterable[SparseWeight]) -> None:
    """Raise an error if processes have different topologies: they would average unrelated weights."""
    if ranks() == 1:
        return
    checksums = {weight.name: zlib.crc32(weight.topology.positions.numpy().tobytes()) for weight in weights}
    every = [checksums] * ranks()
    with collective():
        distributed.all_gather_object(every, checksums)
    for rank, theirs in enumerate(every):
        parted = [name for name in checksums if theirs.get(name) != checksums[name]]
        if parted:
            raise RuntimeError(
                f"{this_rank()} and rank {rank} have different topologies of {', '.join(parted)}: bind "
                "every rank with the same seed=, sparsity and method, from the same weights, and rewire them together"
            )


class ParallelWrapper:
    """The ``DistributedDataParallel`` around a model, which plans its reductions by the sizes of the parameters.

    It plans once, so it has to plan again when a packed weight has another number of values.
    """

    def __init__(self) -> None:
        self._reference: weakref.ref[DistributedDataParallel] | None = None
        self._registered = False

    def register(self, wrapper: DistributedDataParallel | None, parameters: Iterable[nn.Parameter]) -> None:
        """Take the wrapper of the model that has these parameters, or None if nothing wraps it."""
        if wrapper is not None:
            if not isinstance(wrapper, DistributedDataParallel):
                raise TypeError(f"register_ddp takes a DistributedDataParallel or None, not a {type(wrapper).__name__}")
            if set(map(id, parameters)).isdisjoint(map(id, wrapper.parameters())):
                raise ValueError("this DistributedDataParallel wraps another model than that of the sparsifier")
        self._reference = None if wrapper is None else weakref.ref(wrapper)
        self._registered = True

    def check(self, name: str) -> None:
        """Raise an error if the number of values of a packed weight cannot change."""
        if ranks() == 1:
            return
        if not self._registered:
            raise RuntimeError(
                f"the rewiring changes the number of values of {name}, and DistributedDataParallel has to know: call "
                "sparsifier.register_ddp(wrapper) after wrapping the model, or sparsifier.register_ddp(None) if you "
                "reduce gradients yourself"
            )
        wrapper = self._wrapper()
        if wrapper is not None and wrapper.process_group != distributed.group.WORLD:
            raise RuntimeError(
                f"the rewiring changes the number of values of {name}, and a DistributedDataParallel with a process "
                "group of its own cannot follow: leave out process_group=, or do not pack the model"
            )

    def replan(self) -> None:
        """Let the wrapper plan again: unpickled it does, and nothing else changes."""
        wrapper = self._wrapper()
        if wrapper is None:
            return
        hooks = list(wrapper._comm_hooks)
        wrapper.__setstate__(wrapper.__getstate__())  # type: ignore[no-untyped-call]
        wrapper._comm_hooks.clear()
        for hook, state in hooks:
            wrapper.register_comm_hook(state, hook)

    def _wrapper(self) -> DistributedDataParallel | None:
        return None if self._reference is None else self._reference()
