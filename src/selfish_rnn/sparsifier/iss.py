"""Intrinsic sparse structures (ISS): a group lasso removes whole units."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.base import SparseTraining, check_keys
from selfish_rnn.sparsifier.hooks import Hooks, check_unbound
from selfish_rnn.sparsifier.selection import Selector, choose_weights
from selfish_rnn.sparsifier.weights import MaskedWeight
from selfish_rnn.topology import DENSE, GateLayout, Topology

__all__ = ["ISS", "DescribesUnits", "IntrinsicSparseStructures", "UnitLayer", "UnitPart", "live_units", "shrink"]


Model = TypeVar("Model", bound=Any)


@dataclass(frozen=True)
class UnitPart:
    """Share of the units of a layer in one parameter.

    Along ``axis`` the parameter is ``blocks`` times as long as the layer has units, and in every block the k-th entry
    is of unit k: of an LSTM's 4H x n matrix unit k has the rows k, H + k, 2H + k and 3H + k. ``reads`` marks the
    columns through which something reads the unit's output; a unit that nothing reads can be left out.
    """

    parameter: nn.Parameter
    axis: int
    blocks: int = 1
    reads: bool = False


@dataclass(frozen=True)
class UnitLayer:
    """Recurrent layer as units that can be removed one by one, with all their weights.

    ``parts`` are the groups of intrinsic sparse structures (Wen et al. 2018). The ``biases`` of a unit are removed with
    it but belong to no group.
    """

    name: str
    size: int
    parts: tuple[UnitPart, ...]
    biases: tuple[UnitPart, ...] = ()


@runtime_checkable
class DescribesUnits(Protocol):
    """Model that describes its units, and can be made again with fewer of them."""

    def unit_layers(self) -> list[UnitLayer]: ...

    def resized(self, sizes: Sequence[int]) -> Any: ...


def squared_norms(layers: Sequence[UnitLayer]) -> list[Tensor]:
    """Return the sum of squares of each unit's group, for every layer.

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
    """Return a mask of the units that the output of the model depends on, for every layer.

    A unit is live if the output layer or a live unit reads it. Weights below ``threshold`` do not count. Units that
    only read each other are dead.
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
    changed = True
    while changed:
        changed = False
        for index, reader, read in readings:
            more = read[live[reader]].any(0) & ~live[index]
            live[index] |= more
            changed = changed or bool(more.any())
    return live


@torch.no_grad()
def shrink(model: Model, *, threshold: float = 0.0) -> Model:
    """Return a smaller dense network with the same outputs: the model without its dead units.

    The outputs in evaluation are equal up to rounding, from the zero state. At least one unit of every layer stays. The
    averages of an averaging optimizer are rarely exactly zero; with a ``threshold`` the outputs are those of the model
    whose grouped weights below it are zero.

    >>> smaller = shrink(model)
    >>> smaller(tokens)[0]  # as model(tokens)[0]
    """
    layers = describing_units(model).unit_layers()
    survivors = [_indices(units) for units in live_units(layers, threshold)]
    # Fresh weights are drawn and thrown away: the caller's random numbers are not to depend on it.
    with torch.random.fork_rng(devices=[]):
        smaller = model.resized([len(units) for units in survivors])
    reference = next(model.parameters())
    smaller = cast(Model, smaller.to(reference.device, reference.dtype).train(model.training))
    cuts: dict[nn.Parameter, list[tuple[int, Tensor]]] = {}
    for layer, units in zip(layers, survivors, strict=True):
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


def describing_units(model: Model) -> Model:
    if not isinstance(model, DescribesUnits):
        raise TypeError(
            f"intrinsic sparse structures need a model that describes its units, with unit_layers() and resized(); "
            f"{type(model).__name__} does not"
        )
    return model


def _indices(units: Tensor) -> Tensor:
    return units.nonzero().flatten() if units.any() else torch.tensor([0])


def _above(weight: Tensor, threshold: float) -> Tensor:
    weight = weight.detach()
    return weight.masked_fill(weight.abs() < threshold, 0.0) if threshold else weight


ISS = DENSE.replace(
    name="iss",
    reference="Wen et al.: Learning intrinsic sparse structures within long short-term memory, ICLR 2018",
)
"""Name and reference of the method. It is not composed of parts; its topology is dense and never rewired."""

FLOOR = 1e-8
"""Added to the squared norm of every group, so that the penalty has a gradient where a group is zero."""


class PenalisedWeight(MaskedWeight):
    """Dense matrix of a model with a group penalty. Nothing is masked; the weights that are not zero exist."""

    def __init__(self, name: str, parameter: nn.Parameter, gates: GateLayout, grouped: bool) -> None:
        super().__init__(
            name, parameter, gates, Topology(tuple(parameter.shape), gates, torch.arange(parameter.numel()))
        )
        self.grouped = grouped

    @property
    def topology(self) -> Topology:
        return Topology.from_mask(self.parameter.detach() != 0, self.gates)

    @property
    def count(self) -> int:
        return int(self.parameter.detach().count_nonzero())

    @torch.no_grad()
    def apply_threshold(self, threshold: float) -> None:
        self.parameter.masked_fill_(self.parameter.abs() < threshold, 0.0)


class IntrinsicSparseStructures(SparseTraining):
    """Trains a dense recurrent network in which whole units die (Wen et al. 2018).

    Wei Wen et al., Learning intrinsic sparse structures within long short-term memory, ICLR 2018. The weights of a
    unit are a group: its rows of the layer's matrices, one for every gate, its column of the recurrent matrix, and
    its column of whatever reads the layer. A group lasso is added to the loss,

        λ · Σ_k √(Σ_{w in group k} w² + 10⁻⁸)

    and after every step of whatever ``torch.optim`` optimizer holds them, weights below ``threshold`` in magnitude
    become zero. The model says what a unit is, in its method ``unit_layers()`` (see
    :class:`~selfish_rnn.sparsifier.iss.DescribesUnits`).

    ::

        structure = IntrinsicSparseStructures(model)
        for tokens, targets in batches:
            loss = loss_of(model, tokens, targets) + structure.penalty()
            loss.backward()
            optimizer.step()
        smaller = shrink(model)

    Args:
        model: a module with ``unit_layers()`` and ``resized()``, such as ``StackedRNN`` and
            ``RecurrentHighwayNetwork`` of ``selfish_rnn.models``.
        strength: λ, for a loss that is a mean over words (Wen et al. sum theirs over 35 steps and take 0.00245).
        threshold: weights smaller than this become zero.
        exclude: weights that are not counted, as for a :class:`~selfish_rnn.Sparsifier`.

    ``weights`` are the matrices a sparsifier would have, also those that are in no group and so stay dense, such as the
    embedding.
    """

    method = ISS

    def __init__(
        self,
        model: Any,
        *,
        strength: float = 7e-5,
        threshold: float = 1e-4,
        exclude: Selector | Sequence[Selector] = (),
    ) -> None:
        if strength < 0:
            raise ValueError(f"strength is the weight of the penalty and must not be negative, got {strength}")
        if threshold < 0:
            raise ValueError(f"threshold is a magnitude and must not be negative, got {threshold}")
        self.strength = strength
        self.threshold = threshold
        self.layers = describing_units(model).unit_layers()
        grouped = {id(part.parameter) for layer in self.layers for part in layer.parts}
        chosen = list(choose_weights(model, None, exclude))
        check_unbound(model, {id(candidate.parameter): candidate.name for candidate in chosen})
        self.weights: list[PenalisedWeight] = [
            PenalisedWeight(candidate.name, candidate.parameter, candidate.gates, id(candidate.parameter) in grouped)
            for candidate in chosen
        ]
        self._hooks = Hooks(self, model)

    # The penalty

    def penalty(self) -> Tensor:
        """``strength`` times the sum of the norms of all groups; add it to the loss once for every step."""
        norms = [(squared + FLOOR).sqrt().sum() for squared in squared_norms(self.layers)]
        return self.strength * torch.stack(norms).sum()

    @contextlib.contextmanager
    def thresholded(self) -> Iterator[None]:
        """Set grouped weights below the threshold to zero inside a block.

        After a step they are zero already, but the averages of an averaging optimizer rarely are.
        """
        grouped = [weight for weight in self.weights if weight.grouped]
        originals = [weight.parameter.detach().clone() for weight in grouped]
        for weight in grouped:
            weight.apply_threshold(self.threshold)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, values in zip(grouped, originals, strict=True):
                    weight.parameter.copy_(values)

    # Counting

    def live_units(self) -> dict[str, int]:
        """Return the number of live units of each layer, which :func:`shrink` keeps; at least one per layer stays."""
        live = live_units(self.layers)
        return {layer.name: int(units.count_nonzero()) for layer, units in zip(self.layers, live, strict=True)}

    def measures(self) -> dict[str, Any]:
        return {"live_units": self.live_units()}

    def on_step(self, optimizer: Optimizer, indices: Sequence[int]) -> None:
        for index in indices:
            if self.weights[index].grouped:
                self.weights[index].apply_threshold(self.threshold)

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return the two settings."""
        return {"strength": self.strength, "threshold": self.threshold}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_keys(state, ("strength", "threshold"), "intrinsic sparse structures")
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
