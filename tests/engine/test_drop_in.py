"""What other people's code does with the modules that are packed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from packed_cases import assert_close, assert_same_gradient, matrix, needs_kernels, seeded
from torch import nn

from selfish_rnn import Sparsifier
from selfish_rnn.bench.rivals import computes_in
from selfish_rnn.engine import PackedEmbedding, PackedLinear, PackedWeight, linear_cross_entropy, pack
from selfish_rnn.models.cells.highway import HighwayCell
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell

pytestmark = needs_kernels


@pytest.mark.parametrize(
    "dense",
    [
        nn.LSTM(6, 5, 2, batch_first=True, dropout=0.1, bidirectional=True, proj_size=3),
        nn.GRU(6, 5, bias=False),
        nn.RNN(6, 5, nonlinearity="relu"),
        nn.RNN(6, 5),
        nn.LSTMCell(6, 5),
        nn.RNNCell(6, 5, bias=False),
        nn.Linear(6, 5),
        nn.Embedding(6, 5, padding_idx=-1),
    ],
)
def test_attributes_that_user_code_reads(dense: nn.Module) -> None:
    Sparsifier(dense, sparsity=0.5, rewirings=1)
    packed = pack(dense)
    assert packed is not dense
    names = [*dense.__constants__, *(["mode", "input_size", "bidirectional"] if isinstance(dense, nn.RNNBase) else [])]
    assert {name: getattr(packed, name) for name in names if name != "all_weights"} == {
        name: getattr(dense, name) for name in names if name != "all_weights"
    }
    for name, parameter in dense.named_parameters():
        own = getattr(packed, name)
        assert (own.dtype, own.device, own.requires_grad) == (parameter.dtype, parameter.device, True)
        assert tuple(own.shape) == tuple(parameter.shape)
    if isinstance(dense, nn.RNNBase):
        packed.flatten_parameters()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_layer(training: bool, first: bool) -> None:
    """In evaluation torch has a fast path that takes the weights as they are: it is not for packed ones."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=first).train(training)
    Sparsifier(layer, sparsity=0.8, rewirings=1)
    x = torch.randn(2, 5, 16, generator=seeded(0))
    with torch.set_grad_enabled(training):
        want = layer(x)
        pack(layer)
        assert isinstance(layer.linear1, PackedLinear)
        assert_close(layer(x), want)


def test_functions_of_torch_say_what_to_do() -> None:
    weight = PackedWeight.from_dense(matrix(4, 3, 0.5, 0))
    with pytest.raises(TypeError, match=r"linear takes no packed weight: selfish_rnn.engine.functional has linear"):
        nn.functional.linear(torch.zeros(2, 3), weight)


@pytest.mark.parametrize("include", [pytest.param("0*", marks=pytest.mark.slow), "3*", "*"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_whichever_layers_are_packed(include: str, dtype: torch.dtype) -> None:
    if include == "0*" and not computes_in(dtype):
        pytest.skip(f"torch's own LSTM fails in {dtype} on this machine")
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), nn.LSTM(4, 6))
    Sparsifier(model, sparsity=0.5, rewirings=1, include=include)
    x = torch.randn(5, 3, 8, generator=seeded(0))
    want, _ = model(x)
    pack(model)
    with torch.autocast("cpu", dtype=dtype):
        found, _ = model(x)
        loss = found.float().square().sum()
    loss.backward()
    torch.testing.assert_close(found.float(), want, atol=0.03, rtol=0.03)
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32


def test_a_packed_layer_computes_in_single_precision_under_autocast() -> None:
    layer = nn.Linear(8, 6)
    Sparsifier(layer, sparsity=0.5, rewirings=1)
    packed, x = pack(layer), torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(packed(x), packed(x.clone()))
        assert packed(x.bfloat16()).dtype == torch.float32
        assert torch.equal(packed(x.bfloat16()), packed(x.bfloat16().float()))
    with pytest.raises(TypeError, match="computes in"):
        packed(x.bfloat16())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("named", [{}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}])
def test_batches_of_no_sequence(kind: Any, named: dict[str, Any]) -> None:
    dense = kind(6, 5, **named)
    Sparsifier(dense, sparsity=0.5, rewirings=1)
    x = torch.zeros((0, 4, 6) if "batch_first" in named else (4, 0, 6), requires_grad=True)
    want = dense(x)[0].shape
    packed = pack(dense)
    y, state = packed(x)
    assert y.shape == want
    (y.sum() + sum(part.sum() for part in (state if isinstance(state, tuple) else (state,)))).backward()
    assert x.grad is not None
    for parameter in packed.parameters():
        assert not parameter.grad.any()


