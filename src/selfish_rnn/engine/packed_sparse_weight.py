"""A packed weight under a sparsifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from selfish_rnn.engine import dense_gradients
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import give_back_reused_memory
from selfish_rnn.topology import ActiveWeights, GateLayout, Rewiring, Topology


class PackedSparseWeight(SparseWeight):
    """A matrix of which only the existing weights are stored: there is nothing to mask."""

    def __init__(self, name: str, packed: PackedWeight, gates: GateLayout) -> None:
        super().__init__(name, packed.values, packed.shape, gates)
        self.packed = packed

    @property
    def topology(self) -> Topology:
        return Topology(self.shape, self.gates, self.packed.sorted()[0])

    @property
    def count(self) -> int:
        return self.packed.count

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor[self.packed.sorted()[1]]

    def scatter(self, values: Tensor) -> Tensor:
        places = self.packed.sorted()[1]
        return torch.empty(len(places), dtype=values.dtype).index_copy_(0, places.to(torch.int64), values.cpu())

    def load_topology(self, topology: Topology) -> None:
        change = Rewiring.between(self.topology, topology)
        self.packed.rewire(change.removed_positions, change.grown)

    def existing(self, score: Callable[[], Tensor] | None = None) -> ActiveWeights:
        positions, places = self.packed.sorted()
        gradient = self.parameter.grad
        values = self.parameter.detach()[places]
        gradients = None if gradient is None else gradient[places]
        del places
        give_back_reused_memory()
        return ActiveWeights(Topology(self.shape, self.gates, positions), values, gradients, score)

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer]) -> None:
        # The index is a new one, and what was collected is known by the old.
        self.forget_gradient()
        give_back_reused_memory()  # of choosing what goes and what comes
        self.packed.rewire(rewiring.removed_positions, rewiring.grown, optimizers)

    def collect_gradient(self) -> None:
        dense_gradients.start_collecting(self.packed)

    def stop_collecting(self) -> None:
        dense_gradients.pause_collecting(self.packed)

    def forget_gradient(self) -> None:
        dense_gradients.stop_collecting(self.packed)

    def take_gradient(self, gradient: Tensor) -> None:
        dense_gradients.start_collecting(self.packed)
        dense_gradients.collect(self.packed.index, None, gradient)
        self.stop_collecting()

    @property
    def has_gradient(self) -> bool:
        return dense_gradients.has_collected(self.packed)

    def collected_gradient(self) -> Tensor:
        return dense_gradients.dense_gradient(self.packed)
