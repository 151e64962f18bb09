"""Streams: state, threads, files, int8 and bad input."""

from __future__ import annotations

import gc
import re
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import RandomNetwork
from torch import Tensor, nn

import selfish_rnn
from selfish_rnn.engine import pack
from selfish_rnn.runtime import Stream
from selfish_rnn.runtime.stored import save_program


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn, self.out = nn.Conv1d(5, 7, 3, padding=2), nn.LSTM(7, 12, 2), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.permute(1, 2, 0))[..., : len(x)].permute(2, 0, 1)
        result: Tensor = self.out(self.rnn(y)[0])
        return result


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def stream(net: Net) -> Stream:
    return selfish_rnn.stream(net, torch.randn(6, 1, 5))


def test_calls_and_runs_continue(net: Net, stream: Stream) -> None:
    x = torch.randn(12, 5)
    with torch.no_grad():
        expected = net(x.unsqueeze(1))[:, 0]
    actual = torch.cat([torch.stack([stream(step) for step in x[:5]]), stream.run(x[5:])])
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    stream.reset()
    assert torch.equal(stream.run(x), actual)
    assert stream.run(x[:0]).shape == (0, 3)
    assert (stream.inputs, stream.outputs) == ({"x": 5}, {"y": 3})
    assert re.fullmatch(r"Stream\(x: 5 -> y: 3; \d+ operations\)", repr(stream))


def test_results_are_not_overwritten(stream: Stream) -> None:
    first = stream(torch.ones(5))
    copy = first.clone()
    stream(torch.zeros(5))
    assert torch.equal(first, copy)


def test_other_types_of_numbers(stream: Stream) -> None:
    x = torch.randn(5)
    same = [x, x.double(), x.numpy(), x.double().numpy(), x.tolist(), x.view(1, 1, 5), x.repeat_interleave(2)[::2]]
    outputs = []
    for numbers in [*same, x.clone().requires_grad_()]:
        stream.reset()
        outputs.append(stream(numbers))
    assert all(torch.equal(y, outputs[0]) for y in outputs)
    assert not outputs[-1].requires_grad


def test_state(stream: Stream) -> None:
    x = torch.randn(8, 5)
    stream.run(x[:4])
    state = stream.state()
    after = stream.run(x[4:])
    stream.set_state(state)
    assert torch.equal(stream.run(x[4:]), after)
    other = stream.clone()
    assert other._compiled is stream._compiled
    other.set_state(state)
    assert torch.equal(other.run(x[4:]), after)
    with pytest.raises(ValueError, match="state"):
        stream.set_state({})
    with pytest.raises(ValueError, match="state"):
        stream.set_state({name: torch.zeros(1) for name in state})
    assert all(torch.equal(part, other.state()[name]) for name, part in stream.state().items())


def test_streams_in_threads(stream: Stream) -> None:
    sequences = [torch.randn(300, 5) for _ in range(8)]
    stream.reset()
    expected = []
    for sequence in sequences:
        stream.reset()
        expected.append(stream.run(sequence))
    stream.reset()
    results: dict[int, Tensor] = {}

    def work(number: int) -> None:
        own = clones[number]
        results[number] = torch.stack([own(step) for step in sequences[number]])

    clones = [stream.clone() for _ in sequences]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[number], expected[number]) for number in range(8))


def test_weights_are_copied(net: Net, stream: Stream) -> None:
    x = torch.randn(4, 5)
    before = stream.run(x)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    stream.reset()
    assert torch.equal(stream.run(x), before)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ((torch.zeros(4),), ValueError, "input x has 5 numbers, not 4"),
        ((torch.zeros(0),), ValueError, "input x has 5 numbers, not 0"),
        ((torch.zeros(5, dtype=torch.int64),), TypeError, "floating-point numbers, not torch.int64"),
        ((torch.zeros(5, dtype=torch.complex64),), TypeError, "floating-point numbers, not torch.complex64"),
        (([1, 2, 3, 4, 5],), TypeError, "floating-point numbers, not int64"),
        (("five",), TypeError, "floating-point numbers, not <U4"),
        ((None,), TypeError, "floating-point numbers, not object"),
        ((), TypeError, r"takes 1 inputs \(x\), not 0"),
        ((torch.zeros(5), torch.zeros(5)), TypeError, r"takes 1 inputs \(x\), not 2"),
    ],
)
def test_bad_input_leaves_the_state(stream: Stream, inputs: tuple[Any, ...], error: Any, message: str) -> None:
    x = torch.randn(5)
    stream(x)
    before = stream.state()
    with pytest.raises(error, match=message):
        stream(*inputs)
    assert all(torch.equal(part, before[name]) for name, part in stream.state().items())
    stream(x)


def test_bad_sequences(stream: Stream) -> None:
    with pytest.raises(ValueError, match=r"5 numbers in every step, the sequence is \(3, 4\)"):
        stream.run(torch.zeros(3, 4))
    with pytest.raises(TypeError, match="floating-point"):
        stream.run(torch.zeros(3, 5, dtype=torch.int32))


