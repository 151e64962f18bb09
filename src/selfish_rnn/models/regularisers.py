"""Regularisers of the language models: dropout of activations, words and weights, AR and TAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from selfish_rnn.engine.functional import drop_factors, drop_keys

Rescale = Literal["training", "evaluation"]
"""Phase in which dropped weights are rescaled; see :func:`weight_drop`."""


def dropout_mask(shape: Sequence[int], probability: float, reference: Tensor) -> Tensor:
    """Return a mask like ``reference``: zeros with ``probability``, else ``1 / (1 - probability)``."""
    return functional.dropout(reference.new_ones(tuple(shape)), probability)


def locked_dropout(sequence: Tensor, probability: float, training: bool) -> Tensor:
    """Apply dropout with one mask for all time steps of a sequence (Gal & Ghahramani 2016).

        y_t = x_t ∘ m / (1 - p),   m ~ Bernoulli(1 - p), 1 x batch x features

    ``sequence`` is time x batch x features.
    """
    if not training or probability == 0:
        return sequence
    return sequence * dropout_mask((1, *sequence.shape[1:]), probability, sequence)


def embed(embedding: nn.Embedding, tokens: Tensor, probability: float, training: bool) -> Tensor:
    """Look up ``tokens`` with word dropout: a dropped word vanishes everywhere in the window.

        y = m_w / (1 - p) · E_w,   m_w ~ Bernoulli(1 - p), one per word of the vocabulary

    The mask applies to the looked-up rows and not to the matrix, so a tied output layer is not dropped.
    """
    rows: Tensor = embedding(tokens)
    if not training or probability == 0:
        return rows
    return rows * dropout_mask((embedding.num_embeddings, 1), probability, rows)[tokens]


def weight_drop(weight: Tensor, probability: float, training: bool, rescale: Rescale) -> Tensor:
    """Return a weight matrix with dropped entries (Wan et al. 2013) as a new tensor, drawn once per call.

    ==================  ======================  ===================
    ``rescale``         training                evaluation
    ==================  ======================  ===================
    ``"training"``      m ∘ W / (1 - p)         W
    ``"evaluation"``    m ∘ W                   (1 - p) W
    ==================  ======================  ===================

    AWD-LSTM uses the first, ON-LSTM the second. The weight itself is unchanged: its name and zeros stay, and hooks on
    the parameter receive its gradient.
    """
    if probability == 0:
        return weight
    if training:
        factors = drop_factors(weight.shape, probability, rescale == "training", drop_keys(weight.device))
        return weight * factors.to(weight.dtype)
    return weight if rescale == "training" else weight * (1 - probability)


def activation_penalty(activations: Tensor, strength: float) -> Tensor:
    """Return AR (Merity et al. 2017): ``strength · mean(h²)``."""
    return strength * activations.square().mean()


def temporal_activation_penalty(raw: Tensor, strength: float) -> Tensor:
    """Return TAR (Merity et al. 2017): ``strength · mean((h_t - h_{t-1})²)``, 0 for a single step."""
    if len(raw) < 2:
        return raw.new_zeros(())
    return strength * (raw[1:] - raw[:-1]).square().mean()
