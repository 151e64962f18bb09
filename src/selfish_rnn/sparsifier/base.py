"""Interface of everything that makes a model sparse, for training loops."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.hooks import HookListener, Hooks
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.text import aligned
from selfish_rnn.topology import Method


class SparseTraining(HookListener, abc.ABC):
    """Makes a model sparse while it trains. A loop written for this class works with every method.

    ::

        loss = loss_of(model, batch)
        penalty = sparse.penalty()
        (loss if penalty is None else loss + penalty).backward()
        optimizer.step()
        ...                                        # to the end of the epoch
        with sparse.thresholded():
            validation_loss = evaluate(model)
        sparse.rewire()

    The defaults are for a network that is never rewired and promises no number of weights.
    """

    method: Method
    """The method. One that is not composed of parts has a name and a reference, and rewires nothing."""

    last_rewired_fraction: float = 0.0
    """Fraction of weights that the last rewiring removed."""

    weights: Sequence[SparseWeight]
    """Matrices that are, or become, sparse."""

    _hooks: Hooks

    @property
    def sparse_weights(self) -> Sequence[SparseWeight]:
        """Weights of which only the existing ones need to be saved."""
        return ()

    @property
    def hooked_parameters(self) -> list[nn.Parameter]:
        return [weight.parameter for weight in self.weights]

    def on_lost(self, index: int) -> None:
        raise RuntimeError(
            f"{self.weights[index].name} of the model is no longer the parameter that was made sparse, and what is in "
            "its place trains dense: load_state_dict(assign=True), weight norm and other parametrizations, "
            "fully_shard() and the like replace parameters. Load with assign=False, change the form of a model before "
            "it is bound, or call detach() and bind again"
        )

    def check_weights(self) -> None:
        """Raise an error if a weight is no longer the one in the model, unless the whole model is gone."""
        lost = dict(self._hooks.lost())
        if len(lost) < len(self.weights) or any(lost.values()):
            for index in lost:
                self.on_lost(index)
        elif self._hooks.dropped:
            raise RuntimeError(
                "packing or unpacking gave back another module than it was given, and nothing holds that one: use "
                "what pack returns, model = pack(model)"
            )

    def detach(self) -> None:
        """Release the model: its weights, gradients and optimizers are not touched any more.

        No hook or attribute of this package stays in its modules.
        """
        self._hooks.release()

    @property
    def active_weights(self) -> int:
        """Number of existing weights."""
        return sum(weight.count for weight in self.weights)

    @property
    def target_weights(self) -> int:
        """Number of weights that the method promises."""
        return self.active_weights

    @property
    def total_weights(self) -> int:
        """Number of positions of the matrices."""
        return sum(weight.size for weight in self.weights)

    def masks(self) -> dict[str, Tensor]:
        """Return a boolean mask of every sparse matrix, on the device of its parameter, by name."""
        return {weight.name: weight.topology.to_mask(device=weight.parameter.device) for weight in self.weights}

    def densities(self) -> dict[str, float]:
        """Return the fraction of existing positions of every matrix, by name."""
        return {weight.name: weight.count / weight.size for weight in self.weights}

    @property
    def at_target(self) -> bool:
        """True if the network has its final sparsity."""
        return True

    def measures(self) -> dict[str, Any]:
        """Return further measures for the records of a run, as JSON values."""
        return {}

    def penalty(self) -> Tensor | None:
        """Return the term that is added to the loss, or None."""
        return None

    def thresholded(self) -> contextlib.AbstractContextManager[None]:
        """Put the weights that are evaluated into the model inside a block."""
        return contextlib.nullcontext()

    def rewire(self) -> None:
        """Remove weights and grow others; call it after each epoch."""

    def track(self, optimizer: Optimizer) -> None:
        """Reset this optimizer's state of rewired weights at rewirings."""

    def dense_gradients(self) -> contextlib.AbstractContextManager[None]:
        """Collect the gradients of all positions in this block, for methods that grow by them."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state that training needs to continue, besides the weights."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a sparsifier is bound to one model, and copies of the model have none."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Pickle as None; :meth:`state_dict` has the state."""
        return _left_out, ()

    def summary(self) -> str:
        """Return a table of the matrices: shape, weights, density, and the density of each gate."""
        return _table(self.weights)


def _left_out() -> None:
    """Return None, which takes the place of a sparsifier in a pickle."""


torch.serialization.add_safe_globals([_left_out])


def check_keys(state: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    """Raise an error if a saved state lacks some of its keys."""
    if "masks" in state:
        raise ValueError(f"the state of {what} was saved by an earlier version, with masks: this one reads topologies")
    missing = sorted(set(keys) - state.keys())
    if missing:
        raise ValueError(f"this is not the state of {what}: it has no {', '.join(missing)}")


def _table(weights: Sequence[SparseWeight]) -> str:
    """Return a table of matrices.

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
    return aligned(rows, right=(2, 3))
