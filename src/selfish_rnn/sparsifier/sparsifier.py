"""The one object a library user meets: it makes a model sparse and keeps it so while it trains."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.base import refuse_missing, saved_rewirings
from selfish_rnn.sparsifier.hooks import refuse_second_listener
from selfish_rnn.sparsifier.ranks import common_seed
from selfish_rnn.sparsifier.rewiring.matrices import Layer, Matrices, Matrix, rewire_matrices
from selfish_rnn.sparsifier.rewiring.plan import Plan
from selfish_rnn.sparsifier.selection import Selector, choose_weights, warn_of_dense
from selfish_rnn.sparsifier.starting_topologies import (
    check_saved_pool,
    check_start,
    saved_topologies,
    starting_topologies,
)
from selfish_rnn.sparsifier.topology_keeper import TopologyKeeper
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import Method, Rewiring, Schedule, prune, rewire
from selfish_rnn.topology.methods import find_method, find_part

STATE_KEYS = ("rewirings_done", "steps_done", "last_rewired_fraction", "parts", "generator", "shapes", "masks")


class Sparsifier(TopologyKeeper):
    """Makes the weight matrices of a model sparse and rewires them as a method says.

    ::

        sparsifier = Sparsifier(model, sparsity=0.67, prune_rate=0.7, rewirings=epochs)
        for epoch in range(epochs):
            train_one_epoch(model, optimizer)      # your loop, unchanged
            sparsifier.rewire()                    # remove some weights, grow as many

    Binding draws a topology for every weight matrix and sets the weights outside it to zero. From then on gradients
    outside the topology are zero (so gradient clipping counts existing weights only), and weights outside it are set
    back to zero after every step of whatever ``torch.optim`` optimizer holds them; the optimizer may be made
    before or after the sparsifier.

    Args:
        model: any module; parameters and ``state_dict`` keys stay as they are.
        sparsity: the fraction of zeros over all sparsified matrices, from 0 up to, not including, 1. Where the model
            has its topology already, it may be left out: it is what it is.
        method: a :class:`~selfish_rnn.topology.Method` or the name of one in the method table
            :data:`~selfish_rnn.METHODS`.
        prune_rate: the fraction of weights rewired, at the start of the schedule.
        rewirings: how many rewirings the run will have (with ``rewire()`` once per epoch: the number of epochs); the
            schedule takes the prune rate from ``prune_rate`` at the start to its end value at this rewiring.
        schedule: ``"cosine"`` (the paper), ``"linear"``, ``"constant"`` or a
            :class:`~selfish_rnn.topology.Schedule`.
        rewire_every: rewire by itself after every so many optimizer steps; then do not call :meth:`rewire`.
        include: only these weights, as patterns of names (of parameters, or of modules with all they hold) or types
            of modules. Default: all weights of torch's recurrent modules, cells, ``nn.Linear``, ``nn.Embedding`` and
            of registered cells.
        exclude: not these.
        rescale: divide the starting weights by ``sqrt(density)``, so that a sum over the fewer inputs varies as
            much as in the dense model.
        topology: ``"random"`` draws one; with ``"nonzero"`` the weights of the model that are not zero exist, and all
            of them stay: to go on with a model that is sparse already.
        masks: the topology by the names of weights, tensors that are not zero where a weight exists, such as
            :meth:`masks` gives; what is not named stays dense.
        seed: of the random positions; by default it comes from torch's generator, so that ``torch.manual_seed``
            decides it.

    Save and load :meth:`state_dict` with the model's and the optimizer's, in any order. Attributes to look at:
    ``weights``, ``active_weights``, ``prune_rate`` (of the next rewiring), ``last_rewired_fraction``,
    ``rewirings_done``.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sparsity: float | None = None,
        method: Method | str = "selfish",
        prune_rate: float = 0.5,
        rewirings: int | None = None,
        schedule: Schedule | str = "cosine",
        rewire_every: int | None = None,
        include: Selector | Sequence[Selector] | None = None,
        exclude: Selector | Sequence[Selector] = (),
        rescale: bool = False,
        topology: Literal["random", "nonzero"] = "random",
        masks: Mapping[str, Tensor] | None = None,
        seed: int | None = None,
    ) -> None:
        check_start(sparsity, topology, masks)
        self.method = find_method(method)
        self._plan = Plan(self.method, find_part("schedule", schedule), prune_rate, rewirings, rewire_every)
        self.rewirings_done = 0
        self.steps_done = 0
        self._generator = torch.Generator().manual_seed(common_seed() if seed is None else seed)
        self._part_state = self.method.first_state()
        self._step_counter: weakref.ref[Optimizer] | None = None
        chosen = list(choose_weights(model, include if masks is None else list(masks), exclude))
        if include is None and masks is None:
            warn_of_dense(model, chosen, exclude)
        refuse_second_listener(model, {id(each.parameter): each.name for each in chosen})
        self._matrices = Matrices(model, chosen, self.method.pool)
        topologies, self._topology_given = starting_topologies(
            chosen, self._matrices, self.method, sparsity, topology, masks, self._generator
        )
        self._counts = self._matrices.counts(topologies)
        found = 1 - sum(self._counts) / sum(each.size for each in topologies)
        self.sparsity = found if sparsity is None else sparsity
        weights: list[SparseWeight] = []
        for each, drawn in zip(chosen, topologies, strict=True):
            weight = each.bind(drawn)
            if rescale:
                with torch.no_grad():
                    weight.parameter.div_(math.sqrt(drawn.density))
            weights.append(weight)
        super().__init__(model, weights, self.method)
        own = set(map(id, self.hooked_parameters))
        self._left_dense = [
            (name, parameter.numel())
            for name, parameter in model.named_parameters()
            if parameter.ndim > 1 and id(parameter) not in own
        ]
        self._await_rewiring()

    def reseed(self, seed: int) -> None:
        """Draw the positions of all further rewirings from another seed than the starting topology."""
        self._generator.manual_seed(seed)

    def replace_weights(self, model: nn.Module, weights: Sequence[SparseWeight], before: nn.Module) -> None:
        super().replace_weights(model, weights, before)
        self._await_rewiring()

    # Counting

    @property
    def target_weights(self) -> int:
        """How many should: always the same number, but for a method that prunes a dense network step by step."""
        return self._target_after(self.rewirings_done)

    def _target_after(self, rewirings: int) -> int:
        return sum(self._counts_after(rewirings))

    def _counts_after(self, rewirings: int) -> list[int]:
        if not self.method.prunes:
            return self._counts
        counts = self.method.counts(self._matrices.shapes, self.sparsity, rewirings, self.rewirings)
        matrices = self._matrices.of(self.weights)
        return [each.count if each.frozen else count for each, count in zip(matrices, counts, strict=True)]

    @property
    def at_target(self) -> bool:
        """Whether the network is as sparse as it is to be; a method that prunes comes to that late in the run."""
        return self.target_weights == self._target_after(self.rewirings or 0)

    @property
    def rewirings(self) -> int | None:
        """How many rewirings the run has; another number lengthens or shortens the schedule."""
        return self._plan.rewirings

    @rewirings.setter
    def rewirings(self, rewirings: int | None) -> None:
        self._plan = replace(self._plan, rewirings=rewirings)

    @property
    def rewire_every(self) -> int | None:
        """After how many optimizer steps it rewires by itself, if it does."""
        return self._plan.rewire_every

    @property
    def prune_rate(self) -> float:
        """The fraction of weights the next rewiring removes and grows."""
        return self._plan.rate(self.rewirings_done + 1)

    # Rewiring

    def rewire(self) -> None:
        """Rewire every sparsified matrix once; call it after each epoch.

        The number of existing weights stays exactly what was promised. Grown weights start at zero, and whatever the
        optimizer remembers of removed and grown weights (momentum, averages, ages) starts afresh; the second moment by
        which Adam and its kin divide starts at its mean over the surviving weights of the matrix. Frozen weights
        (``requires_grad=False``) stay as they are. NaN, infinities and parameters that are no longer the model's are
        an error.
        """
        if self.rewire_every is not None:
            raise RuntimeError(f"rewire() happens by itself every {self.rewire_every} steps; do not call it")
        self._rewire_now()

    def _rewire_now(self) -> None:
        if any(getattr(optimizer, "averages_swapped_in", False) for optimizer in self._optimizers):
            raise RuntimeError("rewiring needs the raw weights: call rewire() outside optimizer.averaged()")
        self.refuse_lost_weights()
        self._check_loaded()
        for weight in self.weights:
            weight.refuse_non_finite()
        rate = self.prune_rate
        self.rewirings_done += 1
        self.last_rewired_fraction = 0.0
        matrices = self._matrices.rewired(self.weights)
        if matrices and (self.method.prunes or rate > 0):
            before, rewirings = self.active_weights, self._rewirings(matrices, rate)
            optimizers = [each for each in self._optimizers if not self._scores.is_momentum_of(each)]
            removed = rewire_matrices(matrices, rewirings, optimizers, self._scores.in_momentum())
            self.last_rewired_fraction = removed / before
        self._scores.clear()

    def _rewirings(self, matrices: Sequence[Matrix | Layer], rate: float) -> Iterator[Rewiring]:
        network = [partial(matrix.existing, self._scores.score) for matrix in matrices]
        if not self.method.prunes:
            return rewire(self.method, network, rate, self._generator, self._part_state)
        every, counts = self._matrices.of(self.weights), self._counts_after(self.rewirings_done)
        thawed = [count for matrix, count in zip(every, counts, strict=True) if not matrix.frozen]
        return prune(self.method, network, thawed, self._generator)

    def on_step(self, optimizer: Optimizer, held: Sequence[int]) -> None:
        super().on_step(optimizer, held)
        if self.rewire_every is not None and self._counts_steps(optimizer):
            self.steps_done += 1
            if self._plan.due(self.steps_done):
                self._rewire_now()
            self._await_rewiring()

    def _await_rewiring(self) -> None:
        """If the next step is followed by a rewiring by itself, its gradients may be needed."""
        if self._plan.due(self.steps_done + 1):
            self._scores.start()

    def _counts_steps(self, optimizer: Optimizer) -> bool:
        """With several optimizers the first one's steps are counted, so that an iteration counts once."""
        if self._step_counter is None or self._step_counter() is None:
            self._step_counter = weakref.ref(optimizer)
        return self._step_counter() is optimizer

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Topology, random generator and progress; masks as bits, or as positions where these are smaller.

        Dense gradients that wait for a rewiring, too.
        """
        collected = {weight.name: weight.collected_gradient() for weight in self.weights if weight.has_gradient}
        return {
            **({"gradients": collected} if collected else {}),
            "rewirings": self.rewirings,
            "rewirings_done": self.rewirings_done,
            "steps_done": self.steps_done,
            "last_rewired_fraction": self.last_rewired_fraction,
            "parts": dict(self._part_state),
            "pool": self.method.pool.name if self.method.removal else None,
            "generator": self._generator.get_state(),
            "shapes": {weight.name: list(weight.shape) for weight in self.weights},
            "masks": {weight.name: weight.topology.to_saved() for weight in self.weights},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved topology; it must be of the same matrices with the same number of weights.

        Weights that were loaded before keep their values where they are in it. The saved number of ``rewirings`` is
        taken over with the rest, as schedulers of torch do; a warning says so where it is another one.
        """
        refuse_missing(state, STATE_KEYS, "a sparsifier")
        if state["parts"].keys() != self._part_state.keys():
            raise ValueError(
                f"the saved state is of another method than {self.method.name!r}: its parts keep other things"
            )
        check_saved_pool(state, self.method)
        topologies = saved_topologies(self.weights, state["masks"], state["shapes"])
        own, self.rewirings = self.rewirings, saved_rewirings(state, self.rewirings)
        count = sum(topology.count for topology in topologies)
        promised = self._target_after(state["rewirings_done"])
        if self._topology_given:  # weights that have just grown were not counted among the non-zeros
            self._counts = self._matrices.counts(topologies)
        elif count != promised:
            self.rewirings = own
            raise ValueError(f"the saved topology has {count} weights, this sparsifier's settings give {promised}")
        for weight, topology in zip(self.weights, topologies, strict=True):
            weight.load_topology(topology)
            if not self._weights_loaded:
                weight.apply_mask()
        self.rewirings_done = state["rewirings_done"]
        self.steps_done = state["steps_done"]
        self.last_rewired_fraction = state["last_rewired_fraction"]
        self._part_state = dict(state["parts"])
        self._generator.set_state(state["generator"].to(torch.uint8))
        for weight in self.weights:
            weight.forget_gradient()
            if weight.name in state.get("gradients", {}):
                weight.take_gradient(state["gradients"][weight.name])
        self._await_rewiring()

    # Looking

    def __repr__(self) -> str:
        return (
            f"Sparsifier(method={self.method.name!r}, sparsity={self.sparsity:g}, matrices={len(self.weights)}, "
            f"weights={self.active_weights:,} of {self.total_weights:,}, rewirings_done={self.rewirings_done})"
        )

    def summary(self) -> str:
        """A table of the sparsified matrices (shape, weights, density, density of each gate), and what stays dense."""
        dense = ", ".join(f"{name} ({size:,})" for name, size in self._left_dense)
        return super().summary() + (f"\nleft dense: {dense}" if dense else "")
