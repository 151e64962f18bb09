"""Products with one sparse matrix, as in training, by all engines that have them."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from selfish_rnn.engine import PackedWeight, operators
from selfish_rnn.topology.sampling import sample

PRODUCTS = ("forward", "input gradient", "weight gradient", "both gradients")

Products = dict[str, Callable[[], Any]]
"""Calls by their name in :data:`PRODUCTS`, without those that an engine lacks."""


def to_csr(matrix: Tensor) -> Tensor:
    """Return the non-zeros of a matrix in torch's sparse format."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return matrix.to_sparse_csr()


def sparse_matrix(rows: int, columns: int, sparsity: float, generator: torch.Generator) -> Tensor:
    """Return a dense matrix with an exact fraction of zeros."""
    positions = sample(rows * columns, round((1 - sparsity) * rows * columns), generator)
    matrix = torch.zeros(rows * columns)
    # Away from zero, so that every position drawn is a non-zero.
    matrix[positions] = torch.rand(len(positions), generator=generator) + 0.1
    return matrix.view(rows, columns)


def _dense(matrix: Tensor, x: Tensor, gradient: Tensor) -> Products:
    return {
        "forward": lambda: functional.linear(x, matrix),
        "input gradient": lambda: gradient @ matrix,
        "weight gradient": lambda: gradient.t() @ x,
        "both gradients": lambda: (gradient @ matrix, gradient.t() @ x),
    }


def _packed(matrix: Tensor, x: Tensor, gradient: Tensor) -> Products:
    weight = PackedWeight.from_dense(matrix)
    values, index, rows = weight.values.detach(), weight.index, len(matrix)

    def backward(*needs: bool) -> Callable[[], Any]:
        return lambda: operators.linear_backward(x, gradient, values, index, [*needs, False])

    return {
        "forward": lambda: operators.linear(x, values, index, None, rows),
        "input gradient": backward(True, False),
        "weight gradient": backward(False, True),
        "both gradients": backward(True, True),
    }


def _csr(matrix: Tensor, x: Tensor, gradient: Tensor) -> Products:
    """Return products of torch's CSR format, with activations in its preferred layout (features first)."""
    csr, transposed = to_csr(matrix), to_csr(matrix.t())
    inputs, gradients = x.t().contiguous(), gradient.t().contiguous()
    products: Products = {
        "forward": lambda: torch.mm(csr, inputs),
        "input gradient": lambda: torch.mm(transposed, gradients),
        "weight gradient": lambda: torch.sparse.sampled_addmm(csr, gradients, x, beta=0.0),
        "both gradients": lambda: (products["input gradient"](), products["weight gradient"]()),
    }
    try:
        products["weight gradient"]()
    except (AttributeError, RuntimeError):  # missing in some CPU builds of torch
        del products["weight gradient"], products["both gradients"]
    return products


def _sparseprop(matrix: Tensor, x: Tensor, gradient: Tensor) -> Products:
    """Return products of SparseProp (Nikdan et al. 2023), which has one call for both gradients."""
    modules: Any = importlib.import_module("sparseprop.modules")
    layer = modules.SparseLinear(matrix)
    entering = x.clone().requires_grad_()
    output, values = layer(entering), layer.weight
    return {
        "forward": torch.no_grad()(lambda: layer(x)),
        "both gradients": lambda: torch.autograd.grad(output, (entering, values), gradient, retain_graph=True),
    }


PRODUCTS_OF = {"dense": _dense, "packed": _packed, "csr": _csr, "sparseprop": _sparseprop}
"""Functions that make the products of an engine with a matrix, inputs (n x columns) and output gradients (n x rows)."""
