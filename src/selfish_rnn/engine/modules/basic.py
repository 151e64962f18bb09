"""Packed linear layers, embeddings and what packed modules share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from selfish_rnn.engine import functional
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.operators.recurrent import GATES
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.registry import StandIn, register_packed
from selfish_rnn.topology.sampling import sample

Dense = TypeVar("Dense", bound=nn.Module)
Self = TypeVar("Self", bound="PackedCells[Any]")


class PackedCells(StandIn, Generic[Dense]):
    """Common part of packed recurrent layers and cells."""

    kind: ClassVar[Any]
    """Class of torch that it replaces."""

    cell: str
    """Name of the cell in the kernels."""

    arguments: ClassVar[Sequence[str]]
    """Constructor arguments of torch's module, which are its attributes too."""

    hidden_size: int

    def reset_parameters(self) -> None:
        reset_uniform(self, self.hidden_size)

    @classmethod
    def from_dense(cls: type[Self], dense: Any, **weights: PackedWeight) -> Self:
        """Return a packed module with the nonzero weights of a dense one, or with ``weights`` of their names."""
        if not isinstance(dense, cls.kind):
            raise TypeError(f"{cls.__name__} is made from {cls.kind.__name__}, not from {type(dense).__name__}")
        packed = cls.__new__(cls)
        nn.Module.__init__(packed)
        for name in cls.arguments:
            setattr(packed, name, getattr(dense, name))
        take_parameters(packed, dense, (dense.hidden_size,) * GATES[packed.cell], weights)
        return packed.train(dense.training)

    def to_dense(self) -> Dense:
        """torch's module with zeros where no weight exists."""
        dense: Dense = self.kind(**{name: getattr(self, name) for name in self.arguments})
        return give_parameters(self, dense)


def reset_uniform(module: nn.Module, state: int, inputs: int | None = None) -> None:
    """Draw all parameters from U(±1/√n), as torch does: n is ``inputs`` for ``weight_input`` and ``bias_input``.

    Where ``inputs`` is not given, n is ``state`` for all.
    """
    for name, parameter in module.named_parameters():
        width = state if inputs is None or not name.startswith(("weight_input", "bias_input")) else inputs
        nn.init.uniform_(parameter, -1 / math.sqrt(width), 1 / math.sqrt(width))


def random_weight(
    shape: tuple[int, int], sparsity: float, generator: torch.Generator | None, gate_rows: tuple[int, ...] | None = None
) -> PackedWeight:
    """Weights at random positions, all zero."""
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be at least 0 and less than 1, got {sparsity}")
    size = shape[0] * shape[1]
    positions = sample(size, round((1 - sparsity) * size), generator or torch.default_generator)
    return PackedWeight(shape, positions, gate_rows=gate_rows)


def take_parameters(
    packed: nn.Module, dense: nn.Module, gates: tuple[int, ...], weights: Mapping[str, PackedWeight]
) -> None:
    """Give a packed module the parameters of a dense one; its matrices packed, or ``weights`` in their place."""
    for name, parameter in dense._parameters.items():
        if parameter is None or not name.startswith("weight"):
            copied = None if parameter is None else nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            packed.register_parameter(name, copied)
            continue
        rows = (parameter.shape[0],) if name.startswith("weight_hr") else gates
        weight = weights.get(name)
        if weight is not None and (weight.shape != parameter.shape or weight.gate_rows != rows):
            raise ValueError(f"{name} needs a packed weight of {tuple(parameter.shape)} with gates of {rows}")
        packed.add_module(name, PackedWeight.from_dense(parameter, None, rows) if weight is None else weight)


@torch.no_grad()
def give_parameters(packed: nn.Module, dense: Dense) -> Dense:
    """Give a dense module the parameters and the mode of a packed one, with zeros where no weight exists."""
    for name, parameter in dense.named_parameters():
        weight = getattr(packed, name)
        parameter.copy_(weight.to_dense() if isinstance(weight, PackedWeight | QuantizedWeight) else weight)
    return dense.train(packed.training)


class PackedLinear(StandIn):
    """``torch.nn.Linear`` with a sparse weight: ``y = x W^T + b``.

    >>> layer = PackedLinear(1500, 10_000, sparsity=0.9)
    >>> layer = PackedLinear.from_dense(linear)  # its non-zeros exist

    The weights that exist start as in ``torch.nn.Linear``. ``weight`` is a :class:`PackedWeight`; another module may
    share it.
    """

    kind: ClassVar[type[nn.Linear]] = nn.Linear
    """Class that it replaces."""

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
        """Return a layer with the nonzero weights of a dense one, or with ``weight``."""
        packed = cls.__new__(cls)
        nn.Module.__init__(packed)
        packed.in_features, packed.out_features = linear.in_features, linear.out_features
        packed.weight = PackedWeight.from_dense(linear.weight) if weight is None else weight
        packed.bias = (
            None if linear.bias is None else nn.Parameter(linear.bias.detach().clone(), linear.bias.requires_grad)
        )
        return packed.train(linear.training)

    def to_dense(self) -> nn.Linear:
        """Return an ordinary layer, with zeros where no weight exists."""
        return give_parameters(self, self.kind(self.in_features, self.out_features, self.bias is not None))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def cross_entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the output with ``targets``, without storing the output."""
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
        """Return an embedding with the nonzero weights of a dense one, or with ``weight``."""
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
        """Return an ordinary embedding, with zeros where no weight exists."""
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
