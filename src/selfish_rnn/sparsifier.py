"""The one object a library user meets: it makes a model sparse and keeps it so while it trains."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from selfish_rnn.optimizer_state import fill_, forget
from selfish_rnn.selection import Selector, choose_weights
from selfish_rnn.topology import ALLOCATIONS, METHODS, SCHEDULES, Existing, GateLayout, Method, Topology, rewire
from selfish_rnn.topology.bits import pack_bits, unpack_bits


@dataclass
class SparseWeight:
    """One weight matrix under a sparsifier: its parameter, its gates and the mask of what exists."""

    name: str
    parameter: nn.Parameter
    gates: GateLayout
    mask: Tensor

    @property
    def topology(self) -> Topology:
        return Topology.from_mask(self.mask, self.gates)

    @property
    def active(self) -> int:
        return int(self.mask.count_nonzero())

    def apply_mask(self) -> None:
        with torch.no_grad():
            self.parameter.mul_(self.mask)


class Sparsifier:
    """Makes the weight matrices of a model sparse and rewires them as a method says.

    ::

        sparsifier = Sparsifier(model, sparsity=0.67, prune_rate=0.7, updates=epochs)
        for epoch in range(epochs):
            train_one_epoch(model, optimizer)      # your loop, unchanged
            sparsifier.update()                    # rewire

    Binding draws a topology for every weight matrix and sets the weights outside it to zero. From then on gradients
    outside the topology are zero (so gradient clipping counts existing weights only), and weights outside it are set
    back to zero after every step of whatever ``torch.optim`` optimizer holds them; the optimizer may be made
    before or after the sparsifier.

    Args:
        model: any module; parameters and ``state_dict`` keys stay as they are.
        sparsity: the fraction of zeros over all sparsified matrices, from 0 up to, not including, 1.
        method: a :class:`~selfish_rnn.topology.Method` or the name of one in the method table.
        prune_rate: the fraction of weights rewired at the first update.
        updates: how many rewirings the run will have (with ``update()`` once per epoch: the number of epochs); the
            schedule takes the prune rate from ``prune_rate`` at the start to its end value at this update.
        schedule: ``"cosine"`` (the paper), ``"linear"`` or ``"constant"``.
        update_every: rewire by itself after every so many optimizer steps; then do not call :meth:`update`.
        include: only these weights, as patterns of parameter names or types of modules. Default: all weights of
            torch's recurrent modules, cells, ``nn.Linear``, ``nn.Embedding`` and of registered cells.
        exclude: not these.
        rescale: divide the starting weights by ``sqrt(density)``, so that a sum over the fewer inputs varies as
            much as in the dense model.
        seed: of the random positions.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sparsity: float,
        method: Method | str = "selfish",
        prune_rate: float = 0.5,
        updates: int | None = None,
        schedule: str = "cosine",
        update_every: int | None = None,
        include: Sequence[Selector] | None = None,
        exclude: Sequence[Selector] = (),
        rescale: bool = False,
        seed: int = 0,
    ) -> None:
        self.method = _method(method)
        _check_settings(sparsity, prune_rate, updates, schedule, update_every, self.method)
        self.sparsity = sparsity
        self.initial_prune_rate = prune_rate
        self.updates = updates
        self.update_every = update_every
        self.updates_done = 0
        self.steps_done = 0
        self._schedule = SCHEDULES[schedule]
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._owners: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        chosen = list(choose_weights(model, include, exclude))
        _refuse_shared(model, {id(parameter): name for name, parameter, _ in chosen})
        shapes = [tuple(parameter.shape) for _, parameter, _ in chosen]
        counts = ALLOCATIONS[self.method.allocation](shapes, 1 - sparsity)
        self.weights: list[SparseWeight] = []
        for (name, parameter, gates), shape, count in zip(chosen, shapes, counts, strict=True):
            topology = Topology.random(shape, gates, count, self._generator)
            mask = topology.to_mask(parameter.dtype, parameter.device)
            weight = SparseWeight(name, parameter, gates, mask)
            weight.apply_mask()
            if rescale:
                with torch.no_grad():
                    parameter.div_(math.sqrt(topology.density))
            self.weights.append(weight)
        self._handles = self._hook_up(model)

    def _hook_up(self, model: nn.Module) -> list[Any]:
        # Hooks refer to the sparsifier weakly (a strong reference from a tensor's hook is a leak the garbage
        # collector does not see); the modules that own the weights keep it alive, whether or not the user does.
        reference = weakref.ref(self)
        handles: list[Any] = [
            weight.parameter.register_post_accumulate_grad_hook(_mask_gradient(reference, index))  # type: ignore[no-untyped-call]
            for index, weight in enumerate(self.weights)
        ]
        # Optimizers are many and may come later, so this hook is on all of them.
        handles.append(register_optimizer_step_post_hook(_after_step(reference)))
        for handle in handles:
            weakref.finalize(self, handle.remove)
        sparsified = {id(weight.parameter) for weight in self.weights}
        for module in model.modules():
            if any(id(parameter) in sparsified for parameter in module.parameters(recurse=False)):
                module.__dict__.setdefault("_sparsifiers", _KeptAlive()).add(self)
                self._owners.add(module)
        return handles

    def detach(self) -> None:
        """Let go of the model: gradients and optimizers are no longer touched; the zeros stay where they are."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for module in self._owners:
            module.__dict__["_sparsifiers"].discard(self)

    # Counting

    @property
    def active_weights(self) -> int:
        """How many of the sparsified weights exist."""
        return sum(weight.active for weight in self.weights)

    @property
    def total_weights(self) -> int:
        """How many positions the sparsified matrices have."""
        return sum(weight.parameter.numel() for weight in self.weights)

    @property
    def prune_rate(self) -> float:
        """The fraction of weights the next update rewires."""
        progress = 0.0 if self.updates is None else min((self.updates_done + 1) / self.updates, 1.0)
        return self._schedule(progress, self.initial_prune_rate)

    # Rewiring

    def update(self) -> None:
        """Rewire every sparsified matrix once; call it after each epoch.

        The number of existing weights stays exactly the same. Grown weights start at zero, and whatever the optimizer
        remembers of removed and grown weights (momentum, moments, averages, ages) starts afresh.
        """
        if any(getattr(optimizer, "averages_swapped_in", False) for optimizer in self._optimizers):
            raise RuntimeError("rewiring needs the raw weights: call update() outside optimizer.averaged()")
        rate = self.prune_rate
        self.updates_done += 1
        if not self.method.rewires or rate <= 0:
            return
        matrices = [_existing(weight) for weight in self.weights]
        rewirings = rewire(self.method, matrices, rate, self._generator)
        for weight, matrix, rewiring in zip(self.weights, matrices, rewirings, strict=True):
            # Positions removed and grown alike start anew: zero weight, fresh optimizer state.
            removed = matrix.topology.active[rewiring.removed]
            changed = torch.cat([removed, rewiring.grown])
            weight.mask.copy_(rewiring.topology.to_mask(weight.mask.dtype))
            fill_(weight.parameter, changed, 0.0)
            for optimizer in self._optimizers:
                forget(optimizer, weight.parameter, changed)

    def watch(self, optimizer: Optimizer) -> None:
        """Start afresh, at rewirings, what this optimizer remembers of rewired weights.

        Happens by itself at the optimizer's first step; call it yourself only if you load an optimizer's state and
        rewire before its first step.
        """
        self._optimizers.add(optimizer)

    def _stepped(self, optimizer: Optimizer) -> None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        touched = [weight for weight in self.weights if id(weight.parameter) in held]
        if not touched:
            return
        self.watch(optimizer)
        for weight in touched:
            weight.apply_mask()
        if self.update_every is not None:
            self.steps_done += 1
            if self.steps_done % self.update_every == 0:
                self.update()

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Topology, random generator and progress; the masks as bits."""
        return {
            "updates_done": self.updates_done,
            "steps_done": self.steps_done,
            "generator": self._generator.get_state(),
            "shapes": {weight.name: list(weight.mask.shape) for weight in self.weights},
            "masks": {weight.name: pack_bits(weight.mask) for weight in self.weights},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved topology; it must be of the same matrices with the same number of weights."""
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise ValueError(f"this is not the state of a sparsifier: it has no {', '.join(missing)}")
        masks: Mapping[str, Tensor] = state["masks"]
        names = [weight.name for weight in self.weights]
        if set(masks) != set(names):
            differing = sorted(set(masks) ^ set(names))
            raise ValueError(f"the saved topology is of other weights than this model's; they differ in {differing}")
        unpacked = []
        for weight in self.weights:
            if list(state["shapes"][weight.name]) != list(weight.mask.shape):
                raise ValueError(
                    f"{weight.name}: the saved topology is of shape {tuple(state['shapes'][weight.name])}, "
                    f"the matrix of shape {tuple(weight.mask.shape)}"
                )
            mask = unpack_bits(masks[weight.name], weight.mask)
            if int(mask.count_nonzero()) != weight.active:
                raise ValueError(
                    f"{weight.name}: the saved topology has {int(mask.count_nonzero())} weights, "
                    f"this sparsifier's settings give {weight.active}"
                )
            unpacked.append(mask)
        for weight, mask in zip(self.weights, unpacked, strict=True):
            weight.mask.copy_(mask)
            weight.apply_mask()
        self.updates_done = state["updates_done"]
        self.steps_done = state["steps_done"]
        self._generator.set_state(state["generator"].to(torch.uint8))

    # Looking

    def __repr__(self) -> str:
        return (
            f"Sparsifier(method={self.method.name!r}, sparsity={self.sparsity:g}, matrices={len(self.weights)}, "
            f"weights={self.active_weights:,} of {self.total_weights:,}, updates_done={self.updates_done})"
        )

    def summary(self) -> str:
        """A table of the sparsified matrices: shape, weights, density, and the density of each gate.

        ::

            matrix             shape        weights  density  gates
            rnn.weight_ih_l0   6000 x 1500  2970000   33.0 %  input 33.1, forget 31.0, candidate 34.2, output 33.7
        """
        rows = [("matrix", "shape", "weights", "density", "gates")]
        for weight in self.weights:
            topology = weight.topology
            gates = topology.gate_densities() if len(topology.gates) > 1 else {}
            rows.append(
                (
                    weight.name,
                    " x ".join(map(str, topology.shape)),
                    f"{topology.count}",
                    f"{100 * topology.density:.1f} %",
                    ", ".join(f"{gate} {100 * density:.1f}" for gate, density in gates.items()),
                )
            )
        overall = self.active_weights / self.total_weights
        rows.append(("all", "", f"{self.active_weights}", f"{100 * overall:.1f} %", ""))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        align: tuple[Callable[[str, int], str], ...] = (str.ljust, str.ljust, str.rjust, str.rjust, str.ljust)
        return "\n".join(
            "  ".join(fit(cell, width) for fit, cell, width in zip(align, row, widths, strict=True)).rstrip()
            for row in rows
        )


class _KeptAlive(set["Sparsifier"]):
    """The sparsifiers of a module; a copy of the module is an ordinary one that has none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _KeptAlive:
        return _KeptAlive()

    def __reduce__(self) -> tuple[type[_KeptAlive], tuple[()]]:
        return _KeptAlive, ()


def _mask_gradient(reference: weakref.ref[Sparsifier], index: int) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        sparsifier = reference()
        if sparsifier is not None and parameter.grad is not None:
            parameter.grad.mul_(sparsifier.weights[index].mask)

    return hook


def _after_step(reference: weakref.ref[Sparsifier]) -> Callable[[Optimizer, Any, Any], None]:
    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        sparsifier = reference()
        if sparsifier is not None:
            sparsifier._stepped(optimizer)

    return hook


def _existing(weight: SparseWeight) -> Existing:
    topology = weight.topology
    gradient = weight.parameter.grad
    return Existing(
        topology,
        weight.parameter.detach().flatten().cpu()[topology.active],
        None if gradient is None else gradient.to_dense().flatten().cpu()[topology.active],
    )


def _refuse_shared(model: nn.Module, names: Mapping[int, str]) -> None:
    """Two masks on one weight would multiply, and neither sparsifier would keep its number of weights."""
    for module in model.modules():
        for sparsifier in module.__dict__.get("_sparsifiers", ()):
            for weight in sparsifier.weights:
                if id(weight.parameter) in names:
                    name = names[id(weight.parameter)]
                    raise ValueError(
                        f"{name} already has a sparsifier; exclude it here, or detach() the other one first"
                    )


def _method(method: Method | str) -> Method:
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
    return METHODS[method]


def _check_settings(
    sparsity: float,
    prune_rate: float,
    updates: int | None,
    schedule: str,
    update_every: int | None,
    method: Method,
) -> None:
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity is the fraction of zeros, from 0 up to, not including, 1; got {sparsity}")
    if not 0 <= prune_rate <= 1:
        raise ValueError(f"prune_rate is the fraction of weights rewired, from 0 to 1; got {prune_rate}")
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}; got {schedule!r}")
    if updates is not None and updates < 1:
        raise ValueError(f"updates is the number of rewirings in the run, at least 1; got {updates}")
    if update_every is not None and update_every < 1:
        raise ValueError(f"update_every is a number of optimizer steps, at least 1; got {update_every}")
    if updates is None and schedule != "constant" and method.rewires:
        raise ValueError(
            f"a {schedule} schedule needs updates=, the number of rewirings in the run "
            "(the number of epochs if you call update() after each), or use schedule='constant'"
        )
