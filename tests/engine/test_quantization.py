"""quantize: anyone's sparse model with int8 weights, called as before."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from packed_cases import assert_close, matrix, needs_kernels, seeded, sparse_
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from selfish_rnn import GateLayout, Sparsifier, pack, register_cell
from selfish_rnn.engine import (
    PackedLSTM,
    functional,
    load_packed,
    quantize,
    register_packed,
    registry,
    save_packed,
    unpack,
)
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight, quantized_weights
from selfish_rnn.engine.int8.targets import int8_target, int8_targets, use_int8_target
from selfish_rnn.engine.packed_weight import packed_weights

pytestmark = needs_kernels


class Tagger(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24, padding_idx=0)
        self.rnn = nn.LSTM(24, 24, num_layers=2, dropout=0.5)
        self.output = nn.Linear(24, 50)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.rnn(self.embedding(tokens))[0])  # type: ignore[no-any-return]


def sparse_tagger(**options: Any) -> Tagger:
    torch.manual_seed(3)
    model = Tagger(**options)
    Sparsifier(model, sparsity=0.6, rewirings=2)
    return model.eval()


def relative(y: Tensor, expected: Tensor) -> float:
    return float(((y - expected).norm() / expected.norm()).detach())


@pytest.mark.parametrize("packed", [False, True])
def test_a_packed_and_a_masked_model_become_the_same_int8_model(packed: bool) -> None:
    model, tokens = sparse_tagger(), torch.randint(50, (6, 3), generator=seeded(1))
    expected = model(tokens).detach()
    small = quantize(pack(copy.deepcopy(model)) if packed else copy.deepcopy(model))
    assert isinstance(small.rnn, PackedLSTM)
    assert len(quantized_weights(small)) == 6
    assert not packed_weights(small)
    y = small(tokens)
    assert 0 < relative(y, expected) < 0.03
    assert torch.equal(y, quantize(copy.deepcopy(model))(tokens))


def test_an_int8_model_is_not_unpacked_and_the_way_to_ordinary_modules_is_told() -> None:
    model, tokens = sparse_tagger(), torch.randint(50, (6, 3), generator=seeded(1))
    small = quantize(copy.deepcopy(model))
    expected = small(tokens)
    with pytest.raises(ValueError, match=r"^embedding\.weight, rnn\.weight_ih_l0, .* of this model are int8") as caught:
        unpack(small)
    assert torch.equal(small(tokens), expected)
    assert 'unpack(quantize(copy.deepcopy(model), arithmetic="float32"))' in str(caught.value)
    ordinary = unpack(quantize(copy.deepcopy(model), arithmetic="float32"))
    assert isinstance(ordinary.rnn, nn.LSTM)
    for name, weight in quantized_weights(small).items():
        assert torch.equal(ordinary.get_parameter(name), weight.to_dense())


def test_results_are_bit_equal_on_every_processor_for_any_threads_and_sequences() -> None:
    model, tokens = quantize(sparse_tagger()), torch.randint(50, (6, 11), generator=seeded(1))
    expected, before, threads = model(tokens), int8_target(), torch.get_num_threads()
    try:
        for name in int8_targets():
            use_int8_target(name)
            torch.set_num_threads(2)
            assert torch.equal(model(tokens), expected), name
            torch.set_num_threads(1)
            assert torch.equal(torch.cat([model(column) for column in tokens.split(3, 1)], 1), expected), name
    finally:
        use_int8_target(before)
        torch.set_num_threads(threads)


def fake_quantized(module: Any) -> Any:
    """torch's module with weights rounded to int8; its activations are not rounded."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.copy_(QuantizedWeight.from_dense(parameter).to_dense())
    return module


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}, {"bias": False}])
def test_recurrent_layers_compute_what_torch_does(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    dense = sparse_(kind(20, 24, num_layers=2, **options), 0.5, 1, gates).eval()
    small = quantize(copy.deepcopy(dense))
    exact = fake_quantized(dense)
    x = torch.randn(7, 5, 20, generator=seeded(2))
    y, state = small(x)
    y_exact, state_exact = exact(x)
    assert relative(y, y_exact) < 0.02
    for found, wanted in zip(state if kind is nn.LSTM else [state], state_exact if kind is nn.LSTM else [state_exact],
                             strict=True):  # fmt: skip
        assert found.shape == wanted.shape
        assert relative(found, wanted) < 0.02
    again, _ = small(x, state)
    assert relative(again, exact(x, state_exact)[0]) < 0.02


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_cells_compute_what_torch_does(kind: type[nn.RNNCellBase], gates: int) -> None:
    dense = sparse_(kind(20, 24), 0.5, 1, gates)
    small = quantize(copy.deepcopy(dense))
    x = torch.randn(5, 20, generator=seeded(2))
    found, expected = small(x), fake_quantized(dense)(x)
    assert relative(found[0] if kind is nn.LSTMCell else found, expected[0] if kind is nn.LSTMCell else expected) < 0.02


def test_sequences_of_different_lengths_and_projections() -> None:
    dense = sparse_(nn.LSTM(20, 24, proj_size=8), 0.5, 1, 4).eval()
    small = quantize(copy.deepcopy(dense))
    sequences = pack_sequence([torch.randn(n, 20, generator=seeded(n)) for n in (5, 3, 3)])
    y, (h, c) = small(sequences)
    y_exact, (h_exact, c_exact) = fake_quantized(dense)(sequences)
    assert max(relative(y.data, y_exact.data), relative(h, h_exact), relative(c, c_exact)) < 0.03


def test_a_tied_weight_is_one_and_a_state_dict_goes_back_and_forth() -> None:
    small = quantize(sparse_tagger(tied=True))
    assert small.embedding.weight is small.output.weight
    other = quantize(sparse_tagger(tied=True).requires_grad_(False))
    for weight in quantized_weights(other).values():
        weight._lay_out(*(part[:0] for part in weight.weights()[:2]), weight.weights()[2])
    tokens = torch.randint(50, (6, 3), generator=seeded(1))
    assert not torch.equal(other(tokens), small(tokens))
    other.load_state_dict(small.state_dict())
    assert torch.equal(other(tokens), small(tokens))
    assert torch.equal(copy.deepcopy(small)(tokens), small(tokens))


def test_float32_arithmetic_rounds_the_weights_only() -> None:
    model, tokens = sparse_tagger(), torch.randint(50, (6, 3), generator=seeded(1))
    rounded, small = quantize(copy.deepcopy(model), arithmetic="float32"), quantize(copy.deepcopy(model))
    assert not quantized_weights(rounded)
    for name, weight in packed_weights(rounded).items():
        assert_close(weight.to_dense(), quantized_weights(small)[name].to_dense(), name)
    assert relative(rounded(tokens), model(tokens)) < relative(small(tokens), model(tokens))


def test_training_is_refused() -> None:
    small = quantize(sparse_tagger())
    assert not small.training
    assert not any(parameter.requires_grad for parameter in small.parameters())
    with pytest.raises(RuntimeError, match="cannot be trained"):
        small.train()
    training = Tagger()
    sparsifier = Sparsifier(training, sparsity=0.6, rewirings=2)
    optimizer = torch.optim.SGD(training.parameters(), lr=0.1)
    training(torch.zeros(2, 2, dtype=torch.int64)).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"quantize copy\.deepcopy"):
        quantize(training)
    assert not quantize(copy.deepcopy(training)).training
    assert sparsifier.weights  # goes on


