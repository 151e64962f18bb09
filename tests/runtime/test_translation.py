"""Streams of models compute what torch computes, one step at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import RandomNetwork
from torch import Tensor, nn
from torch.nn import functional

import selfish_rnn
from selfish_rnn.engine import pack, quantize

CHUNKS = 8


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def sparse(model: nn.Module, sparsity: float = 0.7) -> nn.Module:
    """Set random weights of every matrix to zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= torch.rand(parameter.shape) >= sparsity
    return model


@torch.no_grad()
def assert_streams(model: nn.Module, sequence: Tensor, axis: int = 0, **named: Any) -> selfish_rnn.runtime.Stream:
    """Stream a model from an example of one step, and compare it with the forward over a sequence."""
    model.eval()
    stream = selfish_rnn.stream(model, sequence.narrow(axis, 0, 1), **named)
    expected = model(sequence)
    expected = expected[0] if isinstance(expected, tuple) else expected
    steps = sequence.movedim(axis, 0).flatten(1)
    actual = stream.run(steps if sequence.is_floating_point() else steps.flatten())
    torch.testing.assert_close(actual, expected.movedim(axis, 0).flatten(1), rtol=1e-5, atol=1e-5)
    return stream


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("chunk", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, CHUNKS))])
def test_random_networks_equal_torch(chunk: int) -> None:
    for seed in range(chunk, 200, CHUNKS):
        network = RandomNetwork(seed).eval()
        stream = selfish_rnn.stream(network, network.example(1))
        sequence = network.example(9)
        with torch.no_grad():
            expected = network(sequence).reshape(9, -1)
        actual = stream.run(sequence.reshape(9, -1))
        scale = max(1.0, float(expected.abs().max()))
        assert (actual - expected).abs().max() <= 1e-5 * scale, f"network {seed}"


class Net(nn.Module):
    """A recurrent layer and an output, as most models have them."""

    def __init__(self, kind: Any = nn.GRU, **named: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 10, 2, **named)
        self.out = nn.Linear(10, 4)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y, state = self.rnn(x, state)
        return torch.sigmoid(self.out(y)), state


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_layers(kind: Any, batch_first: bool) -> None:
    model = pack(sparse(Net(kind, batch_first=batch_first)))
    shape = (1, 8, 6) if batch_first else (8, 1, 6)
    stream = assert_streams(model, torch.randn(shape), axis=int(batch_first))
    assert len(stream.layers) == 5


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_packed_cells(kind: Any) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(5, 7)

        def forward(self, x: Tensor) -> Tensor:
            state, outputs = None, []
            for step in x:
                state = self.cell(step, state)
                outputs.append(state[0] if isinstance(state, tuple) else state)
            return torch.stack(outputs)

    assert_streams(pack(sparse(Loop())), torch.randn(6, 1, 5))


def test_packed_projection() -> None:
    assert_streams(pack(sparse(nn.LSTM(5, 8, 2, proj_size=3), 0.5)), torch.randn(6, 1, 5))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_int8_model(kind: Any) -> None:
    model = quantize(sparse(Net(kind), 0.5))
    sequence = torch.randn(8, 1, 6)
    stream = selfish_rnn.stream(model, sequence)
    assert {report.precision for report in stream.layers} == {"int8"}
    with torch.no_grad():
        expected = model(sequence)[0].flatten(1)
    assert (stream.run(sequence.flatten(1)) - expected).abs().max() < 1e-3


def test_explicit_state() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs, self.recurrence = nn.Linear(5, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.inputs(x) + self.recurrence(h))
            return 2 * h, h

    model = Own()
    stream = selfish_rnn.stream(model, torch.randn(1, 5), state=torch.ones(1, 6))
    h = torch.ones(1, 6)
    for x in torch.randn(5, 5):
        with torch.no_grad():
            expected, h = model(x[None], h)
        torch.testing.assert_close(stream(x), expected[0])


def test_state_of_layers_as_an_argument() -> None:
    model, sequence = Net(nn.LSTM), torch.randn(7, 1, 6)
    state = tuple(torch.randn(2, 1, 10) for _ in "hc")
    stream = selfish_rnn.stream(model, sequence, state=state)
    with torch.no_grad():
        torch.testing.assert_close(stream.run(sequence[:, 0]), model(sequence, state)[0][:, 0])