@pytest.mark.parametrize(("cell", "states"), [(HighwayCell(6, 8, 2), 1), (OrderedNeuronsCell(6, 8, 2), 2)])
def test_batches_of_no_sequence_in_other_cells(cell: nn.Module, states: int) -> None:
    Sparsifier(cell, sparsity=0.5, rewirings=1)
    inputs = [torch.zeros(4, 0, 6), *[torch.zeros(0, 8)] * states]
    want = cell(*inputs)
    packed = pack(cell)
    found = packed(*inputs)
    first, expected = (found, want) if isinstance(found, torch.Tensor) else (found[0], want[0])
    assert first.shape == expected.shape
    first.sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in packed.parameters())


def test_an_embedding_with_a_padding_row() -> None:
    dense = nn.Embedding(9, 6, padding_idx=-2)
    with torch.no_grad():
        dense.weight.copy_(matrix(9, 6, 0.6, 0))  # the padding row is not zero
    packed = PackedEmbedding.from_dense(dense)
    tokens = torch.tensor([[7, 1, 2], [3, 7, 1]])
    for embedding in (packed, dense):
        embedding(tokens).square().sum().backward()
    assert torch.equal(packed(tokens), dense(tokens))
    assert_same_gradient(packed.weight, dense.weight.grad)
    assert not packed.weight.to_dense()[7].equal(torch.zeros(6))
    assert repr(packed.to_dense()) == repr(dense)
    assert not PackedEmbedding(9, 6, padding_idx=2, sparsity=0.2).weight.to_dense()[2].any()
    with pytest.raises(ValueError, match="padding_idx must be one of 9 rows, got 9"):
        PackedEmbedding(9, 6, padding_idx=9, sparsity=0.2)


def test_a_bidirectional_tagger_has_the_same_losses_packed_and_masked() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(30, 12, padding_idx=0)
            self.rnn = nn.LSTM(12, 16, 2, batch_first=True, bidirectional=True)
            self.output = nn.Linear(32, 5)

        def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            self.rnn.flatten_parameters()
            hidden, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return self.output(hidden)

    torch.manual_seed(0)
    masked = Tagger()
    both = {"masked": masked, "packed": copy.deepcopy(masked)}
    lengths = torch.tensor([3, 9, 1, 6])
    tokens = torch.randint(1, 30, (4, 9), generator=seeded(1)) * (torch.arange(9) < lengths.unsqueeze(1))
    tags = torch.randint(5, (4, 9), generator=seeded(2)).masked_fill_(tokens == 0, -100)
    losses: dict[str, list[float]] = {}
    for name, model in both.items():
        sparsifier = Sparsifier(model, sparsity=0.7, rewirings=3, seed=1)
        if name == "packed":
            pack(model, strict=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses[name] = []
        for _ in range(3):
            for _ in range(3):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(tokens, lengths).flatten(0, 1), tags.flatten())
                loss.backward()
                optimizer.step()
                losses[name].append(loss.item())
            sparsifier.rewire()
    assert losses["packed"] == pytest.approx(losses["masked"], rel=1e-4)


SECOND: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 4), (3, 6)),
    "embedding": (nn.Embedding(6, 4), ()),
    "lstm": (nn.LSTM(6, 4), (2, 3, 6)),
    "highway": (HighwayCell(6, 4, 2), (2, 3, 6)),
    "ordered neurons": (OrderedNeuronsCell(6, 4, 2), (2, 3, 6)),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_refused(name: str) -> None:
    dense, shape = copy.deepcopy(SECOND[name])
    Sparsifier(dense, sparsity=0.5, rewirings=1).detach()
    layer = pack(dense)
    states = [torch.zeros(3, 4)] * {"highway": 1, "ordered neurons": 2}.get(name, 0)
    x = torch.randn(shape) if shape else torch.tensor([1, 2])
    output = layer(x, *states)
    values = next(parameter for key, parameter in layer.named_parameters() if key.endswith("values"))
    loss = (output if isinstance(output, torch.Tensor) else output[0]).square().sum()
    (gradient,) = torch.autograd.grad(loss, values, create_graph=True)
    with pytest.raises(RuntimeError, match="the packed engine has no second derivatives"):
        gradient.square().sum().backward()


def test_second_derivatives_of_the_loss_are_refused() -> None:
    weight, bias = PackedWeight.from_dense(matrix(9, 6, 0.5, 0)), torch.zeros(9, requires_grad=True)
    x = torch.randn(4, 6, requires_grad=True)
    loss = linear_cross_entropy(x, weight, bias, torch.tensor([1, 8, 0, 1]))
    for gradient in torch.autograd.grad(loss, (x, weight.values, bias), create_graph=True):
        with pytest.raises(RuntimeError, match="the packed engine has no second derivatives"):
            # with a second way to x, on which a derivative of zero would not be noticed
            (gradient.square().sum() + x.sum()).backward(retain_graph=True)
