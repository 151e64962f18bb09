"""The mixture of softmaxes, computed in pieces: all its scores at once would take gigabytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from selfish_rnn.engine import PackedWeight, operators
from selfish_rnn.engine.dense_gradients import collect_product, is_collecting
from selfish_rnn.engine.functional import linear as packed_linear

FLOOR = 1e-8
"""Added to every probability before its logarithm, as Yang et al. do."""

SCORES_AT_ONCE = 2**24
"""How many scores (positions x experts x words) the loss holds in memory: 64 MiB in single precision."""


def mixture_log_probabilities(prior: Tensor, latent: Tensor, weight: Tensor | PackedWeight, bias: Tensor) -> Tensor:
    """The logarithm of a mixture of softmaxes (Yang et al. 2018) for every word.

        log(Σ_k π_k softmax(D e_k + d) + 10⁻⁸)

    ``prior`` π is … x experts, ``latent`` e is … x experts x features, ``weight`` D is words x features. The
    experts are added one by one, so that not all their scores exist together.
    """
    mixed: Tensor | None = None
    for share, features in zip(prior.unbind(-1), latent.unbind(-2), strict=True):
        if isinstance(weight, PackedWeight):
            scores = packed_linear(features, weight, bias)
        else:
            scores = functional.linear(features, weight, bias)
        chances = scores.softmax(-1) * share.unsqueeze(-1)
        mixed = chances if mixed is None else mixed + chances
    assert mixed is not None
    return (mixed + FLOOR).log()


def mixture_loss(
    prior: Tensor,
    latent: Tensor,
    weight: Tensor | PackedWeight,
    bias: Tensor,
    targets: Tensor,
    scores_at_once: int = SCORES_AT_ONCE,
) -> Tensor:
    """Mean negative :func:`mixture_log_probabilities` of ``targets``.

    A few positions are taken at a time, and of each only the probability of its target is kept. Where gradients
    are needed they are computed with it, while its scores are at hand: none is stored or computed twice.
    """
    values, index = (weight.values, weight.index) if isinstance(weight, PackedWeight) else (weight, None)
    inputs = (prior.flatten(0, -2), latent.flatten(0, -3), values, bias)
    with_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    loss: Tensor = _MixtureLoss.apply(  # type: ignore[no-untyped-call]
        *inputs, index, targets.flatten(), scores_at_once, with_gradients
    )
    return loss


class _MixtureLoss(torch.autograd.Function):
    """A scalar is returned, so its gradients are known in the forward pass but for one factor."""

    @staticmethod
    def forward(
        ctx: Any,
        prior: Tensor,
        latent: Tensor,
        weight: Tensor,
        bias: Tensor,
        index: Tensor | None,
        targets: Tensor,
        scores_at_once: int,
        with_gradients: bool,
    ) -> Tensor:
        positions, experts = prior.shape
        piece = min(positions, max(1, scores_at_once // (experts * len(bias))))
        memory = weight.new_empty(piece * experts, len(bias) if index is None else 0)
        gradients = [torch.zeros_like(tensor) for tensor in (prior, latent, weight, bias) if with_gradients]
        loss = weight.new_zeros(())
        # For growth by gradient; see selfish_rnn.engine.dense_gradients.
        dense = None if index is None or not is_collecting(index) else weight.new_zeros(len(bias), latent.shape[-1])
        for start in range(0, positions, piece):
            here = slice(start, start + piece)
            features = latent[here].flatten(0, 1)
            words = targets[here].repeat_interleave(experts).unsqueeze(-1)
            if index is None:
                scores = torch.addmm(bias, features, weight.t(), out=memory[: len(features)])
            else:
                scores = operators.linear(features, weight, index, bias, len(bias))
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
                if index is None:
                    grad_latent[here] = (grad_scores @ weight).view_as(grad_latent[here])
                    grad_weight.addmm_(grad_scores.t(), features)
                    grad_bias += grad_scores.sum(0)
                else:
                    found = operators.linear_backward(features, grad_scores, weight, index, [True, True, True])
                    grad_latent[here] = found[0].view_as(grad_latent[here])
                    grad_weight += found[1]
                    grad_bias += found[2]
                if dense is not None:
                    dense.addmm_(grad_scores.t(), features, alpha=1 / positions)
        ctx.save_for_backward(*(gradient.div_(positions) for gradient in gradients))
        ctx.index, ctx.dense = index, dense
        return loss / positions

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.dense is not None:
            collect_product(ctx.index, ctx.dense * grad_loss)
        return *(gradient * grad_loss for gradient in ctx.saved_tensors), None, None, None, None
