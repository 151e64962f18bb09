"""What some methods go by besides the weights: gradients and momentum of whole matrices."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.optimizer_state import keeps_momentum, momentum


class Signals:
    """The dense gradients or momentum a method goes by, each kept no longer than it is needed.

    ``kind`` is the method's :attr:`~selfish_rnn.topology.Method.signal`. Momentum is that of the optimizer, which then
    is kept for all positions; with an optimizer that has none it is the gradient. A gradient is collected only
    inside :meth:`collecting`.
    """

    def __init__(self, kind: str | None, optimizers: Collection[Optimizer]) -> None:
        self.kind = kind
        self._optimizers = optimizers
        self._collecting = False
        self._gradients: dict[int, Tensor] = {}

    @property
    def by_gradient(self) -> bool:
        """Whether it is gradients that are needed."""
        if self.kind == "momentum":
            return not any(map(keeps_momentum, self._optimizers))
        return self.kind == "gradient"

    def is_momentum_of(self, optimizer: Optimizer) -> bool:
        """Whether it is the momentum of this optimizer."""
        return self.kind == "momentum" and keeps_momentum(optimizer)

    def in_momentum(self) -> bool:
        """Whether gradients must stay dense to get into an optimizer's momentum; also before any optimizer is known."""
        return self.kind == "momentum" and (not self._optimizers or any(map(keeps_momentum, self._optimizers)))

    @property
    def collected(self) -> int:
        """Of how many matrices a dense gradient is held at the moment."""
        return len(self._gradients)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep the dense gradients of the backward passes in this block."""
        self._gradients.clear()
        self._collecting = self.by_gradient
        try:
            yield
        finally:
            self._collecting = False

    def gradient_computed(self, index: int, gradient: Tensor, due: bool) -> None:
        """Keep, or add up, the gradient of a matrix if one is being collected or ``due``."""
        if self._collecting or (due and self.by_gradient):
            dense = gradient.detach().to_dense()
            collected = self._gradients.get(index)
            self._gradients[index] = dense.clone() if collected is None else collected + dense

    def score(self, index: int, parameter: nn.Parameter) -> Tensor:
        """The gradient or momentum of a whole matrix."""
        if self.by_gradient:
            if index not in self._gradients:
                raise RuntimeError(
                    "this method goes by the gradient of weights that do not exist: put the backward pass before "
                    "update() in `with sparsifier.dense_gradients():`"
                )
            return self._gradients[index]
        if not any(optimizer.state for optimizer in self._optimizers):
            raise RuntimeError("this method goes by the momentum of the optimizer, which has made no step yet")
        signals = (momentum(optimizer, parameter) for optimizer in self._optimizers)
        return next((signal for signal in signals if signal is not None), torch.zeros_like(parameter))

    def clear(self) -> None:
        """Forget the gradients: they have been used."""
        self._gradients.clear()
