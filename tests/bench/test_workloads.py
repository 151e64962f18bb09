"""Like is compared with like: every engine computes the same."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selfish_rnn.bench.options import NETWORKS, read
from selfish_rnn.bench.products import PRODUCTS, PRODUCTS_OF, sparse_matrix
from selfish_rnn.bench.workloads import Workload
from selfish_rnn.engine import library

pytestmark = pytest.mark.skipif(not library.available(), reason="the kernels are not built")


def workload(network: str) -> Workload:
    return Workload(read({"network": network, "vocabulary": 30, "batch": 3, "window": 4}), hidden=20, sparsity=0.6)


@pytest.mark.parametrize("network", NETWORKS)
def test_all_engines_train_the_same_network(network: str):
    models = {engine: workload(network).model(engine) for engine in ("dense", "masked", "packed")}
    losses = [workload(network).training_step(model)() for model in models.values()]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)
    counts = {name: sum(p.numel() for p in model.parameters() if p.requires_grad) for name, model in models.items()}
    assert counts["packed"] < counts["masked"] == counts["dense"]


@pytest.mark.parametrize("network", NETWORKS)
def test_all_engines_continue_a_text_alike(network: str):
    dense, packed = (workload(network).next_token(engine) for engine in ("dense", "packed"))
    for _ in range(3):
        torch.testing.assert_close(packed(), dense())


class FakeSparseLinear(nn.Module):
    """What SparseProp's module looks like from outside."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self._mask = matrix != 0
        self.weight = nn.Parameter(matrix[self._mask])

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.zeros(self._mask.shape).masked_scatter(self._mask, self.weight).t()


@pytest.mark.parametrize("engine", ["packed", "csr", "sparseprop"])
@pytest.mark.parametrize("n", [1, 7])
def test_products_are_the_same(engine: str, n: int, monkeypatch: pytest.MonkeyPatch):
    if engine == "sparseprop":
        modules: Any = types.ModuleType("sparseprop.modules")
        modules.SparseLinear = FakeSparseLinear
        monkeypatch.setitem(sys.modules, "sparseprop", types.ModuleType("sparseprop"))
        monkeypatch.setitem(sys.modules, "sparseprop.modules", modules)
    generator = torch.Generator().manual_seed(0)
    matrix = sparse_matrix(12, 9, 0.7, generator)
    assert matrix.count_nonzero() == round(0.3 * 12 * 9)
    x, gradient = torch.randn(n, 9, generator=generator), torch.randn(n, 12, generator=generator)
    dense = {name: product() for name, product in PRODUCTS_OF["dense"](matrix, x, gradient).items()}
    assert list(dense) == list(PRODUCTS)
    for name, product in PRODUCTS_OF[engine](matrix, x, gradient).items():
        # Some find several gradients at once, some lay activations out the other way.
        expected = dense[name] if isinstance(dense[name], tuple) else (dense[name],)
        own = product()
        found = [tensor for tensor in (own if isinstance(own, tuple | list) else [own]) if tensor.numel()]
        for own, other in zip(found, expected, strict=True):
            if other.shape == matrix.shape:
                weights = own.values() if own.layout == torch.sparse_csr else own
                torch.testing.assert_close(weights.sort().values, other[matrix != 0].sort().values)
            else:
                torch.testing.assert_close(own.t() if own.shape != other.shape else own, other)
