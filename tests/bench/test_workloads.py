"""Like is compared with like: every engine computes the same."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selfish_rnn.bench.bench import difference
from selfish_rnn.bench.engines import ENGINES, measured
from selfish_rnn.bench.options import NETWORKS, read
from selfish_rnn.bench.products import PRODUCTS, PRODUCTS_OF, sparse_matrix
from selfish_rnn.bench.rivals import computes_in
from selfish_rnn.bench.workloads import Workload
from selfish_rnn.engine import library
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.models import LanguageModel

pytestmark = pytest.mark.skipif(not library.available(), reason="the kernels are not built")


def workload(network: str) -> Workload:
    return Workload(read({"network": network, "vocabulary": 30, "batch": 3, "window": 4}), hidden=20, sparsity=0.6)


@pytest.mark.parametrize("network", NETWORKS)
def test_all_engines_train_the_same_network(network: str):
    models = {engine: workload(network).model(engine) for engine in ("dense", "masked", "packed")}
    losses = [workload(network).training_step(engine, model)() for engine, model in models.items()]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)
    counts = {name: sum(p.numel() for p in model.parameters() if p.requires_grad) for name, model in models.items()}
    assert counts["packed"] < counts["masked"] == counts["dense"]


@pytest.mark.parametrize("engine", ["no-onednn", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_rivals_train_the_same_network(engine: str):
    if engine == "bfloat16" and not computes_in(torch.bfloat16):
        pytest.skip("torch fails in bfloat16 on this machine")
    dense, rival = (workload("lstm").training_step(name) for name in ("dense", engine))
    for _ in range(3):
        assert rival() == pytest.approx(dense(), rel=ENGINES[engine].tolerance)
    assert torch.backends.mkldnn.enabled, "as before"


@pytest.fixture
def _large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks whose scores depend much on the words; those of fresh weights hardly do."""
    make = Workload.dense_model

    def enlarged(self: Workload) -> LanguageModel:
        model, scale = make(self), 9 if self.options.network == "on-lstm" else 4
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale if parameter.ndim > 1 else 0.5)
        return model

    monkeypatch.setattr(Workload, "dense_model", enlarged)


def rivals() -> list[Any]:
    """Each network with each engine that runs it; one compiler is enough for torch.compile."""
    result = list[Any]()
    for network in NETWORKS:
        for engine in measured("inference", network):
            if engine != "compiled":
                result.append((network, engine))
    return [*result, pytest.param("lstm", "compiled", marks=pytest.mark.slow)]


@pytest.mark.usefixtures("_large_weights")
@pytest.mark.parametrize(("network", "engine"), rivals())
def test_all_engines_continue_a_text_alike(
    network: str, engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for package in ENGINES[engine].packages:
        pytest.importorskip(package)
    # Without generated code, which takes a minute to compile; what is seen of the network is the same.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    dense, local = (workload(network).next_word(name) for name in ("dense", engine))
    for _ in range(4):
        result, expected = (torch.as_tensor(call()).flatten().float() for call in (local, dense))
        assert difference(result, expected) <= ENGINES[engine].tolerance
    assert capsys.readouterr().out == "", "what others print is not for the user"
    candidate = difference(torch.as_tensor(dense()).flatten(), expected)
    assert candidate > 2 * ENGINES[engine].tolerance, "the next word has other scores, so this test can fail"


@pytest.mark.parametrize("network", NETWORKS)
def test_a_wider_network_has_as_many_weights(network: str):
    narrow = workload(network)
    weights = [
        sum(len(weight.values) for weight in packed_weights(local.model("packed")).values())
        for local in (narrow, narrow.at_width(60))
    ]
    assert weights[1] == pytest.approx(weights[0], abs=16), "rounded in each matrix"
    assert weights[0] == pytest.approx(0.4 * narrow.positions(), abs=16)


class FakeSparseLinear(nn.Module):
    """Stand-in with the interface of SparseProp's module."""

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
        local = product()
        result = [tensor for tensor in (local if isinstance(local, tuple | list) else [local]) if tensor.numel()]
        for local, candidate in zip(result, expected, strict=True):
            if candidate.shape == matrix.shape:
                weights = local.values() if local.layout == torch.sparse_csr else local
                torch.testing.assert_close(weights.sort().values, candidate[matrix != 0].sort().values)
            else:
                torch.testing.assert_close(local.t() if local.shape != candidate.shape else local, candidate)
