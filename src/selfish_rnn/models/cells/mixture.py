"""The mixture of softmaxes, computed in chunks: all its scores at once would take gigabytes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from selfish_rnn.engine import PackedLinear, PackedWeight, operators, register_packed
from selfish_rnn.engine.dense_gradients import collect, is_collecting
from selfish_rnn.engine.operators.common import wants_gradients
from selfish_rnn.engine.precision import precision_of
from selfish_rnn.runtime.cells import linear as add_linear
from selfish_rnn.runtime.cells import translates
from selfish_rnn.runtime.tracing import Trace

FLOOR = 1e-8
"""Constant added to every probability before its logarithm, as Yang et al. do."""

SCORES_AT_ONCE = 2**24
"""Number of scores (positions x experts x words) that the loss holds in memory: 64 MiB in single precision."""


class MixtureDecoder(nn.Linear):
    """Output layer of a mixture of softmaxes (Yang et al. 2018): the log-probabilities of all words.

        log(Σ_k π_k softmax(D e_k + d) + 10⁻⁸)

    ``prior`` π is … x experts, ``latent`` e is … x experts x features, ``weight`` D is words x features.
    """

    def forward(self, prior: Tensor, latent: Tensor) -> Tensor:  # type: ignore[override]
        return mixture_log_probabilities(prior, latent, super().forward)

    def loss(self, prior: Tensor, latent: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-probability of ``targets``, with a fraction of the memory of :meth:`forward`."""
        return mixture_loss(prior, latent, self.weight, self.bias, DenseProduct(), targets)


class PackedMixtureDecoder(PackedLinear):
    """:class:`MixtureDecoder` with a :class:`~selfish_rnn.engine.PackedWeight` for D."""

    kind = MixtureDecoder

    def forward(self, prior: Tensor, latent: Tensor) -> Tensor:  # type: ignore[override]
        return mixture_log_probabilities(prior, latent, super().forward)

    def loss(self, prior: Tensor, latent: Tensor, targets: Tensor) -> Tensor:
        assert self.bias is not None
        product = PackedProduct(self.weight, targets.numel())
        return mixture_loss(prior, latent, self.weight.values, self.bias, product, targets)


class QuantizedMixtureDecoder(PackedMixtureDecoder):
    """The same with a :class:`~selfish_rnn.engine.QuantizedWeight`, which has no gradients to keep memory for."""

    def loss(self, prior: Tensor, latent: Tensor, targets: Tensor) -> Tensor:
        log_probabilities: Tensor = self(prior, latent).gather(-1, targets.unsqueeze(-1))
        return -log_probabilities.mean()


register_packed(MixtureDecoder, PackedMixtureDecoder, quantized=QuantizedMixtureDecoder)


@translates(MixtureDecoder, PackedMixtureDecoder)
def _translate(trace: Trace, decoder: Any, prior: Tensor, latent: Tensor) -> Tensor:
    """Add the output layer, dense, packed or int8, to the program of a stream."""
    with trace.pause():
        output: Tensor = decoder.original_forward(prior, latent).clone()
    experts = prior.shape[-1]
    scores = add_linear(trace, decoder.weight, trace.vector(latent), decoder.bias, experts)
    trace.bind(output, trace.program.mixture(trace.vector(prior), trace.program.softmax(scores, experts)))
    return output


