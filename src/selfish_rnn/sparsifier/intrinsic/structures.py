"""Intrinsic sparse structures (Wen et al. 2018): whole units die, and a smaller dense network remains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.base import SparseTraining, refuse_missing
from selfish_rnn.sparsifier.hooks import Hooks, refuse_second_listener
from selfish_rnn.sparsifier.intrinsic.units import describing_units, live_units, squared_norms
from selfish_rnn.sparsifier.selection import Selector, choose_weights
from selfish_rnn.topology import DENSE, GateLayout, Topology

ISS = DENSE.replace(
    name="iss",
    reference="Wen et al.: Learning intrinsic sparse structures within long short-term memory, ICLR 2018",
)
"""The name and reference of the method; it is no composition of parts, its topology is dense and never rewired."""

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

    @property
    def size(self) -> int:
        return self.parameter.numel()

    @torch.no_grad()
    def apply_threshold(self, threshold: float) -> None:
        self.parameter.masked_fill_(self.parameter.abs() < threshold, 0.0)


class IntrinsicSparseStructures(SparseTraining):
    """Trains a dense recurrent network so that whole units die (Wen et al. 2018).

    Wei Wen et al., Learning intrinsic sparse structures within long short-term memory, ICLR 2018. The weights of a
    unit are a group: its rows of the layer's matrices, one for every gate, its column of the recurrent matrix, and
    its column of whatever reads the layer. A group lasso is added to the loss,

        λ · Σ_k √(Σ_{w in group k} w² + 10⁻⁸)

    and after every step of whatever ``torch.optim`` optimizer holds them, weights below ``threshold`` in magnitude
    become zero. The model says what a unit is, in its method ``unit_layers()`` (see
    :class:`~selfish_rnn.sparsifier.intrinsic.DescribesUnits`).

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
        refuse_second_listener(model, {id(each.parameter): each.name for each in chosen})
        self.weights: list[PenalisedWeight] = [
            PenalisedWeight(each.name, each.parameter, each.gates, id(each.parameter) in grouped) for each in chosen
        ]
        self._hooks = Hooks(self, model)

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

    def live_units(self) -> dict[str, int]:
        """How many units of each layer have a say in the output; :func:`shrink` keeps these, but at least one."""
        live = live_units(self.layers)
        return {layer.name: int(units.count_nonzero()) for layer, units in zip(self.layers, live, strict=True)}

    def measures(self) -> dict[str, Any]:
        return {"live_units": self.live_units()}

    def on_step(self, optimizer: Optimizer, held: Sequence[int]) -> None:
        for index in held:
            if self.weights[index].grouped:
                self.weights[index].apply_threshold(self.threshold)

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """The two settings; which weights are zero, the weights say."""
        return {"strength": self.strength, "threshold": self.threshold}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        refuse_missing(state, ("strength", "threshold"), "intrinsic sparse structures")
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