def test_a_model_without_sparse_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="no sparse weights"):
        quantize(nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(ValueError, match="arithmetic must be"):
        quantize(sparse_tagger(), arithmetic="int4")  # type: ignore[arg-type]


def test_a_quantized_model_compiles() -> None:
    small = quantize(sparse_tagger())
    x = torch.randn(2, 24, generator=seeded(1))
    compiled = torch.compile(small.output, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), small.output(x))


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(matrix(8, 6, 0.4, 0))


class PackedGate(Gate):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight).sigmoid()


class QuantizedGate(PackedGate):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).round()


@pytest.mark.parametrize("arithmetic", ["int8", "float32"])
def test_a_cell_of_ones_own_may_compute_otherwise_in_int8(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arithmetic: Literal["int8", "float32"]
) -> None:
    monkeypatch.setattr(registry, "_counterparts", dict(registry._counterparts))
    register_cell(Gate, lambda gate: {"weight": GateLayout.single(8)})
    register_packed(Gate, PackedGate, quantized=QuantizedGate)
    kind = QuantizedGate if arithmetic == "int8" else PackedGate
    model = quantize(nn.Sequential(Gate()), arithmetic=arithmetic)
    assert type(model[0]) is kind
    save_packed(model, tmp_path / "model")
    loaded = load_packed(lambda: nn.Sequential(Gate()), tmp_path / "model")
    assert type(loaded[0]) is type(copy.deepcopy(loaded)[0]) is kind
    x = torch.randn(3, 6, generator=seeded(1))
    assert torch.equal(loaded(x), model(x))
