"""The Sparsifier makes a model sparse, and keeps it sparse while it trains."""

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

from selfish_rnn.sparsifier.base import SparseTraining
from selfish_rnn.sparsifier.budgets import (
    NamedSparsities,
    WeightBudget,
    grouped_counts,
    missing_weights,
    overall_sparsity,
    prune_counts,
    total,
    weight_budgets,
)
from selfish_rnn.sparsifier.distributed import ParallelWrapper, common_seed
from selfish_rnn.sparsifier.hooks import Hooks, ManualUpdates, check_unbound
from selfish_rnn.sparsifier.optimizer_state import optimizers_of
from selfish_rnn.sparsifier.rewiring import DenseScores, Layer, Matrices, Matrix, Plan, rewire_matrices
from selfish_rnn.sparsifier.selection import Candidate, Selector, choose_weights, dense_matrices, warn_of_dense
from selfish_rnn.sparsifier.start import (
    MIN_SIDE,
    check_start,
    rescale_,
    starting_topologies,
    warn_of_cut_off,
    with_allocation,
    without_narrow,
)
from selfish_rnn.sparsifier.state import (
    checked_topologies,
    load_gradients,
    saved_rewirings,
    saved_topologies_of,
    weight_gradients,
)
from selfish_rnn.sparsifier.units import Granularity, views_of
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import Allocation, Method, Rewiring, Schedule, prune, rewire
from selfish_rnn.topology.methods import find_method, find_part
from selfish_rnn.topology.rewiring import PruneCount


