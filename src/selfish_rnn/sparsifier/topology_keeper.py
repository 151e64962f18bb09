"""A model that is trained keeps its topology."""

from __future__ import annotations

import contextlib
import gc
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
        self._resumed = False
        self._stays_dense = self.active_weights == self.total_weights and not method.prunes
        self._weights_loaded = False
        self._scores = DenseScores(method.signal, weights, self._optimizers)
        self._hooks = Hooks(self, model)
        self._mask_gradients()

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

        Happens by itself at the optimizer's first step, and at a rewiring between :meth:`load_state_dict` and that
        step.
        """
        self._optimizers.add(optimizer)

    def _track_resumed(self) -> None:
        """Track the optimizers of a resumed run, which have state but have made no step in this process.

        Only the garbage collector knows them: an optimizer that loads its state announces it to nobody.
        """
        if self._resumed and not self._optimizers:
            own = set(map(id, self.hooked_parameters))
            for optimizer in [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]:
                if any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
                    self.track(optimizer)
        self._resumed = False

    def apply_masks(self) -> None:
        """Set all weights outside the topology to zero.

        The steps of torch's optimizers do this. Call it after any other change of the weights: an update of your own,
        added noise, an average copied into the model.
        """
        if not self._stays_dense:
            for weight in self.weights:
                weight.apply_mask()

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

    def on_gradient(self, index: int, gradient: Tensor) -> Tensor | None:
        # Methods that grow by the gradient collect it before it is masked.
        weight = self.weights[index]
        weight.gradient_computed(gradient)
        return None if self._gradients_stay_dense else weight.masked_gradient(gradient)

    def before_step(self) -> None:
        # After the step it would be too late: momentum of all positions moves weights outside the topology.
        self._check_loaded()

    def on_step(self, optimizer: Optimizer, held: Sequence[int]) -> None:
        self.track(optimizer)
        self._resumed = False
        if not self._stays_dense:
            for index in held:
                self.weights[index].apply_mask()

    def on_load(self) -> None:
        self._weights_loaded = True  # their topology may be loaded after them

    @property
    def _gradients_stay_dense(self) -> bool:
        return self._stays_dense or self._scores.in_momentum()

    def _mask_gradients(self) -> None:
        """Mask gradients from before the topology was set."""
        if not self._gradients_stay_dense:
            for weight in self.weights:
                weight.mask_gradient()

    def _check_loaded(self) -> None:
        if self._weights_loaded:
            for weight in self.weights:
                weight.check_loaded_weights()
        self._weights_loaded = False
        for weight in self.weights:
            weight.forget_deleted()
