"""What some methods go by besides the weights: gradients and momentum of whole matrices."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.optimizer_state import keeps_momentum, momentum
from selfish_rnn.sparsifier.ranks import mean_over_ranks
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import Signal


class DenseScores:
    """The dense gradients or momentum a method goes by, each kept no longer than it is needed.

    ``signal`` is the method's :attr:`~selfish_rnn.topology.Method.signal`. Momentum is that of the optimizer, which
    then is kept for all positions; with an optimizer that has none it is the gradient. A gradient is collected only
    inside :meth:`collecting`, or from :meth:`start` on.
    """

    def __init__(
        self, signal: Signal | None, weights: Sequence[SparseWeight], optimizers: Collection[Optimizer]
    ) -> None:
        self._signal = signal
        self.by_momentum = signal is not None and signal.kept_by_optimizer
        self._weights = weights
        self._optimizers = optimizers
        self._until_known = True

    @property
    def by_gradient(self) -> bool:
        """Whether it is gradients that are needed."""
        return self._signal is not None and not any(map(self.is_momentum_of, self._optimizers))

    def is_momentum_of(self, optimizer: Optimizer) -> bool:
        """Whether it is the momentum of this optimizer."""
        return self.by_momentum and keeps_momentum(optimizer)

    def in_momentum(self) -> bool:
        """Return whether gradients must stay dense to get into an optimizer's momentum.

        Before any optimizer is known they stay dense, unless the run is resumed and its optimizer has no momentum.
        """
        if not self._optimizers:
            return self.by_momentum and self._until_known
        return self.by_momentum and not self.by_gradient

    def resume(self, in_momentum: bool) -> None:
        """Continue as in the saved run, where :meth:`in_momentum` was this, until an optimizer is known."""
        self._until_known = in_momentum

    def start(self) -> None:
        """Collect the dense gradients of the backward passes to come, if they are needed."""
        if self.by_gradient:
            for weight in self._weights:
                weight.collect_gradient()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep the dense gradients of the backward passes in this block."""
        self.start()
        try:
            yield
        finally:
            for weight in self._weights:
                weight.stop_collecting()

    def score(self, weight: SparseWeight) -> Tensor:
        """The gradient or momentum of a whole matrix."""
        if self.by_gradient:
            if not weight.has_gradient:
                raise RuntimeError(
                    "this method goes by the gradient of weights that do not exist: put the pass before "
                    "rewire() in `with sparsifier.dense_gradients():`; of a packed model that is compiled, make that "
                    "pass with the model itself"
                )
            gradient = mean_over_ranks(weight.collected_gradient())
            if not torch.isfinite(gradient).all():
                raise FloatingPointError(
                    f"the gradient of {weight.name} that growth goes by is NaN or infinite: leave it out, and collect "
                    "that of another pass in `with sparsifier.dense_gradients():`"
                )
            return gradient
        if not any(optimizer.state for optimizer in self._optimizers):
            raise RuntimeError("this method goes by the momentum of the optimizer, which has made no step yet")
        remembered = (momentum(optimizer, weight.parameter) for optimizer in self._optimizers)
        return next((score for score in remembered if score is not None), torch.zeros_like(weight.parameter))

    def clear(self) -> None:
        """Forget the gradients: they have been used."""
        for weight in self._weights:
            weight.forget_gradient()
