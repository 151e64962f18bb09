"""A deferred matrix under a sparsifier."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor, nn

from selfish_rnn.sparsifier.deferred.tensor import start_at
from selfish_rnn.sparsifier.weights import MaskedWeight, SparseWeight
from selfish_rnn.topology import GateLayout, Topology


class DeferredWeight(MaskedWeight):
    """A matrix that is not made yet, and which of its weights will exist. There is nothing to mask."""

    def __init__(self, name: str, parameter: nn.Parameter, gates: GateLayout, topology: Topology) -> None:
        SparseWeight.__init__(self, name, parameter, tuple(parameter.shape), gates)
        self._topology = topology
        self.forget_gradient()

    def bind(self) -> None:
        """Nothing is set to zero."""

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def count(self) -> int:
        return self._topology.count

    def start(self) -> Tensor:
        """What the existing weights start with, in the order of their positions."""
        return start_at(self.parameter, self._topology.positions)

    def load_topology(self, topology: Topology) -> None:
        self._topology = topology

    def masked(self, parameter: nn.Parameter) -> MaskedWeight:
        """The same with the whole matrix, which has been made."""
        weight = MaskedWeight(self.name, parameter, self.gates, self._topology)
        weight.bind()
        return weight

    def forget_deleted(self) -> None:
        """Nothing was."""

    def has_weights_outside(self) -> bool:
        return False

    def apply_mask(self) -> NoReturn:
        raise RuntimeError(f"{self.name} is not made yet: call pack(model) before the optimizer is made")
