"""A model that is trained keeps its topology."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.base import SparseTraining
from selfish_rnn.sparsifier.hooks import Hooks
from selfish_rnn.sparsifier.rewiring.scores import DenseScores
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import Method


class TopologyKeeper(SparseTraining):
    """Keeps gradients and weights zero outside the topology, whatever optimizers hold them.

    It also knows these optimizers, and what they or backward passes have of all positions, where the method goes by it.
    """

    def __init__(self, model: nn.Module, weights: list[SparseWeight], method: Method) -> None:
        self.method = method
        self.weights: list[SparseWeight] = weights
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stays_dense = self.active_weights == self.total_weights and not method.prunes
        self._weights_loaded = False
        self._scores = DenseScores(method.signal, weights, self._optimizers)
        self._hooks = Hooks(self, model)

    @property
    def sparse_weights(self) -> list[SparseWeight]:
        return self.weights

    def replace_weights(self, model: nn.Module, weights: Sequence[SparseWeight], before: nn.Module) -> None:
        """Take over other objects, of the same matrices with the same topologies, in place of ``weights``.

        An engine that stores weights in its own way calls this. The parameters are other ones afterwards, so no
        optimizer may hold the old ones. The model ``before`` is the same, or the module whose place it has taken.
        """
        if self._optimizers:
            raise RuntimeError("the weights of a model change their form before its optimizer is made, not after")
        self._hooks.release()
        self.weights[:] = weights
        self._hooks = Hooks(self, model, before)

    def track(self, optimizer: Optimizer) -> None:
        """Start afresh, at rewirings, what this optimizer remembers of rewired weights.

        Happens by itself at the optimizer's first step; call it yourself only if you load an optimizer's state and
        rewire before its first step.
        """
        self._optimizers.add(optimizer)

    def dense_gradients(self) -> contextlib.AbstractContextManager[None]:
        """Put the last pass before a :meth:`rewire`, forward and backward, in this block if growth goes by gradient.

        ::

            with sparsifier.dense_gradients():
                loss = criterion(model(inputs), targets)
                loss.backward()

        Only RigL, and SNFS with an optimizer without momentum, collect anything in it; with ``rewire_every`` it
        happens by itself.
        """
        return self._scores.collecting()

    # What hooks tell

    def on_gradient(self, index: int, gradient: Tensor) -> None:
        self.weights[index].gradient_computed(gradient)

    def on_accumulated(self, index: int) -> None:
        if not self._stays_dense and not self._scores.in_momentum():
            self.weights[index].mask_gradient()

    def on_step(self, optimizer: Optimizer, held: Sequence[int]) -> None:
        self.track(optimizer)
        self._check_loaded()
        if not self._stays_dense:
            for index in held:
                self.weights[index].apply_mask()

    def on_load(self) -> None:
        self._weights_loaded = True  # their topology may be loaded after them

    def _check_loaded(self) -> None:
        if self._weights_loaded:
            for weight in self.weights:
                weight.refuse_weights_outside()
        self._weights_loaded = False
        for weight in self.weights:
            weight.forget_deleted()
