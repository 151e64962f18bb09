"""Sparse weights: the interface, and the masked implementation."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.optimizer_state import fill_, reset_state
from selfish_rnn.topology import ActiveWeights, GateLayout, Rewiring, Topology


class SparseWeight(abc.ABC):
    """One weight matrix and its topology, as a sparsifier sees it.

    The two implementations store the weights differently: a :class:`MaskedWeight` as a dense parameter and a mask, a
    :class:`~selfish_rnn.engine.PackedWeight` as the existing weights only.
    """

    name: str
    """Name of the weight in the model."""

    shape: tuple[int, ...]
    """Shape of the matrix, which may differ from that of the parameter."""

    gates: GateLayout
    """Gates in the rows of the matrix."""

    @property
    @abc.abstractmethod
    def parameter(self) -> nn.Parameter:
        """Parameter that optimizers train."""

    @property
    @abc.abstractmethod
    def topology(self) -> Topology:
        """Existing positions."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """Number of existing weights."""

    @property
    def size(self) -> int:
        """Number of positions of the matrix."""
        return math.prod(self.shape)

    @property
    def requires_grad(self) -> bool:
        """True if the weight is trained. A frozen weight is not rewired."""
        return self.parameter.requires_grad

    def bind(self, name: str, gates: GateLayout) -> Self:
        """Take the name and the gates that a sparsifier has for the weight."""
        self.name, self.gates = name, gates
        return self

    @torch.no_grad()
    def check_finite(self) -> None:
        """Raise an error if a weight is NaN or infinite: a rewiring compares magnitudes."""
        if not torch.isfinite(self.parameter).all():
            raise FloatingPointError(
                f"{self.name} has NaN or infinite weights: the training has diverged, or they were so from the start. "
                "A smaller learning rate or gradient clipping may help; clip with error_if_nonfinite=True to find the "
                "step where it happens"
            )

    @abc.abstractmethod
    def gather(self, tensor: Tensor) -> Tensor:
        """Return the entries of existing weights, in the order of their positions, from a tensor like the parameter."""

    @abc.abstractmethod
    def scatter(self, values: Tensor) -> Tensor:
        """Undo :meth:`gather`: return a tensor like the parameter, with zeros where no weight exists."""

    @abc.abstractmethod
    def load_topology(self, topology: Topology) -> None:
        """Change to a saved topology; the values of weights are those that were bound or loaded."""

    @abc.abstractmethod
    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer] = ()) -> None:
        """Change to the topology of a rewiring.

        Removed and grown weights start at zero, with fresh state in the optimizers.
        """

    @abc.abstractmethod
    def existing(self, score: Callable[[], Tensor] | None = None) -> ActiveWeights:
        """Return the existing weights and their gradients, for a rewiring."""

    # Only a dense parameter can have weights outside the topology.

    def apply_mask(self) -> None:  # noqa: B027
        """Set the weights outside the topology to zero."""

    def has_weights_outside(self) -> bool:
        """Return whether a weight outside the topology is not zero."""
        return False

    def check_loaded_weights(self) -> None:
        """Raise an error if weights outside the topology were loaded, before they are set to zero."""
        if self.has_weights_outside():
            raise RuntimeError(
                f"weights of {self.name} were loaded that do not lie in the sparsifier's topology, and would be "
                "deleted: load the sparsifier's state_dict too, or load the model before it is bound and bind it with "
                'topology="nonzero"'
            )

    def check_trained_weights(self) -> None:
        """Raise an error if an update has left nonzero weights outside the topology."""
        if self.has_weights_outside():
            raise RuntimeError(
                f"{self.name} has nonzero weights outside the sparsifier's topology: something other than the step of "
                "a torch optimizer has changed them. Call sparsifier.apply_masks() after every such update. Gradients "
                "of loss.backward() and torch.autograd.grad() are masked already; momentum, noise and averages of your "
                "own are not"
            )

    @property
    def was_sparse(self) -> bool:
        """True if the matrix was mostly zero when it was bound, as in a trained sparse model."""
        return False

    def drop_backup(self) -> None:  # noqa: B027
        """Free the weights that binding deleted, which are kept for :meth:`load_topology`."""

    def mask_gradient(self) -> None:  # noqa: B027
        """Set ``.grad`` to zero where no weight exists."""

    def masked_gradient(self, gradient: Tensor) -> Tensor | None:
        """Return a gradient with zeros where no weight exists, or None if it has them already."""
        return None

    # The gradient of all positions, for methods that grow by it.

    @abc.abstractmethod
    def collect_gradient(self) -> None:
        """Start to add up the dense gradients of backward passes."""

    @abc.abstractmethod
    def stop_collecting(self) -> None:
        """Stop, and keep the sum."""

    @abc.abstractmethod
    def drop_gradient(self) -> None:
        """Stop, and free the sum."""

    @abc.abstractmethod
    def load_gradient(self, gradient: Tensor) -> None:
        """Take a saved gradient as the sum."""

    @property
    @abc.abstractmethod
    def has_gradient(self) -> bool:
        """True if there is a sum."""

    @abc.abstractmethod
    def collected_gradient(self) -> Tensor:
        """Return the sum, in the shape of the matrix."""

    def collected_gradient_at(self, positions: Tensor) -> Tensor:
        """Return what was collected at some positions of the matrix."""
        return self.collected_gradient().flatten()[positions]

    def gradient_computed(self, gradient: Tensor) -> None:  # noqa: B027
        """Take the gradient of the parameter that a backward pass has computed."""


class MaskedWeight(SparseWeight):
    """Dense matrix with a mask that is 1 where a weight exists."""

    _deleted: tuple[Tensor, Tensor] | None = None

    def __init__(self, name: str, parameter: nn.Parameter, gates: GateLayout, topology: Topology) -> None:
        self.name, self._parameter, self.gates = name, parameter, gates
        self.shape = tuple(parameter.shape)
        self._set_mask(topology)
        self._collecting = False
        self._collected: Tensor | None = None

    @property
    def parameter(self) -> nn.Parameter:
        return self._parameter

    @torch.no_grad()
    def delete_outside(self) -> None:
        """Set the weights outside the topology to zero.

        If the matrix is mostly zero, they are kept for a while: their topology may be loaded next.
        """
        if not self.parameter.is_meta and 0 < int(self.parameter.count_nonzero()) < self.size / 2:
            flat = (self.parameter * (1 - self._mask_here())).flatten()
            positions = flat.nonzero().flatten()
            self._deleted = positions, flat[positions]
        self.apply_mask()

    @property
    def was_sparse(self) -> bool:
        return self._deleted is not None

    def drop_backup(self) -> None:
        self._deleted = None

    @property
    def topology(self) -> Topology:
        return Topology.from_mask(self.mask, self.gates)

    @property
    def count(self) -> int:
        return self._count if self.mask.is_meta else int(self.mask.count_nonzero())

    def gather(self, tensor: Tensor) -> Tensor:
        return _at(tensor, self.topology)

    def scatter(self, values: Tensor) -> Tensor:
        whole = torch.zeros(self.size, dtype=values.dtype)
        whole[self.topology.positions] = values.cpu()
        return whole.view(self.shape)

    @torch.no_grad()
    def load_topology(self, topology: Topology) -> None:
        if self._deleted is not None:
            positions, values = (tensor.to(self.parameter.device) for tensor in self._deleted)
            whole = self.parameter.new_zeros(self.size).index_copy_(0, positions, values.to(self.parameter.dtype))
            self.parameter.add_(whole.view(self.shape))
            self.drop_backup()
        self._set_mask(topology)

    def existing(self, score: Callable[[], Tensor] | None = None) -> ActiveWeights:
        topology, gradient = self.topology, self.parameter.grad
        values = _at(self.parameter.detach(), topology)
        return ActiveWeights(topology, values, None if gradient is None else _at(gradient, topology), score)

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer] = ()) -> None:
        self._set_mask(rewiring.topology)
        # Moved to the device once, not for every tensor of optimizer state.
        removed, grown, survivors = (
            positions.to(self.parameter.device)
            for positions in (rewiring.removed_positions, rewiring.grown, rewiring.kept_positions)
        )
        for positions in (removed, grown):
            fill_(self.parameter, positions, 0.0)
        for optimizer in optimizers:
            reset_state(optimizer, self.parameter, removed)
            reset_state(optimizer, self.parameter, grown, survivors)

    @torch.no_grad()
    def apply_mask(self) -> None:
        if not self._full:
            self.parameter.mul_(self._mask_here())

    @torch.no_grad()
    def has_weights_outside(self) -> bool:
        return not self._full and bool((self.parameter * (1 - self._mask_here())).any())

    @torch.no_grad()
    def mask_gradient(self) -> None:
        if self.parameter.grad is not None and not self._full:
            self.parameter.grad.mul_(self._mask_here())

    def masked_gradient(self, gradient: Tensor) -> Tensor | None:
        return None if self._full else gradient * self._mask_here()

    def collect_gradient(self) -> None:
        self._collecting, self._collected = True, None

    def stop_collecting(self) -> None:
        self._collecting = False

    def drop_gradient(self) -> None:
        self._collecting, self._collected = False, None

    def load_gradient(self, gradient: Tensor) -> None:
        self._collected = gradient.to(self.parameter.device, self.parameter.dtype)

    @property
    def has_gradient(self) -> bool:
        return self._collected is not None

    def collected_gradient(self) -> Tensor:
        assert self._collected is not None
        return self._collected

    def gradient_computed(self, gradient: Tensor) -> None:
        if self._collecting:
            dense = gradient.detach().to_dense()
            # The model may have been moved since the last pass; otherwise to() copies nothing.
            self._collected = dense.clone() if self._collected is None else self._collected.to(dense) + dense

    def _set_mask(self, topology: Topology) -> None:
        """Set ones and zeros of the parameter's type: torch multiplies by these many times faster than by booleans."""
        dtype, device = self.parameter.dtype, self.parameter.device
        self._count = topology.count
        self._full = topology.count == topology.size
        if self._full:
            self.mask = torch.ones((), dtype=dtype, device=device).expand(self.shape)  # takes no memory
        else:
            self.mask = topology.to_mask(dtype, device)

    def _mask_here(self) -> Tensor:
        """The mask, of the parameter's device and type also after the model was moved or converted."""
        if self.mask.device != self.parameter.device or self.mask.dtype != self.parameter.dtype:
            self.mask = self.mask.to(self.parameter.device, self.parameter.dtype)
        return self.mask


def _at(tensor: Tensor, topology: Topology) -> Tensor:
    return tensor.to_dense().flatten().cpu()[topology.positions]
