"""What a training loop sees of anything that makes a model sparse."""

from __future__ import annotations

import abc
import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.errors import shown
from selfish_rnn.sparsifier.hooks import HookListener, Hooks
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.text import aligned
from selfish_rnn.topology import Method


class SparseTraining(HookListener, abc.ABC):
    """Makes a model sparse while it trains; a loop written for this class works with every method.

    ::

        loss = loss_of(model, batch)
        penalty = sparse.penalty()
        (loss if penalty is None else loss + penalty).backward()
        optimizer.step()
        ...                                        # to the end of the epoch
        with sparse.thresholded():
            validation_loss = evaluate(model)
        sparse.rewire()

    The defaults are those of a network that is never rewired and promises no number of weights.
    """

    method: Method
    """The method; of one that is no composition of parts, its name and reference, and that it rewires nothing."""

    last_rewired_fraction: float = 0.0
    """The fraction of weights the last rewiring removed."""

    weights: Sequence[SparseWeight]
    """The matrices that are, or become, sparse."""

    _hooks: Hooks

    @property
    def sparse_weights(self) -> Sequence[SparseWeight]:
        """Those of which only the existing weights need to be saved."""
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

    def refuse_lost_weights(self) -> None:
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
        """Let go of the model: weights, gradients and optimizers are no longer touched, and stay as they are.

        No hook or attribute of this package stays in its modules.
        """
        self._hooks.release()

    @property
    def active_weights(self) -> int:
        """How many of the weights exist."""
        return sum(weight.count for weight in self.weights)

    @property
    def target_weights(self) -> int:
        """How many should."""
        return self.active_weights

    @property
    def total_weights(self) -> int:
        """How many positions the matrices have."""
        return sum(weight.size for weight in self.weights)

    def masks(self) -> dict[str, Tensor]:
        """Return a boolean mask of every sparse matrix, on the device of its parameter, by name."""
        return {weight.name: weight.topology.to_mask(device=weight.parameter.device) for weight in self.weights}

    def densities(self) -> dict[str, float]:
        """Of every matrix the fraction of positions that exist."""
        return {weight.name: weight.count / weight.size for weight in self.weights}

    @property
    def at_target(self) -> bool:
        """Whether the network is as sparse as it is to be."""
        return True

    def measures(self) -> dict[str, Any]:
        """What else is worth a line in the records of a run, as JSON values."""
        return {}

    def penalty(self) -> Tensor | None:
        """What is added to the loss, if anything."""
        return None

    def thresholded(self) -> contextlib.AbstractContextManager[None]:
        """Inside this block the model is as it is evaluated, outside as it is trained."""
        return contextlib.nullcontext()

    def rewire(self) -> None:
        """Remove weights and grow others, as the method says; call it after each epoch."""

    def track(self, optimizer: Optimizer) -> None:
        """Start afresh, at rewirings, what this optimizer remembers of rewired weights."""

    def dense_gradients(self) -> contextlib.AbstractContextManager[None]:
        """Collect the gradients of all positions of the pass in this block, for methods that grow by them."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What is needed to continue, besides the weights."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Nothing: it is bound to one model, and a copy of a module that holds it has ``None`` in its place."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Pickled, it is ``None``; what is needed to continue is in :meth:`state_dict`."""
        return _left_out, ()

    def summary(self) -> str:
        """A table of the matrices: shape, weights, density, and the density of each gate."""
        return _table(self.weights)


def _left_out() -> None:
    """What comes out of a pickle in the place of a sparsifier."""


torch.serialization.add_safe_globals([_left_out])


def refuse_missing(state: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    """Refuse a saved state that lacks some of its keys."""
    if "masks" in state:
        raise ValueError(f"the state of {what} was saved by an earlier version, with masks: this one reads topologies")
    missing = sorted(set(keys) - state.keys())
    if missing:
        raise ValueError(f"this is not the state of {what}: it has no {', '.join(missing)}")


def saved_rewirings(state: Mapping[str, Any], own: int | None) -> int | None:
    """How many rewirings the run of a saved state has; states of earlier versions do not say, and keep ``own``."""
    saved = state.get("rewirings", own)
    if saved is not None and (not isinstance(saved, int) or saved < 1):
        raise ValueError(f"the saved rewirings must be a whole number of at least 1, got {shown(saved)}")
    if saved != own:
        warnings.warn(
            f"the saved sparsifier was made with rewirings={saved}, this one with rewirings={own}: it goes on with "
            f"{saved}, as it was saved; set sparsifier.rewirings afterwards to lengthen or shorten the run",
            stacklevel=3,
        )
    return saved


def _table(weights: Sequence[SparseWeight]) -> str:
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
    return aligned(rows, right=(2, 3))
