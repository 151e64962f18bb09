"""The regularisers the language models share: dropout of activations, words and weights, AR and TAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from selfish_rnn.engine.functional import drop_factors, drop_keys

Rescale = Literal["training", "evaluation"]
"""When dropped weights are brought back to their expected size; see :func:`weight_drop`."""


def dropout_mask(shape: Sequence[int], probability: float, reference: Tensor) -> Tensor:
    """Zeros with ``probability``, else ``1 / (1 - probability)``; type and device of ``reference``."""
    return functional.dropout(reference.new_ones(tuple(shape)), probability)


def locked_dropout(sequence: Tensor, probability: float, training: bool) -> Tensor:
    """Dropout with one mask per sequence, the same at all its time steps (Gal & Ghahramani 2016).

        y_t = x_t ∘ m / (1 - p),   m ~ Bernoulli(1 - p), 1 x batch x features

    ``sequence`` is time x batch x features.
    """
    if not training or probability == 0:
        return sequence
    return sequence * dropout_mask((1, *sequence.shape[1:]), probability, sequence)


def embed(embedding: nn.Embedding, tokens: Tensor, probability: float, training: bool) -> Tensor:
    """Look up ``tokens`` with word dropout: a dropped word vanishes wherever it occurs in the window.

        y = m_w / (1 - p) · E_w,   m_w ~ Bernoulli(1 - p), one per word of the vocabulary

    The mask meets the looked-up rows and not the matrix, so an output layer tied to it is not dropped.
    """
    rows: Tensor = embedding(tokens)
    if not training or probability == 0:
        return rows
    return rows * dropout_mask((embedding.num_embeddings, 1), probability, rows)[tokens]


def weight_drop(weight: Tensor, probability: float, training: bool, rescale: Rescale) -> Tensor:
    """A weight matrix with entries dropped (Wan et al. 2013), as a new tensor; drawn once for every call.

    ==================  ======================  ===================
    ``rescale``         training                evaluation
    ==================  ======================  ===================
    ``"training"``      m ∘ W / (1 - p)         W
    ``"evaluation"``    m ∘ W                   (1 - p) W
    ==================  ======================  ===================

    The first is AWD-LSTM's, the second ON-LSTM's. The weight itself, its name and its sparsity are untouched:
    a zero stays zero, and hooks on the parameter see its gradient as ever.
    """
    if probability == 0:
        return weight
    if training:
        factors = drop_factors(weight.shape, probability, rescale == "training", drop_keys(weight.device))
        return weight * factors.to(weight.dtype)
    return weight if rescale == "training" else weight * (1 - probability)


def activation_penalty(activations: Tensor, strength: float) -> Tensor:
    """AR (Merity et al. 2017): ``strength · mean(h²)``."""
    return strength * activations.square().mean()


def temporal_activation_penalty(raw: Tensor, strength: float) -> Tensor:
    """TAR (Merity et al. 2017): ``strength · mean((h_t - h_{t-1})²)``; nothing for a single step."""
    if len(raw) < 2:
        return raw.new_zeros(())
    return strength * (raw[1:] - raw[:-1]).square().mean()