def test_learned_initial_state() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.first = nn.GRU(3, 4), nn.Parameter(torch.randn(1, 1, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x, self.first.expand(1, x.shape[1], 4))[0]

    assert_streams(Learned(), torch.randn(6, 1, 3))


def test_output_of_the_last_step() -> None:
    class Spotter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][:, -1]).softmax(-1)

    model, sequence = Spotter(), torch.randn(1, 5, 3)
    stream = selfish_rnn.stream(model, sequence)
    with torch.no_grad():
        for count in range(1, 6):
            torch.testing.assert_close(stream(sequence[0, count - 1]), model(sequence[:, :count])[0])


def test_several_inputs_and_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(5, 6)

        def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
            y = self.rnn(torch.cat([x, condition], -1))[0]
            return y[..., :2], y.tanh()

    model, x, condition = Two(), torch.randn(6, 1, 2), torch.randn(6, 1, 3)
    stream = selfish_rnn.stream(model, (x[:1], condition[:1]))
    assert (stream.inputs, stream.outputs) == ({"x0": 2, "x1": 3}, {"y0": 2, "y1": 6})
    with torch.no_grad():
        for actual, expected in zip(stream.run(x[:, 0], condition[:, 0]), model(x, condition), strict=True):
            torch.testing.assert_close(actual, expected[:, 0])


def test_denoiser_shape_with_channels_before_time() -> None:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv1d(5, 8, 3), nn.Conv1d(8, 8, 3, dilation=2)
            self.gru, self.out = nn.GRU(8, 8), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.tanh(self.conv1(functional.pad(x, (2, 0))))
            y = torch.tanh(self.conv2(functional.pad(y, (4, 0)))).permute(2, 0, 1)
            y = torch.cat([y, self.gru(y)[0]], -1)
            return torch.sigmoid(self.out(y)).permute(1, 2, 0)

    assert_streams(Denoiser(), torch.randn(1, 5, 9), axis=2)


@pytest.mark.parametrize(("shape", "batch_first"), [((4, 9, 6), True), ((9, 4, 6), False)])
def test_examples_are_batches_of_sequences(shape: tuple[int, ...], batch_first: bool) -> None:
    model = Net(batch_first=batch_first)
    batch = torch.randn(shape)
    stream = selfish_rnn.stream(model, batch)
    with torch.no_grad():
        expected = model(batch)[0]
    first, result = (x[0] if batch_first else x[:, 0] for x in (batch, expected))
    torch.testing.assert_close(stream.run(first), result, rtol=1e-5, atol=1e-5)


def test_state_that_cannot_be_checked_is_refused() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(x.view(1, 4))

    assert "state that its layers keep cannot be checked" in _refused(Single(), (1, 4))


def test_token_ids() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn, self.out = nn.Embedding(12, 6), nn.LSTM(6, 6), nn.Linear(6, 12)
            self.out.weight = self.embedding.weight

        def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
            y, state = self.rnn(self.embedding(tokens), state)
            return self.out(y).log_softmax(-1), state

    for model in (Words(), pack(sparse(Words(), 0.3))):
        stream = assert_streams(model, torch.randint(12, (6, 1)))
        assert stream.inputs == {"x": 12}
        assert len(stream.layers) == 3  # the tied matrix is one


def test_inference_mode_makes_no_difference() -> None:
    model, sequence = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.LayerNorm(5)), torch.randn(6, 1, 4)
    with torch.inference_mode():
        assert_streams(model, sequence.clone())


# Registered cells: minGRU and minLSTM (Feng et al. 2024), which scan over time


