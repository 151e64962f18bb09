"""How processes that ``torchrun`` started find each other, also when it starts them anew."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from selfish_rnn.sparsifier.ranks import collective
from selfish_rnn.training.parallel.ranks import ALONE, Ranks

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