class Sparsifier(SparseTraining):
    """Makes the weight matrices of a model sparse and rewires them by a method.

    ::

        sparsifier = Sparsifier(model, sparsity=0.67, prune_rate=0.7, rewirings=epochs)
        for epoch in range(epochs):
            train_one_epoch(model, optimizer)      # your loop, unchanged
            sparsifier.rewire()                    # remove some weights, grow as many

    Binding draws a topology for every weight matrix and sets the weights outside it to zero. From then on gradients
    outside the topology are zero (so gradient clipping counts existing weights only), and weights outside it are set
    back to zero after every step of the ``torch.optim`` optimizers that hold them. The optimizer may be made before or
    after the sparsifier.

    Args:
        model: any module; parameters and ``state_dict`` keys stay as they are.
        sparsity: fraction of zeros over all sparse matrices, at least 0 and less than 1. It may be left out if the
            model has a topology already. A mapping gives every matrix its own sparsity, by patterns of names as in
            ``include``: ``{"*": 0.9, "out": 0}``. The last matching pattern counts. A mapping in place of a number
            gives every gate its own. A matrix of sparsity 0 stays dense, counts as sparsified, and is never rewired.
        method: a :class:`~selfish_rnn.topology.Method` or the name of one in :data:`~selfish_rnn.METHODS`.
        allocation: rule that divides the weights over the matrices at the start: an
            :class:`~selfish_rnn.topology.Allocation` or the name of one (``"uniform"``, ``"er"``). Default: that of the
            method.
        prune_rate: the fraction of weights rewired, at the start of the schedule.
        rewirings: number of rewirings of the run (with ``rewire()`` once per epoch: the number of epochs). The schedule
            lowers the prune rate from ``prune_rate`` to its end value at this rewiring.
        schedule: ``"cosine"`` (the paper), ``"linear"``, ``"constant"`` or a
            :class:`~selfish_rnn.topology.Schedule`.
        rewire_every: number of optimizer steps between automatic rewirings; then do not call :meth:`rewire`. In a loop
            without an optimizer, changes of the weights are counted, after a warning.
        include: only these weights, as patterns of names (of parameters, or of modules with all they hold) or types
            of modules. Default: all weights of torch's recurrent modules, cells, ``nn.Linear``, ``nn.Embedding`` and
            of registered cells.
        exclude: patterns or types of weights that stay dense.
        granularity: the unit that is removed and grown: ``"1x1"`` for single weights, or blocks of rows x columns such
            as ``"8x4"``. The rows of every gate and the columns must be multiples of it. Sparsity, allocation and
            budgets then count blocks, and a block has the mean square of its weights as score. A mapping gives
            granularities by patterns of names, as in ``include``.
        keep_diagonal: always keep the diagonals of the gates of recurrent matrices, in addition to the budget.
            ``True`` for all matrices named ``weight_hh`` or ``recurrent``, or patterns of names.
        min_side: matrices with fewer rows or columns than this stay dense, as if excluded, because a narrow sparse
            matrix cuts units off. The rule does not apply where ``include``, ``masks`` or a mapping for ``sparsity``
            name the weights, nor to a model of narrow matrices only; 1 makes every matrix sparse, as in the paper.
        rescale: divide the starting weights by ``sqrt(density)``, so that a sum over fewer inputs varies as much as
            in the dense model. Default: if a topology is drawn, except in matrices that are mostly zero already.
        topology: ``"random"`` draws one. With ``"nonzero"`` the nonzero weights of the model exist: use it to continue
            with a sparse model.
        masks: topology by the names of weights: tensors that are not zero where a weight exists, as :meth:`masks`
            returns them. Other weights stay dense.
        seed: seed of the random positions. Default: drawn from torch's generator, so ``torch.manual_seed`` decides it.

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
        granularity: Granularity | Mapping[str, Granularity] = "1x1",
        keep_diagonal: bool | str | Sequence[str] = False,
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
        narrow: list[Candidate] = []
        if include is None and masks is None:
            if not isinstance(sparsity, Mapping):
                chosen, narrow = without_narrow(model, chosen, min_side, existing=topology == "nonzero")
            warn_of_dense(model, chosen, exclude)
        check_unbound(model, {id(candidate.parameter): candidate.name for candidate in chosen})
        views = views_of(chosen, granularity, keep_diagonal, self.method)
        budgets: list[WeightBudget] | None = None
        if isinstance(sparsity, Mapping):
            budgets = weight_budgets(model, chosen, views, sparsity)
            sparsity = overall_sparsity(budgets)
        self._rewired = [number for number in range(len(chosen)) if budgets is None or not budgets[number].stays_dense]
        self._left_full = sum(candidate.size for number, candidate in enumerate(chosen) if number not in self._rewired)
        rewired = [chosen[number] for number in self._rewired]
        self._matrices = Matrices(model, rewired, [views[number] for number in self._rewired], self.method.pool)
        topologies, self._topology_given = starting_topologies(
            chosen, views, self._matrices, self.method, sparsity, budgets, allocation, topology, masks, self._generator
        )
        if sparsity is None:
            sparsity = overall_sparsity(topologies)
        self.sparsity = sparsity
        if not self._topology_given:
            uniform = budgets is None and self.method.allocation.name == "uniform"
            warn_of_cut_off(model, chosen, topologies, sparsity, [candidate.name for candidate in narrow], uniform)
        self._counts = self._matrices.counts([topologies[number] for number in self._rewired])
        self._budgets = budgets
        weights = [candidate.bind(start) for candidate, start in zip(chosen, topologies, strict=True)]
        if rescale or (rescale is None and not self._topology_given):
            densities = self._matrices.densities([topologies[number] for number in self._rewired])
            for number, density in zip(self._rewired, densities, strict=True):
                if rescale or not weights[number].was_sparse:  # a saved topology may be loaded next
                    own_budget = budgets[number] if budgets else None
                    rescale_(weights[number].parameter, topologies[number], density, own_budget)
        self.weights: list[SparseWeight] = weights
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._ddp = ParallelWrapper()
        self._resumed = False
        self._weights_loaded = False
        self._stays_dense = self.active_weights == self.total_weights and not self.method.prunes
        self._scores = DenseScores(self.method.signal, weights, self._optimizers)
        self._hooks = Hooks(self, model)
        self._mask_gradients()
        self._left_dense = dense_matrices(model, self.hooked_parameters)
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
        """True if an optimizer of the weights has made a step."""
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

        The first step of the optimizer does this, and a rewiring between :meth:`load_state_dict` and that step.
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
        """Collect dense gradients: put the last pass before :meth:`rewire` in this block if growth uses gradients.

        ::

            with sparsifier.dense_gradients():
                loss = criterion(model(inputs), targets)
                loss.backward()

        Only RigL, and SNFS with an optimizer without momentum, need it. With ``rewire_every`` it happens by itself.
        """
        return self._scores.collecting()

    # Counting

    @property
    def target_weights(self) -> int:
        """Number of weights that the method promises; it changes if the method prunes or blocks keep a diagonal."""
        matrices = self._matrices.of(self._rewired_weights)
        return self.active_weights + missing_weights(matrices, self._counts_after(self.rewirings_done))

    def _units_after(self, rewirings: int) -> int:
        return sum(map(total, self._counts_after(rewirings)))

    def _counts_after(self, rewirings: int) -> list[PruneCount]:
        if not self.method.prunes:
            return [*self._counts]
        matrices = self._matrices.of(self._rewired_weights)
        return prune_counts(self.method, matrices, self._budgets or self.sparsity, rewirings, self.rewirings)

    @property
    def at_target(self) -> bool:
        """True if the network has its final sparsity, which a method that prunes reaches late in the run."""
        return self._units_after(self.rewirings_done) == self._units_after(self.rewirings or 0)

    @property
    def rewirings(self) -> int | None:
        """Number of rewirings of the run; another number lengthens or shortens the schedule."""
        return self._plan.rewirings

    @rewirings.setter
    def rewirings(self, rewirings: int | None) -> None:
        self._plan = replace(self._plan, rewirings=rewirings)

    @property
    def rewire_every(self) -> int | None:
        """Number of optimizer steps after which it rewires by itself, if any."""
        return self._plan.rewire_every

    @property
    def prune_rate(self) -> float:
        """Fraction of weights that the next rewiring removes and grows."""
        return self._plan.rate(self.rewirings_done + 1)

    # Rewiring

    def rewire(self) -> None:
        """Rewire every sparsified matrix once; call it after each epoch.

        The number of existing weights stays exact. Grown weights start at zero. The optimizer state of removed and
        grown weights (momentum, averages, ages) is reset; second moments, as in Adam, start at their mean over the
        surviving weights of the matrix. Frozen weights (``requires_grad=False``) do not change. NaN, infinities,
        weights outside the topology and parameters that were replaced in the model raise an error.
        """
        if self.rewire_every is not None:
            raise RuntimeError(f"rewire() happens by itself every {self.rewire_every} steps; do not call it")
        self._rewire_now()

    def _rewire_now(self) -> None:
        if any(getattr(optimizer, "averages_swapped_in", False) for optimizer in self._optimizers):
            raise RuntimeError("rewiring needs the raw weights: call rewire() outside optimizer.averaged()")
        self.check_weights()
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
            optimizers = [optimizer for optimizer in self._optimizers if not self._scores.is_momentum_of(optimizer)]
            entries = [matrix for matrix, _ in matrices]
            removed = rewire_matrices(entries, rewirings, optimizers, self._scores.in_momentum(), self._ddp)
            self.last_rewired_fraction = removed / before
        self._scores.clear()

    def _rewirings(self, matrices: Sequence[tuple[Matrix | Layer, list[int]]], rate: float) -> Iterator[Rewiring]:
        """Return the rewirings of matrices or layers, each of which comes with the indices of its matrices."""
        network = [partial(matrix.existing, self._scores) for matrix, _ in matrices]
        progress = self._plan.progress(self.rewirings_done)
        counts = None
        if self.method.prunes:
            counts = grouped_counts(self._counts_after(self.rewirings_done), [members for _, members in matrices])
        if counts is not None and not self.method.rewires:
            return prune(self.method, network, counts, self._generator, progress)
        return rewire(self.method, network, rate, self._generator, self._part_state, counts, progress)

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

    def on_step(self, optimizer: Optimizer, indices: Sequence[int]) -> None:
        self.track(optimizer)
        self._resumed = False
        if not self._stays_dense:
            for index in indices:
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
        """Collect dense gradients if a rewiring follows the next step."""
        if self._plan.due(self.steps_done + 1):
            self._scores.start()

    def _counts_steps(self, optimizer: Optimizer) -> bool:
        """Return whether steps of this optimizer count: those of the first one, so that an iteration counts once."""
        if self._step_counter is None or self._step_counter() is None:
            self._step_counter = weakref.ref(optimizer)
        return self._step_counter() is optimizer

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return topologies, random generator and progress, and gradients that a rewiring will use.

        Topologies are in the layout of ``docs/format.md``; a matrix without positions or bits has all its weights.
        """
        occasional = {
            "gradients": {weight.name: weight.collected_gradient() for weight in self.weights if weight.has_gradient},
            "weight_gradients": weight_gradients(self.weights) if self.method.uses_weight_gradients else {},
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
            "topologies": saved_topologies_of(self.weights),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved topology of the same matrices with the same number of weights.

        Weights that were loaded before keep their values inside it. The number of ``rewirings`` is loaded too, as in
        torch's schedulers; a warning says so if it differs.
        """
        topologies = checked_topologies(state, self.weights, self.method, self._part_state, self._budgets or ())
        rewirings, self.rewirings = self.rewirings, saved_rewirings(state, self.rewirings)
        counts = self._matrices.counts([topologies[number] for number in self._rewired])
        promised = self._units_after(state["rewirings_done"])
        if self._topology_given:  # weights that have just grown were not counted among the non-zeros
            self._counts = counts
        elif sum(counts) != promised:
            self.rewirings, full = rewirings, self._left_full
            weights = f"{full + sum(counts)} weights, this sparsifier's settings give {full + promised}"
            raise ValueError(f"the saved topology has {weights}")
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
        load_gradients(self.weights, state)
        self._await_rewiring()

    # Looking

    def __repr__(self) -> str:
        return (
            f"Sparsifier(method={self.method.name!r}, sparsity={self.sparsity:g}, matrices={len(self.weights)}, "
            f"weights={self.active_weights:,} of {self.total_weights:,}, rewirings_done={self.rewirings_done})"
        )

    def summary(self) -> str:
        """Return a table of the sparse matrices, with the density of each gate, and the names of dense ones."""
        dense = ", ".join(f"{name} ({size:,})" for name, size in self._left_dense)
        return super().summary() + (f"\nleft dense: {dense}" if dense else "")
