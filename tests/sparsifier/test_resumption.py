"""A run in one's own loop continues bit-identically, whatever its method, optimizer, engine and order of loading."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
from sparse_cases import Classifier, backward
from torch import Tensor, nn, optim

from selfish_rnn import METHODS, SNTASGD, Sparsifier, engine
from selfish_rnn.sparsifier.selection import unpackable

OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], optim.Optimizer]] = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.5),
    "momentum": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: optim.Adam(parameters, lr=0.01),
    "rmsprop": lambda parameters: optim.RMSprop(parameters, lr=0.01, weight_decay=0.01),
    "snt-asgd": lambda parameters: SNTASGD(parameters, lr=0.5),
}
ORDERS = list(itertools.permutations(("model", "sparsifier", "optimizer")))
MOMENTS = ("within an epoch", "before a rewiring", "after a rewiring")
STEPS = 3

needs_kernels = pytest.mark.skipif(not engine.available(), reason="the kernels are not built")


@dataclass
class Run:
    """What a user's loop has, and how far it is."""

    model: nn.Module
    sparsifier: Sparsifier
    optimizer: optim.Optimizer
    steps: int = 0

    @classmethod
    def start(cls, method: str, optimizer: str, packed: bool, seed: int) -> Run:
        model = Classifier(seed)
        sparsifier = Sparsifier(model, sparsity=0.6, method=method, prune_rate=0.5, rewirings=6, seed=seed)
        if packed:
            engine.pack(model)
        return cls(model, sparsifier, OPTIMIZERS[optimizer](model.parameters()))

    def train(self, last_step: int, rewire_at_the_end: bool = True) -> None:
        while self.steps < last_step:
            self.optimizer.zero_grad()
            with self.sparsifier.dense_gradients():
                backward(self.model, self.steps)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.02)  # depends on gradients of all positions
            self.optimizer.step()
            self.steps += 1
            if self.steps == STEPS and isinstance(self.optimizer, SNTASGD):
                self.optimizer.start_averaging()
            if self.steps % STEPS == 0 and (self.steps < last_step or rewire_at_the_end):
                self.sparsifier.rewire()

    def values(self) -> list[Tensor]:
        """Weights, positions, and what the optimizer remembers."""
        state = [self.optimizer.state[parameter] for parameter in self.model.parameters()]
        return [
            *self.model.parameters(),
            *(weight.topology.positions for weight in self.sparsifier.weights),
            *(tensor for each in state for _, tensor in sorted(each.items()) if isinstance(tensor, Tensor)),
        ]


def continues_identically(method: str, optimizer: str, packed: bool, order: Iterable[str], moment: str) -> None:
    first, twin = (Run.start(method, optimizer, packed, seed) for seed in (0, 5))
    saved_at = 2 * STEPS - 1 if moment == "within an epoch" else 2 * STEPS
    first.train(saved_at, rewire_at_the_end=moment == "after a rewiring")
    twin.steps = first.steps
    for part in order:
        getattr(twin, part).load_state_dict(copy.deepcopy(getattr(first, part).state_dict()))
    for run in (first, twin):
        if moment == "before a rewiring":
            run.sparsifier.rewire()
        run.train(4 * STEPS + 1)
        assert run.sparsifier.active_weights == run.sparsifier.target_weights
    for mine, theirs in zip(first.values(), twin.values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_masked_run_continues_identically(method: str, optimizer: str) -> None:
    """One order and one moment for each pair; all of them are slow."""
    number = list(METHODS).index(method) + list(OPTIMIZERS).index(optimizer)
    order, moment = ORDERS[number % len(ORDERS)], MOMENTS[number % len(MOMENTS)]
    continues_identically(method, optimizer, packed=False, order=order, moment=moment)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=needs_kernels)], ids=["masked", "packed"])
@pytest.mark.parametrize("method", METHODS)
def test_every_run_continues_identically(method: str, packed: bool, order: tuple[str, ...]) -> None:
    """Six orders by three moments: each optimizer meets every moment in two of the orders."""
    if packed and unpackable(METHODS[method]) is not None:
        pytest.skip("the method needs the masked engine")
    for number, optimizer in enumerate(OPTIMIZERS, start=ORDERS.index(order)):
        continues_identically(method, optimizer, packed, order, MOMENTS[number % len(MOMENTS)])