def test_bad_tokens() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    stream = selfish_rnn.stream(model, torch.tensor([[1]]))
    for token in (7, -1, 2**40, torch.tensor(7)):
        with pytest.raises(IndexError, match=r"out of range: input x has 7"):
            stream(token)
    for wrong in (1.0, True, "a", torch.tensor([1, 2]), torch.tensor(1.0), torch.tensor(True), None):
        with pytest.raises(TypeError, match="token id"):
            stream(wrong)
    assert torch.equal(stream(torch.tensor(3)), stream(np.int64(3)))


def test_nan_passes_and_reset_removes_it(stream: Stream) -> None:
    stream.reset()
    clean = stream(torch.zeros(5))
    assert stream(torch.full((5,), torch.nan)).isnan().all()
    assert stream(torch.zeros(5)).isnan().all()
    stream.reset()
    assert torch.equal(stream(torch.zeros(5)), clean)


def test_bad_calls_of_stream(net: Net) -> None:
    with pytest.raises(TypeError, match=r"needs a torch\.nn\.Module, not str"):
        selfish_rnn.stream("net", torch.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the example must be a tensor"):
        selfish_rnn.stream(net, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"float32 numbers or integer token ids, not torch.float64"):
        selfish_rnn.stream(net, torch.zeros(1, 1, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"conv.weight is torch.float64 on cpu: call model.float"):
        selfish_rnn.stream(Net().double(), torch.zeros(1, 1, 5))
    with pytest.raises((ValueError, RuntimeError)):
        selfish_rnn.stream(net, torch.zeros(1, 1, 4))


@pytest.mark.parametrize("precision", ["float32", "int8", "int8-weights"])
def test_files(net: Net, tmp_path: Path, precision: Any) -> None:
    stream = selfish_rnn.stream(net, torch.randn(6, 1, 5), precision=precision)
    stream.save(tmp_path / "model.srnn")
    loaded = selfish_rnn.load_stream(tmp_path / "model.srnn")
    assert (loaded.layers, loaded.error) == (stream.layers, stream.error)
    x = torch.randn(5, 5)
    assert torch.equal(loaded.run(x), stream.run(x))
    loaded.save(tmp_path / "again.srnn")
    stream.reset()
    assert torch.equal(selfish_rnn.load_stream(tmp_path / "again.srnn").run(x), stream.run(x))


def test_damaged_files(stream: Stream, tmp_path: Path) -> None:
    stream.save(tmp_path / "model.srnn")
    content = (tmp_path / "model.srnn").read_bytes()
    for size in (0, 7, len(content) // 2, len(content) - 1):
        (tmp_path / "short.srnn").write_bytes(content[:size])
        with pytest.raises(selfish_rnn.UserError):
            selfish_rnn.load_stream(tmp_path / "short.srnn")
    with pytest.raises(selfish_rnn.UserError):
        selfish_rnn.load_stream(tmp_path / "missing.srnn")
    for report in ("{", "[]", '{"layers": [{}]}', '{"layers": [{"shape": 3}]}', '{"error": []}'):
        stream.program.metadata["layers"] = report
        save_program(stream.program, tmp_path / "hostile.srnn")
        with pytest.raises(selfish_rnn.UserError, match="report on layers"):
            selfish_rnn.load_stream(tmp_path / "hostile.srnn")


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("chunk", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 8))])
def test_int8_is_within_the_reported_error(chunk: int) -> None:
    for seed in range(chunk, 200, 8):
        network = RandomNetwork(seed).eval()
        example = network.example(12)
        stream = selfish_rnn.stream(network, example, precision="int8")
        with torch.no_grad():
            expected = network(example).reshape(12, -1)
        difference = float((stream.run(example.reshape(12, -1)) - expected).abs().max())
        assert difference <= (stream.error * 1.001 + 1e-6) * float(expected.abs().max()), f"network {seed}"
        assert all(layer.error <= 0.02 for layer in stream.layers), f"network {seed}"


def test_a_pattern_may_match_no_matrix_of_a_kind() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    stream = selfish_rnn.stream(model, torch.randn(1, 1, 4), precision={"0": "int8-weights", "*": "int8"})
    assert [layer.precision for layer in stream.layers] == ["int8-weights", "int8"]


def test_sparse_layers_are_counted() -> None:
    torch.manual_seed(0)
    model = nn.GRU(20, 30)
    selfish_rnn.Sparsifier(model, sparsity=0.8, method="static").detach()
    for form in (model, pack(model)):
        stream = selfish_rnn.stream(form, torch.randn(1, 1, 20), time_axis=0)
        assert sum(layer.weights for layer in stream.layers) == round(0.2 * 90 * 50)


@pytest.mark.slow
def test_many_steps_do_not_grow(stream: Stream) -> None:
    x = torch.randn(5)
    for _ in range(100):
        stream(x)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(100_000):
        stream(x)
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] - before < 10_000
    tracemalloc.stop()
