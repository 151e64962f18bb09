"""Packed modules in the place of torch's."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from packed_cases import assert_close, matrix, needs_kernels, seeded, sparse_
from torch import Tensor, nn

from selfish_rnn.engine import PackedEmbedding, PackedGRU, PackedLinear, PackedLSTM, PackedRNN, linear_cross_entropy

pytestmark = needs_kernels


def sparse_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, bias)
    with torch.no_grad():
        linear.weight.copy_(matrix(outputs, inputs, 0.3, 0))
    return linear


@pytest.mark.parametrize("bias", [True, False])
def test_linear_from_dense_and_back(bias: bool) -> None:
    dense = sparse_linear(30, 20, bias).eval()
    packed = PackedLinear.from_dense(dense)
    x = torch.randn(5, 30, generator=seeded(1))
    assert_close(packed(x), dense(x))
    back = packed.to_dense()
    assert not packed.training
    assert not back.training
    assert back.state_dict().keys() == dense.state_dict().keys()
    for name, tensor in dense.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name])


def test_embedding_from_dense_and_back() -> None:
    dense = nn.Embedding(20, 30)
    with torch.no_grad():
        dense.weight.copy_(matrix(20, 30, 0.3, 0))
    packed = PackedEmbedding.from_dense(dense)
    tokens = torch.randint(20, (4, 3), generator=seeded(1))
    assert torch.equal(packed(tokens), dense(tokens))
    assert torch.equal(packed(tokens.to(torch.int32)), dense(tokens))
    assert torch.equal(packed.to_dense().weight, dense.weight)
    for named, reason in (
        ({"max_norm": 1.0}, "max_norm"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
        ({"sparse": True}, "sparse gradient"),
    ):
        with pytest.raises(ValueError, match=f"has no {reason}"):
            PackedEmbedding.from_dense(nn.Embedding(20, 30, **named))


@pytest.mark.parametrize(
    ("kind", "dense", "gates"),
    [
        (PackedLSTM, nn.LSTM(6, 5, 2, dropout=0.1), 4),
        (PackedGRU, nn.GRU(6, 5, bias=False), 3),
        (PackedRNN, nn.RNN(6, 5, nonlinearity="relu", batch_first=True), 1),
        (PackedGRU, nn.GRU(6, 5, 2, bidirectional=True), 3),
        (PackedLSTM, nn.LSTM(6, 5, 2, bidirectional=True, proj_size=3), 4),
    ],
)
def test_recurrent_modules_from_dense_and_back(kind: Any, dense: nn.RNNBase, gates: int) -> None:
    packed = kind.from_dense(sparse_(dense, 0.4, 0, gates))
    back = packed.to_dense()
    assert repr(back) == repr(dense)
    assert back.state_dict().keys() == dense.state_dict().keys()
    for name, tensor in dense.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name])
    others = [other for other in (PackedLSTM, PackedGRU, PackedRNN) if other is not kind]
    for other in others:
        with pytest.raises(TypeError, match=f"made from {other.kind.__name__}, not from {type(dense).__name__}"):
            other.from_dense(dense)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="sparsity must be at least 0 and less than 1"):
        PackedLinear(6, 5, sparsity=1.0)
    with pytest.raises(ValueError, match="dropout must be from 0 to 1"):
        PackedLSTM(6, 5, dropout=1.5, sparsity=0.5)
    with pytest.raises(ValueError, match="nonlinearity must be tanh or relu"):
        PackedRNN(6, 5, nonlinearity="sigmoid", sparsity=0.5)


@pytest.mark.parametrize("kind", [PackedLSTM, PackedGRU, PackedRNN])
def test_new_modules_have_the_sparsity_asked_for(kind: Any) -> None:
    first, second = (kind(60, 50, 2, sparsity=0.9, generator=seeded(0)) for _ in range(2))
    for name in ("weight_ih_l0", "weight_hh_l1"):
        weight = getattr(first, name)
        assert weight.count == round(0.1 * weight.shape[0] * weight.shape[1])
        assert torch.equal(weight.index, getattr(second, name).index)
    bound = 50**-0.5
    assert all(0 < parameter.detach().abs().max() <= bound for parameter in first.parameters())
    assert PackedEmbedding(60, 50, sparsity=0.9).weight.count == 300


class Network(nn.Module):
    """With a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = PackedEmbedding(40, 24, sparsity=0.5)
        self.rnn = PackedLSTM(24, 24, 2, sparsity=0.7)
        self.decoder = PackedLinear.from_dense(nn.Linear(24, 40), weight=self.embedding.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.rnn(self.embedding(tokens))
        return linear_cross_entropy(hidden, self.decoder.weight, self.decoder.bias, tokens)


def gradients(network: nn.Module, tokens: Tensor) -> list[Tensor]:
    network.zero_grad()
    network(tokens).backward()
    return [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]


def tokens(steps: int = 12, batch: int = 20) -> Tensor:
    return torch.randint(40, (steps, batch), generator=seeded(0))


def test_a_tied_weight_is_one_weight() -> None:
    network = Network()
    assert sum(parameter is network.embedding.weight.values for parameter in network.parameters()) == 1
    copied = copy.deepcopy(network)
    assert copied.decoder.weight is copied.embedding.weight
    other = Network()
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(tokens()), network(tokens()))


def test_results_are_repeatable_and_do_not_hang_on_the_number_of_threads() -> None:
    network = Network()
    found = {}
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found[threads] = [network(tokens()).detach(), *gradients(network, tokens())]
            again = [network(tokens()).detach(), *gradients(network, tokens())]
            assert all(torch.equal(one, other) for one, other in zip(found[threads], again, strict=True))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found[1], found[2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_threads_may_go_back_at_the_same_time() -> None:
    networks = [Network() for _ in range(3)]
    expected = [gradients(network, tokens()) for network in networks]
    wrong: list[int] = []

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(20):
            found = gradients(networks[number], tokens())
            if not all(torch.equal(*pair) for pair in zip(found, expected[number], strict=True)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.slow
def test_modules_can_be_compiled() -> None:
    network = Network()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    expected = gradients(network, tokens())
    found = gradients(compiled, tokens())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
    with pytest.raises(IndexError, match="token 40 is out of range"):
        compiled(tokens() + 1)