def mixture_log_probabilities(prior: Tensor, latent: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the output of :class:`MixtureDecoder`; ``product`` computes D e + d.

    Experts are added one by one, so that the scores of all experts never exist at once.
    """
    experts = zip(prior.unbind(-1), latent.unbind(-2), strict=True)
    chances = (product(features).softmax(-1) * share.unsqueeze(-1) for share, features in experts)
    return (functools.reduce(torch.add, chances) + FLOOR).log()


class DenseProduct:
    """``e D^T + d`` and its gradients for many chunks of e in a row; ``weight`` is D, or its values."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def scores(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the scores of one chunk, in memory that the next call may reuse; the first chunk is the largest."""
        if self._buffer is None:
            self._buffer = weight.new_empty(len(features), len(bias))
        return torch.addmm(bias, features, weight.t(), out=self._buffer[: len(features)])

    def backward(
        self, features: Tensor, grad_scores: Tensor, weight: Tensor, grad_weight: Tensor, grad_bias: Tensor
    ) -> Tensor:
        """Return the gradient of ``features``; add the gradients of D and d to their buffers."""
        grad_weight.addmm_(grad_scores.t(), features)
        grad_bias += grad_scores.sum(0)
        return grad_scores @ weight

    def finish(self, grad_loss: Tensor) -> None:
        """Scale the accumulated gradients by the gradient of the loss, after the last chunk of the backward pass."""


class PackedProduct(DenseProduct):
    """The same for a packed D."""

    def __init__(self, weight: PackedWeight, targets: int) -> None:
        self._index = weight.index
        self._precision = weight.precision
        self._scale = 1 / targets
        # Growth by gradient collects dense gradients; see selfish_rnn.engine.dense_gradients.
        self._dense = torch.zeros(weight.shape) if is_collecting(weight.index) else None

    def scores(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        scores: Tensor = operators.linear(
            features, weight, self._index, bias, len(bias), precision_of(self._precision, len(features))
        )
        return scores

    def backward(
        self, features: Tensor, grad_scores: Tensor, weight: Tensor, grad_weight: Tensor, grad_bias: Tensor
    ) -> Tensor:
        precision = precision_of(self._precision, len(features))
        gradients: list[Tensor] = operators.linear_backward(
            features, grad_scores, weight, self._index, [True] * 3, precision
        )
        grad_weight += gradients[1]
        grad_bias += gradients[2]
        if self._dense is not None:
            self._dense.addmm_(grad_scores.t(), features, alpha=self._scale)
        return gradients[0]

    def finish(self, grad_loss: Tensor) -> None:
        if self._dense is not None:
            collect(self._index, None, self._dense * grad_loss)


def mixture_loss(
    prior: Tensor, latent: Tensor, weight: Tensor, bias: Tensor, product: DenseProduct, targets: Tensor
) -> Tensor:
    """Return the mean negative :func:`mixture_log_probabilities` of ``targets``; ``weight`` is D, or its values.

    Positions are processed in small chunks, and only the probability of the target is stored. Gradients are computed in
    the same pass while the scores exist, so no score is stored or computed twice.
    """
    inputs = (prior.flatten(0, -2), latent.flatten(0, -3), weight, bias)
    needs_gradients = wants_gradients(*inputs)
    loss: Tensor = _MixtureLoss.apply(product, targets.flatten(), needs_gradients, *inputs)  # type: ignore[no-untyped-call]
    return loss


class _MixtureLoss(torch.autograd.Function):
    """Scalar loss, whose gradients are known in the forward pass except for one factor."""

    @staticmethod
    def forward(ctx: Any, product: DenseProduct, targets: Tensor, with_gradients: bool, *inputs: Tensor) -> Tensor:
        prior, latent, weight, bias = inputs
        count, experts = prior.shape
        piece = min(count, max(1, SCORES_AT_ONCE // (experts * len(bias))))
        gradients = [torch.zeros_like(tensor) for tensor in inputs if with_gradients]
        loss = weight.new_zeros(())
        for start in range(0, count, piece):
            here = slice(start, start + piece)
            features = latent[here].flatten(0, 1)
            words = targets[here].repeat_interleave(experts).unsqueeze(-1)
            scores = product.scores(features, weight, bias)
            scores -= scores.amax(-1, keepdim=True)
            exponentials = scores.exp_()
            total = exponentials.sum(-1, keepdim=True)
            chance = (exponentials.gather(-1, words) / total).view(-1, experts)
            mixed = (prior[here] * chance).sum(-1, keepdim=True) + FLOOR
            loss -= mixed.log().sum()
            if with_gradients:
                grad_prior, grad_latent, grad_weight, grad_bias = gradients
                torch.div(chance, mixed, out=grad_prior[here]).neg_()
                # The score of word v for expert k has gradient a_k (softmax_v - [v is the target]).
                attraction = (prior[here] * chance / mixed).view(-1, 1)
                grad_scores = exponentials.mul_(attraction / total).scatter_add_(-1, words, -attraction)
                grad_features = product.backward(features, grad_scores, weight, grad_weight, grad_bias)
                grad_latent[here] = grad_features.view_as(grad_latent[here])
        ctx.save_for_backward(*(gradient.div_(count) for gradient in gradients))
        ctx.product = product
        return loss / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        ctx.product.finish(grad_loss)
        return None, None, None, *(gradient * grad_loss for gradient in ctx.saved_tensors)