class MinGRU(nn.Module):
    """h = (1 - z) h + z g(candidate), with z and the candidate computed from the input alone."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden, self.gates = hidden, nn.Linear(inputs, 2 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        hidden, gate = self.gates(x).chunk(2, -1)
        candidate = torch.where(hidden >= 0, (functional.relu(hidden) + 0.5).log(), -functional.softplus(-hidden))
        # Steps along axis 1; everything in logarithms, as the parallel form has it.
        keep, write = -functional.softplus(gate), -functional.softplus(-gate)
        total = keep.cumsum(1)
        return (total + (write + candidate - total).logcumsumexp(1)).exp()


def min_gru_step(cell: MinGRU, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    hidden, gate = cell.gates(x).chunk(2, -1)
    # g(x) is x + 0.5 above zero and sigmoid(x) below, and both are 0.5 at zero.
    candidate = functional.relu(hidden) + torch.sigmoid(hidden.clamp(max=0))
    h = torch.lerp(h, candidate, torch.sigmoid(gate))
    return h, h


class MinLSTM(nn.Module):
    """h = f' h + i' candidate, with f' = f / (f + i) and i' = i / (f + i)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden, self.gates = hidden, nn.Linear(inputs, 3 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        forget, write, candidate = self.gates(x).chunk(3, -1)
        forget, write = forget.sigmoid(), write.sigmoid()
        total = (forget / (forget + write)).cumprod(1)
        return total * (candidate * write / (forget + write) / total).cumsum(1)


def min_lstm_step(cell: MinLSTM, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    forget, write, candidate = cell.gates(x).chunk(3, -1)
    forget, write = forget.sigmoid(), write.sigmoid()
    h = (forget * h + write * candidate) / (forget + write)
    return h, h


def min_state(cell: MinGRU | MinLSTM) -> Tensor:
    return torch.zeros(1, 1, cell.hidden)


@pytest.mark.parametrize(("kind", "step"), [(MinGRU, min_gru_step), (MinLSTM, min_lstm_step)])
@pytest.mark.parametrize("packed", [False, True])
def test_registered_cells(kind: Any, step: Any, packed: bool) -> None:
    class Own(kind):  # type: ignore[misc]
        pass

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = Own(6, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.cell(x))

    model: nn.Module = Wrapped()
    with pytest.raises(ValueError, match=r"cell \(Own\): \w+ cannot be streamed"):
        selfish_rnn.stream(model, torch.randn(1, 1, 6), time_axis=1)
    selfish_rnn.register_step(Own, step, min_state)
    model = pack(sparse(model)) if packed else model
    assert_streams(model, torch.randn(1, 9, 6), axis=1)


# Refusals


def _refused(model: nn.Module, shape: tuple[int, ...] = (1, 1, 4), **named: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        selfish_rnn.stream(model, torch.randn(shape), **named)
    return str(caught.value)


class Wrap(nn.Module):
    """A model that calls a function on a part of it."""

    def __init__(self, function: Any, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner or nn.Identity()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(self.inner, x)
        return result


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (
            nn.Sequential(nn.LSTM(4, 3, bidirectional=True)),
            (1, 1, 4),
            r"^0 \(LSTM\) is bidirectional: its output needs",
        ),
        (nn.Sequential(nn.Conv1d(4, 2, 3, padding=1)), (1, 4, 1), r"^0 \(Conv1d\): convolution .* looks ahead: pad 2"),
        (nn.Sequential(nn.Conv1d(4, 2, 3)), (1, 4, 1), "pad a convolution on the left"),
        (Wrap(lambda inner, x: x.sin()), (1, 1, 4), r"^the model \(Wrap\): sin cannot be streamed: it has no transl"),
        (Wrap(lambda inner, x: x @ x.mT), (1, 1, 4), "both factors depend on the input"),
        (Wrap(lambda inner, x: x if x.sum() > 0 else -x), (1, 1, 4), "every step runs the same program"),
        (Wrap(lambda inner, x: functional.dropout(x, 0.5, True)), (1, 1, 4), "draws random numbers"),
        (Wrap(lambda inner, x: x.double()), (1, 1, 4), "a program computes in float32"),
        (Wrap(lambda inner, x: inner(x)[0].mean(0), nn.GRU(4, 3)), (1, 1, 4), "cannot be streamed: one step at a time"),
        (Wrap(lambda inner, x: x[:0]), (1, 1, 4), "no steps|no floating-point|empty"),
    ],
)
def test_refusals_name_module_and_operation(model: nn.Module, shape: tuple[int, ...], message: str) -> None:
    import re

    assert re.search(message, _refused(model, shape))


def test_hidden_loop_is_refused() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            h, outputs = x.new_zeros(x.shape[1], 4), []
            for step in x:
                h = torch.tanh(self.linear(torch.cat([step, h], -1)))
                outputs.append(h)
            return torch.stack(outputs)

    assert "register_step" in _refused(Loop())


def test_model_is_left_unchanged() -> None:
    model = Net().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.rnn.eval()
    selfish_rnn.stream(model, torch.randn(1, 1, 6))
    _refused(Wrap(lambda inner, x: x.sin(), model), (1, 1, 6))
    assert model.training
    assert not model.rnn.training
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
