"""FLOPs of a network, in the paper's convention.

Two FLOPs for each weight that exists and each vector it multiplies; biases, gates, softmax and rewirings are not
counted. A look-up in an embedding costs nothing; the gradient of an embedding that is not also the output matrix
counts like that of any other matrix. The backward pass takes twice the forward pass: one product for the gradient of
what entered, one for the gradient of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from selfish_rnn.analysis.networks import WeightMatrix, first_tensor, watched, weight_matrices
from selfish_rnn.engine import PackedEmbedding
from selfish_rnn.models import LanguageModel
from selfish_rnn.text import aligned

_EMBEDDING = (nn.Embedding, PackedEmbedding)


@dataclass(frozen=True)
class MatrixUse:
    """Number of vectors that a matrix of ``size`` positions multiplies for one sample.

    ``products`` in the forward pass, and as many for each of the two gradients; ``lookups`` cost nothing forward but
    one product each for the gradient of the weights.
    """

    name: str
    size: int
    products: float
    lookups: float = 0.0

    def inference(self, density: float) -> float:
        """Return the FLOPs of the forward pass."""
        return 2 * density * self.size * self.products

    def training(self, density: float, *, dense_gradient: bool = False) -> float:
        """Return the FLOPs of forward and backward pass, optionally with gradients of all positions."""
        of_gradient = 1.0 if dense_gradient else density
        return 2 * self.size * (2 * density * self.products + of_gradient * (self.products + self.lookups))


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of a model on one sample, for inference and a training step, with those of the dense model.

    ``samples`` is the number of vectors, such as words, in the sample. ``print`` shows a table of the matrices.
    """

    uses: tuple[MatrixUse, ...]
    densities: Mapping[str, float]
    samples: int = 1

    @property
    def inference(self) -> float:
        return sum(use.inference(self.densities[use.name]) for use in self.uses)

    @property
    def training(self) -> float:
        return sum(use.training(self.densities[use.name]) for use in self.uses)

    @property
    def dense_inference(self) -> float:
        return sum(use.inference(1.0) for use in self.uses)

    @property
    def dense_training(self) -> float:
        return sum(use.training(1.0) for use in self.uses)

    def __str__(self) -> str:
        rows = [("matrix", "density", "inference", "training")]
        for use in self.uses:
            density = self.densities[use.name]
            cells = (f"{100 * density:.1f} %", f"{use.inference(density):.3g}", f"{use.training(density):.3g}")
            rows.append((use.name, *cells))
        rows.append(("all", "", f"{self.inference:.3g}", f"{self.training:.3g}"))
        rows.append(("dense", "", f"{self.dense_inference:.3g}", f"{self.dense_training:.3g}"))
        return aligned(rows, right=(1, 2, 3))


def flops(model: nn.Module, *inputs: Any) -> ModelFlops:
    """Return the FLOPs of a model's existing weights in inference and a training step, in the paper's convention.

        inference = Σ 2 · weights · (vectors they multiply),   training = 3 · inference

    >>> from selfish_rnn import Sparsifier
    >>> model = nn.LSTM(16, 16)
    >>> sparsifier = Sparsifier(model, sparsity=0.75, rewirings=10)
    >>> counted = flops(model, torch.randn(35, 20, 16))       # one batch: 35 steps of 20 sequences
    >>> counted.inference == 2 * sparsifier.active_weights * 35 * 20
    True
    >>> counted.training / counted.dense_training
    0.25

    The model is called once with ``inputs``, to count the uses of its layers. A language model of this package needs
    none: without tokens the FLOPs are those of one word.
    """
    matrices = weight_matrices(model)
    if isinstance(model, LanguageModel):
        samples = inputs[0].numel() if inputs else 1
        uses = [
            replace(use, products=samples * use.products, lookups=samples * use.lookups) for use in word_uses(model)
        ]
    else:
        if not inputs:
            raise ValueError("flops needs an example of what the model is called with: flops(model, inputs)")
        uses, samples = _observed_uses(model, matrices, inputs)
    return ModelFlops(tuple(uses), {name: matrix.count / matrix.size for name, matrix in matrices.items()}, samples)


def word_uses(model: LanguageModel) -> list[MatrixUse]:
    """Return the use of each matrix of a language model for one word. Its weights may be on the meta device."""
    uses = []
    for name, matrix in weight_matrices(model).items():
        if "embedding" not in matrix.owners:
            uses.append(MatrixUse(name, matrix.size, products=1))
        elif "decoder" in matrix.owners:
            # The output layer is the embedding, once for every expert that reads it.
            uses.append(MatrixUse(name, matrix.size, products=getattr(model, "experts", 1)))
        else:
            uses.append(MatrixUse(name, matrix.size, products=0, lookups=1))
    return uses


def _observed_uses(
    model: nn.Module, matrices: Mapping[str, WeightMatrix], inputs: tuple[Any, ...]
) -> tuple[list[MatrixUse], int]:
    """Return the use of each matrix in one call of the model, and the largest number of vectors."""
    vectors: dict[str, int] = {}
    modules = dict(model.named_modules())
    with watched(model, partial(_count, vectors)), torch.no_grad():
        model(*inputs)
    uses = []
    for name, matrix in matrices.items():
        lookups = [owner for owner in matrix.owners if isinstance(modules[owner], _EMBEDDING)]
        products = sum(vectors.get(owner, 0) for owner in matrix.owners if owner not in lookups)
        looked_up = 0 if products else sum(vectors.get(owner, 0) for owner in lookups)
        uses.append(MatrixUse(name, matrix.size, products, looked_up))
    return uses, max(vectors.values(), default=0)


def _count(vectors: dict[str, int], name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
    """Add the number of vectors in a call of a module."""
    seen = first_tensor(output if isinstance(module, _EMBEDDING) else arguments)
    if seen is not None:
        vectors[name] = vectors.get(name, 0) + seen.numel() // seen.shape[-1]
