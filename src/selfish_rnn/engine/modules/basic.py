"""Linear and embedding layers that store and multiply only the weights that exist."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from selfish_rnn.engine import functional
from selfish_rnn.engine.modules.parameters import give_parameters, random_weight, reset_uniform
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.registry import StandIn, register_packed


class PackedLinear(StandIn):
    """``torch.nn.Linear`` with a sparse weight: ``y = x W^T + b``.

    >>> layer = PackedLinear(1500, 10_000, sparsity=0.9)
    >>> layer = PackedLinear.from_dense(linear)  # its non-zeros exist

    The weights that exist start as in ``torch.nn.Linear``. ``weight`` is a :class:`PackedWeight`; another module may
    share it.
    """

    kind: ClassVar[type[nn.Linear]] = nn.Linear
    """The class it stands for."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        sparsity: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = random_weight((out_features, in_features), sparsity, generator)
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_uniform(self, self.in_features)

    @classmethod
    def from_dense(cls, linear: nn.Linear, weight: PackedWeight | None = None) -> PackedLinear:
        """A layer with the non-zero weights of a dense one, or with ``weight`` in their place."""
        packed = cls.__new__(cls)
        nn.Module.__init__(packed)
        packed.in_features, packed.out_features = linear.in_features, linear.out_features
        packed.weight = PackedWeight.from_dense(linear.weight) if weight is None else weight
        packed.bias = (
            None if linear.bias is None else nn.Parameter(linear.bias.detach().clone(), linear.bias.requires_grad)
        )
        return packed.train(linear.training)

    def to_dense(self) -> nn.Linear:
        """An ordinary layer with zeros where no weight exists."""
        return give_parameters(self, self.kind(self.in_features, self.out_features, self.bias is not None))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def cross_entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of this layer's output with ``targets``, without keeping the output."""
        return functional.linear_cross_entropy(x, self.weight, self.bias, targets)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class PackedEmbedding(StandIn):
    """``torch.nn.Embedding`` with a sparse weight.

    >>> embedding = PackedEmbedding(10_000, 1500, sparsity=0.9)
    >>> decoder = PackedLinear.from_dense(linear, weight=embedding.weight)  # tied

    The row ``padding_idx`` gets no gradient. It may have weights, which then never learn: they are zero in a new
    embedding, and what they were in one that is packed.
    """

    kind: ClassVar[type[nn.Embedding]] = nn.Embedding
    """Class it stands for."""

    max_norm: None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False
    sparse: bool = False

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        sparsity: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx must be one of {num_embeddings} rows, got {padding_idx}")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = random_weight((num_embeddings, embedding_dim), sparsity, generator)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight.values)
        if self.padding_idx is not None:
            positions, places = self.weight.sorted()
            self.weight.values[places[positions // self.embedding_dim == self.padding_idx]] = 0.0

    @classmethod
    def from_dense(cls, embedding: nn.Embedding, weight: PackedWeight | None = None) -> PackedEmbedding:
        """An embedding with the non-zero weights of a dense one, or with ``weight`` in their place."""
        obstacle = _obstacle(embedding)
        if obstacle is not None:
            raise ValueError(f"a packed embedding has no {obstacle}")
        packed = cls.__new__(cls)
        nn.Module.__init__(packed)
        packed.num_embeddings, packed.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        packed.padding_idx = embedding.padding_idx
        packed.weight = PackedWeight.from_dense(embedding.weight) if weight is None else weight
        return packed.train(embedding.training)

    def to_dense(self) -> nn.Embedding:
        """An ordinary embedding with zeros where no weight exists."""
        return give_parameters(self, nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = functional.embedding(tokens, self.weight)
        if self.padding_idx is None:
            return rows
        return torch.where((tokens == self.padding_idx).unsqueeze(-1), rows.detach(), rows)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


def _obstacle(embedding: nn.Embedding) -> str | None:
    if embedding.max_norm is not None:
        return "max_norm"
    if embedding.scale_grad_by_freq:
        return "scale_grad_by_freq"
    return "sparse gradient" if embedding.sparse else None


# First, because the class named last is the one that the packed class stands for.
register_packed(
    NonDynamicallyQuantizableLinear, PackedLinear, lambda _: "nn.MultiheadAttention reads its weight itself"
)
register_packed(nn.Linear, PackedLinear)
register_packed(nn.Embedding, PackedEmbedding, _obstacle)
