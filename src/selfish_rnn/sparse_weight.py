"""One weight matrix that is sparse, and tables of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from selfish_rnn.optimizer_state import fill_
from selfish_rnn.topology import Existing, GateLayout, Rewiring, Topology


class HasTopology(Protocol):
    """Anything with a name and a topology."""

    name: str

    @property
    def topology(self) -> Topology: ...


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

    @torch.no_grad()
    def apply_mask(self) -> None:
        self.parameter.mul_(self._mask_here())

    @torch.no_grad()
    def lies_outside(self) -> bool:
        """Whether a weight that does not exist is not zero."""
        return bool((self.parameter * (1 - self._mask_here())).any())

    def mask_gradient(self) -> None:
        if self.parameter.grad is not None:
            self.parameter.grad.mul_(self._mask_here())

    def existing(self, score: Callable[[], Tensor] | None = None) -> Existing:
        """The existing weights and their gradients, as a rewiring takes them."""
        topology, gradient = self.topology, self.parameter.grad
        return Existing(
            topology,
            self.parameter.detach().flatten().cpu()[topology.active],
            None if gradient is None else gradient.to_dense().flatten().cpu()[topology.active],
            score,
        )

    def change(self, before: Topology, rewiring: Rewiring) -> Tensor:
        """Take on a new topology; the positions whose weight starts anew, at zero: removed and grown alike."""
        self.mask.copy_(rewiring.topology.to_mask(self.mask.dtype))
        changed = torch.cat([before.active[rewiring.removed], rewiring.grown])
        fill_(self.parameter, changed, 0.0)
        return changed

    def _mask_here(self) -> Tensor:
        if self.mask.device != self.parameter.device:  # the model was moved
            self.mask = self.mask.to(self.parameter.device)
        return self.mask


def topology_table(weights: Sequence[HasTopology]) -> str:
    """Matrices with shape, weights, density, and the density of each gate.

    ::

        matrix             shape        weights  density  gates
        rnn.weight_ih_l0   6000 x 1500  2970000   33.0 %  input 33.1, forget 31.0, candidate 34.2, output 33.7
    """
    rows = [("matrix", "shape", "weights", "density", "gates")]
    count = size = 0
    for weight in weights:
        topology = weight.topology
        count, size = count + topology.count, size + topology.size
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
    rows.append(("all", "", f"{count}", f"{100 * count / size:.1f} %", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    align: tuple[Callable[[str, int], str], ...] = (str.ljust, str.ljust, str.rjust, str.rjust, str.ljust)
    return "\n".join(
        "  ".join(fit(cell, width) for fit, cell, width in zip(align, row, widths, strict=True)).rstrip()
        for row in rows
    )
