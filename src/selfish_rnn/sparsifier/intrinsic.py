"""Intrinsic sparse structures (Wen et al. 2018): whole units die, and a smaller dense network remains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.hooks import Binding, held, refuse_bound
from selfish_rnn.sparsifier.selection import choose_weights
from selfish_rnn.sparsifier.units import DescribesUnits, UnitLayer, UnitPart
from selfish_rnn.sparsifier.weights import topology_table
from selfish_rnn.topology import METHODS, GateLayout, Topology

Model = TypeVar("Model", bound=Any)

FLOOR = 1e-8
"""Added to the squared norm of every group, so that the penalty has a gradient where a group is zero."""


@dataclass
class PenalisedWeight:
    """One weight matrix of a model with a group penalty: what is not zero exists."""

    name: str
    parameter: nn.Parameter
    gates: GateLayout
    grouped: bool

    @property
    def topology(self) -> Topology:
        return Topology.from_mask(self.parameter.detach() != 0, self.gates)

    @property
    def count(self) -> int:
        return int(self.parameter.detach().count_nonzero())

    @torch.no_grad()
    def apply_threshold(self, threshold: float) -> None:
        self.parameter.masked_fill_(self.parameter.abs() < threshold, 0.0)


class IntrinsicSparseStructures:
    """Trains a dense recurrent network so that whole units die (Wen et al. 2018).

    Wei Wen et al., Learning intrinsic sparse structures within long short-term memory, ICLR 2018. The weights of a
    unit are a group: its rows of the layer's matrices, one for every gate, its column of the recurrent matrix, and
    its column of whatever reads the layer. A group lasso is added to the loss,

        λ · Σ_k √(Σ_{w in group k} w² + 10⁻⁸)

    and after every step of whatever ``torch.optim`` optimizer holds them, weights below ``threshold`` in magnitude
    become zero. What a unit is, a model says in :meth:`~selfish_rnn.models.LanguageModel.unit_layers`.

    ::

        structure = IntrinsicSparseStructures(model)
        for tokens, targets in batches:
            loss = loss_of(model, tokens, targets) + structure.penalty()
            loss.backward()
            optimizer.step()
        smaller = shrink(model)

    Args:
        model: a stacked LSTM, GRU or RNN, or a recurrent highway network.
        strength: λ, for a loss that is a mean over words (Wen et al. sum theirs over 35 steps and take 0.00245).
        threshold: weights smaller than this become zero.

    It has the face of a :class:`~selfish_rnn.Sparsifier`, so that a training loop can hold either; ``weights`` are the
    matrices a sparsifier would have, also those that are in no group and so stay dense, such as the embedding.
    """

    def __init__(self, model: Any, *, strength: float = 7e-5, threshold: float = 1e-4) -> None:
        if strength < 0:
            raise ValueError(f"strength is the weight of the penalty and must not be negative, got {strength}")
        if threshold < 0:
            raise ValueError(f"threshold is a magnitude and must not be negative, got {threshold}")
        self.method = METHODS["iss"]
        self.strength = strength
        self.threshold = threshold
        self.layers = _describing_units(model).unit_layers()
        grouped = {id(part.parameter) for layer in self.layers for part in layer.parts}
        chosen = list(choose_weights(model, None, model.dense_parameters))
        refuse_bound(model, {id(parameter): name for name, parameter, _ in chosen})
        self.weights = [
            PenalisedWeight(name, parameter, gates, id(parameter) in grouped) for name, parameter, gates in chosen
        ]
        self._binding = Binding(self, model)

    def detach(self) -> None:
        """Let go of the model: no more weights become zero, and those that are may change."""
        self._binding.release()

    # The penalty

    def penalty(self) -> Tensor:
        """``strength`` times the sum of the norms of all groups; add it to the loss once for every step."""
        norms = [(squared + FLOOR).sqrt().sum() for squared in squared_norms(self.layers)]
        return self.strength * torch.stack(norms).sum()

    @contextlib.contextmanager
    def thresholded(self) -> Iterator[None]:
        """Inside this block grouped weights below the threshold are zero, outside they are what they were.

        After a step they are zero anyway, but not the averages of an averaging optimizer: those are hardly ever
        exactly zero, and cutting them for good would make them no averages.
        """
        grouped = [weight for weight in self.weights if weight.grouped]
        kept = [weight.parameter.detach().clone() for weight in grouped]
        for weight in grouped:
            weight.apply_threshold(self.threshold)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, values in zip(grouped, kept, strict=True):
                    weight.parameter.copy_(values)

    # Counting

    @property
    def active_weights(self) -> int:
        """How many weights are not zero."""
        return sum(weight.count for weight in self.weights)

    @property
    def target_weights(self) -> int:
        """As many as there are: a penalty promises no number."""
        return self.active_weights

    @property
    def total_weights(self) -> int:
        """How many positions the matrices have."""
        return sum(weight.parameter.numel() for weight in self.weights)

    def live_units(self) -> dict[str, int]:
        """How many units of each layer have a say in the output; :func:`shrink` keeps these, but at least one."""
        live = live_units(self.layers)
        return {layer.name: int(units.count_nonzero()) for layer, units in zip(self.layers, live, strict=True)}

    # The rest of a sparsifier's face

    @property
    def at_target(self) -> bool:
        """There is no sparsity to come to."""
        return True

    @property
    def last_rewired_fraction(self) -> float:
        """Nothing is rewired."""
        return 0.0

    def rewire(self) -> None:
        """Nothing is rewired."""

    def track(self, optimizer: Optimizer) -> None:
        """What optimizers remember is left alone: a weight that became zero may grow again."""

    def dense_gradients(self) -> contextlib.AbstractContextManager[None]:
        """All gradients are dense."""
        return contextlib.nullcontext()

    # What the binding tells

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [weight.parameter for weight in self.weights]

    def _gradient_computed(self, index: int, gradient: Tensor) -> None:
        """Gradients are left alone."""

    def _gradient_accumulated(self, index: int) -> None:
        """Gradients are left alone."""

    def _stepped(self, optimizer: Optimizer) -> None:
        for index in held(optimizer, self._parameters):
            if self.weights[index].grouped:
                self.weights[index].apply_threshold(self.threshold)

    def _loaded(self) -> None:
        """Any weights will do."""

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """The two settings; which weights are zero, the weights say."""
        return {"strength": self.strength, "threshold": self.threshold}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise ValueError(f"this is not the state of an intrinsic structure: it has no {', '.join(missing)}")
        self.strength, self.threshold = state["strength"], state["threshold"]

    # Looking

    def __repr__(self) -> str:
        units = ", ".join(
            f"{name}={live} of {layer.size}"
            for layer, (name, live) in zip(self.layers, self.live_units().items(), strict=True)
        )
        return (
            f"IntrinsicSparseStructures(strength={self.strength:g}, threshold={self.threshold:g}, "
            f"weights={self.active_weights:,} of {self.total_weights:,}, units: {units})"
        )

    def summary(self) -> str:
        """A table of the matrices: shape, weights, density, and the density of each gate."""
        return topology_table(self.weights)


def squared_norms(layers: Sequence[UnitLayer]) -> list[Tensor]:
    """For every layer the sum of squares of each unit's group.

    A weight from a unit to itself is in a row and in a column of its group and counts once.
    """
    totals = [layer.parts[0].parameter.new_zeros(layer.size) for layer in layers]
    shares: dict[nn.Parameter, list[tuple[int, UnitPart]]] = {}
    for index, layer in enumerate(layers):
        for part in layer.parts:
            shares.setdefault(part.parameter, []).append((index, part))
    # By parameter, so that only one matrix of squares exists at a time.
    for parameter, sharing in shares.items():
        squares = parameter.square()
        blocks_of_rows = {index: part.blocks for index, part in sharing if part.axis == 0}
        for index, part in sharing:
            size = layers[index].size
            totals[index] = totals[index] + squares.sum(1 - part.axis).view(part.blocks, size).sum(0)
            if part.axis == 1 and index in blocks_of_rows:
                cells = squares.view(blocks_of_rows[index], size, part.blocks, size)
                totals[index] = totals[index] - cells.diagonal(dim1=1, dim2=3).sum((0, 1))
    return totals


@torch.no_grad()
def live_units(layers: Sequence[UnitLayer], threshold: float = 0.0) -> list[Tensor]:
    """For every layer which of its units (bool) the model's output depends on.

    A unit is live if the output layer reads it or a live unit does; weights below ``threshold`` do not count. Units
    that only read each other are as dead as those that nothing reads.
    """
    owners = {
        part.parameter: (index, part.blocks)
        for index, layer in enumerate(layers)
        for part in layer.parts
        if part.axis == 0
    }
    live = [torch.zeros(layer.size, dtype=torch.bool) for layer in layers]
    readings = list[tuple[int, int, Tensor]]()
    for index, layer in enumerate(layers):
        for part in layer.parts:
            if not part.reads:
                continue
            read = _above(part.parameter, threshold) != 0
            if part.parameter in owners:
                reader, blocks = owners[part.parameter]
                readings.append((index, reader, read.view(blocks, -1, layer.size).any(0).cpu()))
            else:
                live[index] |= read.any(0).cpu()
    found = True
    while found:
        found = False
        for index, reader, read in readings:
            more = read[live[reader]].any(0) & ~live[index]
            live[index] |= more
            found = found or bool(more.any())
    return live


@torch.no_grad()
def shrink(model: Model, *, threshold: float = 0.0) -> Model:
    """A physically smaller dense network with the same outputs: the model without the units that have no say.

    In evaluation, for any tokens and from the zero state, the outputs are equal up to the order of summation. At least
    one unit of every layer stays. The averages of an averaging optimizer are hardly ever exactly zero: with a
    ``threshold`` the outputs are those of the model whose grouped weights below it are zero.

    >>> smaller = shrink(model)
    >>> smaller(tokens)[0]  # as model(tokens)[0]
    """
    layers = _describing_units(model).unit_layers()
    kept = [_indices(units) for units in live_units(layers, threshold)]
    # Fresh weights are drawn and thrown away: the caller's random numbers are not to depend on it.
    with torch.random.fork_rng(devices=[]):
        smaller = model.resized([len(units) for units in kept])
    reference = next(model.parameters())
    smaller = cast(Model, smaller.to(reference.device, reference.dtype).train(model.training))
    cuts: dict[nn.Parameter, list[tuple[int, Tensor]]] = {}
    for layer, units in zip(layers, kept, strict=True):
        for part in (*layer.parts, *layer.biases):
            starts = layer.size * torch.arange(part.blocks).unsqueeze(1)
            cuts.setdefault(part.parameter, []).append((part.axis, (starts + units).flatten()))
    grouped = {part.parameter for layer in layers for part in layer.parts}
    for old, new in zip(model.parameters(), smaller.parameters(), strict=True):
        value = _above(old, threshold) if old in grouped else old.detach()
        for axis, positions in cuts.get(old, ()):
            value = value.index_select(axis, positions.to(value.device))
        if value.shape != new.shape:
            raise RuntimeError(f"unit_layers() leaves {tuple(value.shape)} where resized() has {tuple(new.shape)}")
        new.copy_(value)
    return smaller


def _describing_units(model: Model) -> Model:
    if not isinstance(model, DescribesUnits):
        raise TypeError(
            f"intrinsic structures need a model that describes its units, one of selfish_rnn.models; got a "
            f"{type(model).__name__}"
        )
    return model


def _indices(units: Tensor) -> Tensor:
    return units.nonzero().flatten() if units.any() else torch.tensor([0])


def _above(weight: Tensor, threshold: float) -> Tensor:
    weight = weight.detach()
    return weight.masked_fill(weight.abs() < threshold, 0.0) if threshold else weight
