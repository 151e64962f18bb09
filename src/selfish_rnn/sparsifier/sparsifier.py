"""The Sparsifier: it makes a model sparse, and keeps it sparse while it trains."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.base import SparseTraining, refuse_missing, saved_rewirings
from selfish_rnn.sparsifier.distributed import ParallelWrapper, common_seed
from selfish_rnn.sparsifier.hooks import Hooks, ManualUpdates, refuse_second_listener
from selfish_rnn.sparsifier.optimizer_state import optimizers_of
from selfish_rnn.sparsifier.rewiring import DenseScores, Layer, Matrices, Matrix, Plan, rewire_matrices
from selfish_rnn.sparsifier.selection import Chosen, Selector, choose_weights, warn_of_dense
from selfish_rnn.sparsifier.start import (
    MIN_SIDE,
    NamedSparsities,
    WeightBudget,
    check_saved_pool,
    check_start,
    pruned_counts,
    rescale_,
    saved_topologies,
    starting_topologies,
    warn_of_cut_off,
    weight_budgets,
    with_allocation,
    without_narrow,
)
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import Allocation, Method, Rewiring, Schedule, prune, rewire
from selfish_rnn.topology.layout import topology_tensors
from selfish_rnn.topology.methods import find_method, find_part

STATE_KEYS = ("rewirings_done", "steps_done", "last_rewired_fraction", "parts", "generator", "shapes", "topologies")


class Sparsifier(SparseTraining):
    """Makes the weight matrices of a model sparse and rewires them by a method.

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
            has its topology already, it may be left out: it is what it is. A mapping gives every matrix its own
            sparsity, by patterns of names as in ``include``: ``{"*": 0.9, "out": 0}``. Of several patterns that match,
            the last one counts. A mapping in place of a number gives every gate its own. A matrix of sparsity 0 stays
            dense, counts as sparsified, and is never rewired.
        method: a :class:`~selfish_rnn.topology.Method` or the name of one in the method table
            :data:`~selfish_rnn.METHODS`.
        allocation: how the weights are divided over the matrices at the start, as the name of a registered
            :class:`~selfish_rnn.topology.Allocation` (``"uniform"``, ``"er"``) or the allocation itself. Default: that
            of the method.
        prune_rate: the fraction of weights rewired, at the start of the schedule.
        rewirings: how many rewirings the run will have (with ``rewire()`` once per epoch: the number of epochs); the
            schedule takes the prune rate from ``prune_rate`` at the start to its end value at this rewiring.
        schedule: ``"cosine"`` (the paper), ``"linear"``, ``"constant"`` or a
            :class:`~selfish_rnn.topology.Schedule`.
        rewire_every: rewire by itself after every so many optimizer steps; then do not call :meth:`rewire`. In a loop
            without an optimizer changes of the weights are counted, after a warning.
        include: only these weights, as patterns of names (of parameters, or of modules with all they hold) or types
            of modules. Default: all weights of torch's recurrent modules, cells, ``nn.Linear``, ``nn.Embedding`` and
            of registered cells.
        exclude: not these.
        min_side: matrices with fewer rows or columns than this stay dense, as if excluded, because a narrow sparse
            matrix cuts units off. The rule does not apply where ``include``, ``masks`` or a mapping for ``sparsity``
            name the weights, nor to a model of narrow matrices only; 1 makes every matrix sparse, as in the paper.
        rescale: divide the starting weights by ``sqrt(density)``, so that a sum over fewer inputs varies as much as
            in the dense model. Default: wherever a topology is drawn, except in matrices that are mostly zero already.
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
        sparsity: float | NamedSparsities | None = None,
        method: Method | str = "selfish",
        allocation: Allocation | str | None = None,
        prune_rate: float = 0.5,
        rewirings: int | None = None,
        schedule: Schedule | str = "cosine",
        rewire_every: int | None = None,
        include: Selector | Sequence[Selector] | None = None,
        exclude: Selector | Sequence[Selector] = (),
        min_side: int = MIN_SIDE,
        rescale: bool | None = None,
        topology: Literal["random", "nonzero"] = "random",
        masks: Mapping[str, Tensor] | None = None,
        seed: int | None = None,
    ) -> None:
        check_start(sparsity, topology, masks, allocation)
        self.method = with_allocation(find_method(method), allocation)
        self._plan = Plan(self.method, find_part("schedule", schedule), prune_rate, rewirings, rewire_every)
        self.rewirings_done = 0
        self.steps_done = 0
        self._generator = torch.Generator().manual_seed(common_seed() if seed is None else seed)
        self._part_state = self.method.first_state()
        self._step_counter: weakref.ref[Optimizer] | None = None
        self._manual_updates = ManualUpdates(rewire_every)
        chosen = list(choose_weights(model, include if masks is None else list(masks), exclude))
        narrow: list[Chosen] = []
        if include is None and masks is None:
            if not isinstance(sparsity, Mapping):
                chosen, narrow = without_narrow(model, chosen, min_side, existing=topology == "nonzero")
            warn_of_dense(model, chosen, exclude)
        refuse_second_listener(model, {id(each.parameter): each.name for each in chosen})
        budgets: list[WeightBudget] | None = None
        if isinstance(sparsity, Mapping):
            budgets = weight_budgets(model, chosen, sparsity)
            sparsity = 1 - sum(each.count for each in budgets) / sum(each.size for each in chosen)
        self._rewired = [number for number in range(len(chosen)) if budgets is None or not budgets[number].stays_dense]
        self._left_full = sum(each.size for number, each in enumerate(chosen) if number not in self._rewired)
        self._matrices = Matrices(model, [chosen[number] for number in self._rewired], self.method.pool)
        topologies, self._topology_given = starting_topologies(
            chosen, self._matrices, self.method, sparsity, budgets, allocation, topology, masks, self._generator
        )
        if sparsity is None:
            sparsity = 1 - sum(each.count for each in topologies) / sum(each.size for each in topologies)
        self.sparsity = sparsity
        if not self._topology_given:
            uniform = budgets is None and self.method.allocation.name == "uniform"
            warn_of_cut_off(model, chosen, topologies, sparsity, [each.name for each in narrow], uniform)
        self._counts = self._matrices.counts([topologies[number] for number in self._rewired])
        self._budgets = budgets
        weights = [each.bind(drawn) for each, drawn in zip(chosen, topologies, strict=True)]
        if rescale or (rescale is None and not self._topology_given):
            densities = self._matrices.densities([topologies[number] for number in self._rewired])
            for number, density in zip(self._rewired, densities, strict=True):
                if rescale or not weights[number].was_sparse:  # a trained model may find its saved topology next
                    weight_budget = None if budgets is None else budgets[number]
                    rescale_(weights[number].parameter, topologies[number], density, weight_budget)
        self.weights: list[SparseWeight] = weights
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._ddp = ParallelWrapper()
        self._resumed = False
        self._weights_loaded = False
        self._stays_dense = self.active_weights == self.total_weights and not self.method.prunes
        self._scores = DenseScores(self.method.signal, weights, self._optimizers)
        self._hooks = Hooks(self, model)
        self._mask_gradients()
        own = set(map(id, self.hooked_parameters))
        self._left_dense = [
            (name, parameter.numel())
            for name, parameter in model.named_parameters()
            if parameter.ndim > 1 and id(parameter) not in own
        ]
        self._await_rewiring()

    @property
    def sparse_weights(self) -> list[SparseWeight]:
        return self.weights

    @property
    def _rewired_weights(self) -> list[SparseWeight]:
        """All weights but those that ``sparsity`` leaves dense."""
        return [self.weights[number] for number in self._rewired]

    @property
    def in_training(self) -> bool:
        """Whether an optimizer that holds some of the weights has made a step."""
        return bool(self._optimizers)

    def reseed(self, seed: int) -> None:
        """Draw the positions of all further rewirings from another seed than the starting topology."""
        self._generator.manual_seed(seed)

    def replace_weights(
        self, model: nn.Module, convert: Callable[[SparseWeight], SparseWeight], before: nn.Module
    ) -> None:
        """Replace every weight by another form of it, with the same topology.

        ``model`` has the new forms. ``before`` is the same model, or the module that it replaces. No optimizer may hold
        the old parameters.
        """
        if self.in_training:
            raise RuntimeError("the weights of a model change their form before its optimizer is made, not after")
        weights = [convert(weight) for weight in self.weights]
        self._hooks.release()
        self.weights[:] = weights
        self._hooks = Hooks(self, model, before)
        self._await_rewiring()

    def track(self, optimizer: Optimizer) -> None:
        """Reset this optimizer's state of rewired weights at rewirings.

        Happens by itself at the optimizer's first step, and at a rewiring between :meth:`load_state_dict` and that
        step.
        """
        self._optimizers.add(optimizer)

    def _track_resumed(self) -> None:
        """Track the optimizers of a resumed run, which have state but have made no step in this process."""
        if self._resumed and not self._optimizers:
            for optimizer in optimizers_of(self.hooked_parameters):
                self.track(optimizer)
        self._resumed = False

    def register_ddp(self, wrapper: DistributedDataParallel | None) -> None:
        """Register the ``DistributedDataParallel`` around the model; None if you reduce gradients yourself.

        It is needed for a packed model under several processes, with methods that change the number of weights of a
        matrix (DSR, GMP): the wrapper then plans its reductions again after such a rewiring.
        """
        self._ddp.register(wrapper, self.hooked_parameters)

    def apply_masks(self) -> None:
        """Set all weights outside the topology to zero.

        The steps of torch's optimizers do this. Call it after any other change of the weights: an update of your own,
        added noise, an average copied into the model.
        """
        if not self._stays_dense:
            for weight in self.weights:
                weight.apply_mask()

    def dense_gradients(self) -> contextlib.AbstractContextManager[None]:
        """Put the last pass before a :meth:`rewire`, forward and backward, in this block if growth goes by gradient.

        ::

            with sparsifier.dense_gradients():
                loss = criterion(model(inputs), targets)
                loss.backward()

        Only RigL, and SNFS with an optimizer without momentum, collect anything in it; with ``rewire_every`` it
        happens by itself.
        """
        return self._scores.collecting()

    # Counting

    @property
    def target_weights(self) -> int:
        """How many should: always the same number, but for a method that prunes a dense network step by step."""
        return self._target_after(self.rewirings_done)

    def _target_after(self, rewirings: int) -> int:
        return self._left_full + sum(self._counts_after(rewirings))

    def _counts_after(self, rewirings: int) -> list[int]:
        if not self.method.prunes:
            return self._counts
        matrices = self._matrices.of(self._rewired_weights)
        names = [[part.name for part in matrix.parts] for matrix in matrices]
        shapes, planned = self._matrices.shapes, self.rewirings
        counts = pruned_counts(self.method, shapes, names, self._budgets or self.sparsity, rewirings, planned)
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
        (``requires_grad=False``) stay as they are. NaN, infinities, weights outside the topology and parameters that
        are no longer the model's are an error.
        """
        if self.rewire_every is not None:
            raise RuntimeError(f"rewire() happens by itself every {self.rewire_every} steps; do not call it")
        self._rewire_now()

    def _rewire_now(self) -> None:
        if any(getattr(optimizer, "averages_swapped_in", False) for optimizer in self._optimizers):
            raise RuntimeError("rewiring needs the raw weights: call rewire() outside optimizer.averaged()")
        self.refuse_lost_weights()
        self._check_loaded()
        self._track_resumed()
        for weight in self.weights:
            weight.check_finite()
            weight.check_trained_weights()
        rate = self.prune_rate
        self.rewirings_done += 1
        self.last_rewired_fraction = 0.0
        matrices = self._matrices.rewired(self._rewired_weights)
        if matrices and (self.method.prunes or rate > 0):
            before, rewirings = self.active_weights, self._rewirings(matrices, rate)
            optimizers = [each for each in self._optimizers if not self._scores.is_momentum_of(each)]
            removed = rewire_matrices(matrices, rewirings, optimizers, self._scores.in_momentum(), self._ddp)
            self.last_rewired_fraction = removed / before
        self._scores.clear()

    def _rewirings(self, matrices: Sequence[Matrix | Layer], rate: float) -> Iterator[Rewiring]:
        network = [partial(matrix.existing, self._scores.score) for matrix in matrices]
        if not self.method.prunes:
            return rewire(self.method, network, rate, self._generator, self._part_state)
        every, counts = self._matrices.of(self._rewired_weights), self._counts_after(self.rewirings_done)
        thawed = [count for matrix, count in zip(every, counts, strict=True) if not matrix.frozen]
        return prune(self.method, network, thawed, self._generator)

    # Events of hooks

    def on_gradient(self, index: int, gradient: Tensor) -> Tensor | None:
        weight = self.weights[index]
        if self._manual_updates.backward(index, weight.parameter):
            self._hooks.listen_to_forward()
        # Methods that grow by the gradient collect it before it is masked.
        weight.gradient_computed(gradient)
        return None if self._gradients_stay_dense else weight.masked_gradient(gradient)

    def before_step(self) -> None:
        # After the step it would be too late: momentum of all positions moves weights outside the topology.
        self._check_loaded()

    def on_step(self, optimizer: Optimizer, held: Sequence[int]) -> None:
        self.track(optimizer)
        self._resumed = False
        if not self._stays_dense:
            for index in held:
                self.weights[index].apply_mask()
        self._manual_updates.reset()
        self._hooks.ignore_forward()
        if self.rewire_every is not None and self._counts_steps(optimizer):
            self._count_step()

    def on_load(self) -> None:
        self._weights_loaded = True  # their topology may be loaded after them
        self._manual_updates.forget()

    def on_forward(self) -> None:
        if any(True for _ in self._hooks.lost()):
            return  # torch.func.functional_call has put other tensors in their place for this pass
        if self._manual_updates.updated(self.hooked_parameters):
            self._count_step()
        self._manual_updates.look(self.hooked_parameters)

    def _count_step(self) -> None:
        self.steps_done += 1
        if self._plan.due(self.steps_done):
            self._rewire_now()
        self._await_rewiring()

    @property
    def _gradients_stay_dense(self) -> bool:
        return self._stays_dense or self._scores.in_momentum()

    def _mask_gradients(self) -> None:
        """Mask gradients from before the topology was set."""
        if not self._gradients_stay_dense:
            for weight in self.weights:
                weight.mask_gradient()

    def _check_loaded(self) -> None:
        if self._weights_loaded:
            for weight in self.weights:
                weight.check_loaded_weights()
        self._weights_loaded = False
        for weight in self.weights:
            weight.drop_backup()

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
        """Return topologies, random generator and progress, and dense gradients that wait for a rewiring.

        Topologies are in the layout of ``docs/format.md``; a matrix without positions or bits has all its weights.
        """
        occasional = {
            "gradients": {weight.name: weight.collected_gradient() for weight in self.weights if weight.has_gradient},
            "gradients_in_momentum": self._scores.in_momentum() if self._scores.by_momentum else None,
            "manual_updates": self._manual_updates.state(self.hooked_parameters),
        }
        return {
            **{key: value for key, value in occasional.items() if value not in (None, {})},
            "rewirings": self.rewirings,
            "rewirings_done": self.rewirings_done,
            "steps_done": self.steps_done,
            "last_rewired_fraction": self.last_rewired_fraction,
            "parts": dict(self._part_state),
            "pool": self.method.pool.name if self.method.removal else None,
            "generator": self._generator.get_state(),
            "shapes": {weight.name: list(weight.shape) for weight in self.weights},
            "topologies": {
                name: tensor
                for weight in self.weights
                if weight.count < weight.size
                for name, tensor in topology_tensors(weight.name, weight.topology).items()
            },
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
        topologies = saved_topologies(self.weights, state["topologies"], state["shapes"])
        for budget, saved in zip(self._budgets or (), topologies, strict=False):
            if budget.stays_dense and saved.count < saved.size:
                raise ValueError(
                    f"sparsity= leaves {budget.chosen.name} dense, and in the saved topology it is sparse: bind the "
                    "model with the sparsity that the saved run had"
                )
        own, self.rewirings = self.rewirings, saved_rewirings(state, self.rewirings)
        count = sum(topology.count for topology in topologies)
        promised = self._target_after(state["rewirings_done"])
        if self._topology_given:  # weights that have just grown were not counted among the non-zeros
            self._counts = self._matrices.counts([topologies[number] for number in self._rewired])
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
        self._scores.resume(state.get("gradients_in_momentum", True))
        self._manual_updates.resume(state.get("manual_updates", {}))
        if self._manual_updates.counting:
            self._hooks.listen_to_forward()
        self._resumed = True
        self._mask_gradients()
        for weight in self.weights:
            weight.drop_gradient()
            if weight.name in state.get("gradients", {}):
                weight.load_gradient(state["gradients"][weight.name])
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
