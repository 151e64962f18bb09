"""The compiled step computes what the reference interpreter in torch computes, operation by operation."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from selfish_rnn.engine import PackedWeight, QuantizedWeight, available
from selfish_rnn.engine.int8.targets import int8_target, int8_targets, use_int8_target
from selfish_rnn.runtime.compiled import CompiledProgram
from selfish_rnn.runtime.program import BINARY, UNARY, Program, Value
from selfish_rnn.runtime.reference import ReferenceStream
from selfish_rnn.runtime.stored import load_program, save_program

pytestmark = pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built")

SIZES = st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 33, 40, 64, 100])


def sparse(rows: int, columns: int, density: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator)
    return matrix * (torch.rand(rows, columns, generator=generator) < density)


def packed(matrix: Tensor) -> PackedWeight:
    positions = matrix.flatten().nonzero().flatten()
    return PackedWeight(matrix.shape, positions, matrix.flatten()[positions])


def run(program: Program, sequence: list[dict[str, Any]]) -> list[dict[str, Tensor]]:
    """Run the compiled step over a sequence."""
    stream = CompiledProgram.of(program).stream()
    results = []
    for inputs in sequence:
        for name, value in inputs.items():
            (stream.tokens if name in stream.tokens else stream.inputs)[name][:] = value
        stream.run()
        results.append({name: torch.from_numpy(value.copy()) for name, value in stream.outputs.items()})
    return results


def compare(program: Program, sequence: list[dict[str, Any]], tolerance: float = 2e-5) -> None:
    """Compare the compiled step with the interpreter."""
    reference = ReferenceStream(program)
    for inputs, result in zip(sequence, run(program, sequence), strict=True):
        for name, expected in reference.step(inputs).items():
            torch.testing.assert_close(result[name], expected, atol=tolerance, rtol=tolerance, equal_nan=True)


def of_one(size: int, function: Callable[[Program, Value], Value], x: Tensor) -> None:
    program = Program()
    program.output("y", function(program, program.input("x", size)))
    compare(program, [{"x": x}])


NUMBERS = torch.tensor(
    [
        *(0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 2.5, -2.5, 5.0, -5.0, 20.0, -20.0, 90.0, -90.0, 200.0, -200.0),
        *(1e-20, -1e-20, 1e-41, 3e38, math.inf, -math.inf, math.nan, 3.1, -3.1),
    ]
)


@pytest.mark.parametrize("kind", UNARY)
def test_functions_of_every_number(kind: str) -> None:
    numbers = NUMBERS
    if kind in ("gelu", "silu", "hardswish"):  # torch itself has artefacts where x * x overflows
        numbers = NUMBERS[~(NUMBERS.abs() > 1e30)]
    of_one(len(numbers), lambda program, x: program.unary(kind, x), numbers)
    of_one(300, lambda program, x: program.unary(kind, x), torch.linspace(-9, 9, 300))


@pytest.mark.parametrize(
    "function",
    [
        lambda program, x: program.affine(x, -2.5, 0.125),
        lambda program, x: program.clamp(x, -1.0, 2.0),
        lambda program, x: program.clamp(x, high=0.5),
        lambda program, x: program.leaky_relu(x, 0.2),
        lambda program, x: program.elu(x, 1.5),
        lambda program, x: program.softplus(x),
        lambda program, x: program.softplus(x, 2.0, 5.0),
        lambda program, x: program.prelu(x, torch.tensor([0.25])),
        lambda program, x: program.subtract(x, 1.0),
        lambda program, x: program.divide(x, 3.0),
        lambda program, x: program.negate(x),
    ],
)
def test_functions_with_constants(function: Callable[[Program, Value], Value]) -> None:
    of_one(len(NUMBERS), function, NUMBERS)


@pytest.mark.parametrize("kind", BINARY)
@pytest.mark.parametrize("sizes", [(25, 25), (25, 1), (1, 25), (1, 1)])
def test_functions_of_two_vectors(kind: str, sizes: tuple[int, int]) -> None:
    program = Program()
    a, b = (program.input(name, size) for name, size in zip("ab", sizes, strict=True))
    program.output("y", getattr(program, kind)(a, b))
    pairs = [NUMBERS, NUMBERS.flip(0)]
    compare(program, [{"a": pairs[0][: sizes[0]], "b": pairs[1][: sizes[1]]}])


@given(SIZES, st.integers(1, 4), st.integers(0, 99))
def test_reductions_and_norms(size: int, parts: int, seed: int) -> None:
    x = torch.randn(size * parts, generator=torch.Generator().manual_seed(seed)) * 3
    program = Program()
    value = program.input("x", size * parts)
    for kind in ("softmax", "log_softmax", "sum", "mean", "layer_norm", "rms_norm"):
        program.output(kind, getattr(program, kind)(value, parts=parts))
    weight = torch.linspace(-1, 2, size * parts)
    program.output("scaled", program.layer_norm(value, weight, weight.flip(0), 1e-3))
    prior = program.softmax(program.slice(value, 0, parts))
    program.output("mixture", program.mixture(prior, program.softmax(value, parts)))
    compare(program, [{"x": x}])


@given(SIZES, SIZES, st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.6, 1.0]), st.integers(1, 10), st.booleans())
def test_products_of_every_kind(rows: int, columns: int, density: float, vectors: int, biased: bool) -> None:
    matrix = sparse(rows, columns, density, rows + columns)
    bias = torch.randn(rows) if biased else None
    program = Program()
    x = program.input("x", vectors * columns)
    quantized = QuantizedWeight.from_dense(matrix)
    program.output("dense", program.linear(matrix, x, bias, vectors=vectors))
    program.output("packed", program.linear(packed(matrix), x, bias, vectors=vectors))
    program.output("weights", program.linear(quantized, x, bias, vectors=vectors))
    program.output("dynamic", program.linear(quantized, x, bias, activations="int8", vectors=vectors))
    program.output("fixed", program.linear(quantized, x, bias, activations="int8", scale=0.01, vectors=vectors))
    compare(program, [{"x": torch.randn(vectors * columns)} for _ in range(2)], 1e-4)


@pytest.mark.parametrize("density", [0.04, 0.15, 0.5, 0.9])
def test_int8_products_are_bit_equal_for_every_processor(density: float) -> None:
    quantized = QuantizedWeight.from_dense(sparse(70, 130, density))
    program = Program()
    x = program.input("x", 130)
    y = program.linear(quantized, x, torch.randn(70), activations="int8")
    for name in ("tanh", "gelu", "softsign", "log_sigmoid"):
        program.output(name, program.unary(name, y))
    program.output("norm", program.layer_norm(program.log_softmax(y)))
    inputs, before = [{"x": torch.randn(130)}], int8_target()
    expected = run(program, inputs)[0]
    try:
        for target in int8_targets():
            use_int8_target(target)
            for name, result in run(program, inputs)[0].items():
                assert torch.equal(result, expected[name]), (target, name)
    finally:
        use_int8_target(before)


def of_blocks(rows: int, columns: int, tall: int, wide: int, density: float) -> Tensor:
    """Return a matrix whose weights exist in blocks."""
    blocks = sparse(rows // tall, columns // wide, density, rows + columns) != 0
    exists = blocks.repeat_interleave(tall, 0).repeat_interleave(wide, 1)
    return exists * torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("tall", "wide"), [(8, 4), (16, 4), (16, 1)])
@pytest.mark.parametrize(("rows", "columns"), [(16, 4), (48, 64), (80, 132), (304, 96)])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.4])
def test_products_of_blocks(rows: int, columns: int, tall: int, wide: int, density: float) -> None:
    quantized = QuantizedWeight.from_dense(of_blocks(rows, columns, tall, wide, density))
    program = Program()
    x = program.input("x", columns)
    program.output("y", program.linear(quantized, x, torch.randn(rows), activations="int8"))
    program.output("fixed", program.linear(quantized, x, activations="int8", scale=0.01))
    program.output("row", program.embedding(quantized, program.token("word", rows)))
    sequence = [{"x": torch.randn(columns), "word": word} for word in (0, rows // 2, rows - 1)]
    compare(program, sequence, 1e-4)
    sequence[1]["x"][0] = math.nan
    results, before = [], int8_target()
    try:
        for target in int8_targets():
            use_int8_target(target)
            results.append(run(program, sequence))
    finally:
        use_int8_target(before)
    for other in results[1:]:
        for step, expected in zip(other, results[0], strict=True):
            assert all(torch.equal(step[name].nan_to_num(), expected[name].nan_to_num()) for name in expected)
    assert all(result[1]["y"].isnan().all() for result in results)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_not_finite_makes_int8_products_nan(bad: float) -> None:
    program = Program()
    x = program.input("x", 5)
    program.output("y", program.linear(QuantizedWeight.from_dense(torch.ones(3, 5)), x, activations="int8"))
    assert run(program, [{"x": torch.tensor([1.0, bad, 0, 0, 0])}])[0]["y"].isnan().all()


def gru_program(inputs: int, units: int, density: float = 1.0, int8: bool = False) -> Program:
    """Return a GRU with a linear layer on top."""
    program, kind = Program(), "int8" if int8 else "float32"
    x, h = program.input("x", inputs), program.state("h", units, torch.linspace(-0.5, 0.5, units))
    make: Any = QuantizedWeight.from_dense if int8 else packed
    w_ih, w_hh = (make(sparse(3 * units, columns, density, columns) / units**0.5) for columns in (inputs, units))
    sums = (program.linear(w, value, torch.randn(3 * units), activations=kind) for w, value in ((w_ih, x), (w_hh, h)))
    after = program.gru_cell(*sums, h)
    program.set_state(h, after)
    program.output("y", program.linear(torch.randn(5, units), after))
    return program


@given(SIZES, SIZES, st.booleans())
def test_cells_over_time(inputs: int, units: int, int8: bool) -> None:
    sequence = [{"x": torch.randn(inputs)} for _ in range(4)]
    compare(gru_program(inputs, units, 0.5, int8), sequence, 2e-2 if int8 else 2e-5)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 9))
def test_every_other_cell(chunks: int, chunk: int, seed: int) -> None:
    units, program = chunks * chunk * 3, Program()
    torch.manual_seed(seed)
    x = program.input("x", 11)

    def sums(rows: int, value: Value) -> Value:
        return program.linear(torch.randn(rows, value.size) / 3, value, torch.randn(rows))

    for at in range(2):
        h, c = program.state(f"h{at}", units), program.state(f"c{at}", units)
        extra = 2 * chunks * 3 if at else 0
        values = sums(4 * units + extra, x), sums(4 * units + extra, h)
        after = program.ordered_cell(*values, c, chunk) if at else program.lstm_cell(*values, c)
        for state, value in zip((h, c), after, strict=True):
            program.set_state(state, value)
        program.output(f"h{at}", after[0])
    for kind in ("tanh", "relu"):
        h = program.state(kind, units)
        after_rnn = program.rnn_cell(sums(units, x), sums(units, h), kind)  # type: ignore[arg-type]
        program.set_state(h, after_rnn)
        program.output(kind, after_rnn)
    h = program.state("highway", units)
    first = program.highway_cell(sums(2 * units, x), sums(2 * units, h), h)
    second = program.highway_cell(sums(2 * units, first), None, first)
    program.set_state(h, second)
    program.output("highway", second)
    compare(program, [{"x": torch.randn(11)} for _ in range(3)])


@pytest.mark.parametrize(("groups", "int8"), [(1, False), (2, False), (6, False), (1, True)])
def test_convolutions_see_their_past(groups: int, int8: bool) -> None:
    conv = torch.nn.Conv1d(6, 12 if groups < 6 else 6, 3, dilation=4, groups=groups)
    program = Program()
    kind: Any = "int8" if int8 else "float32"
    x = program.input("x", 6)
    program.output("y", program.conv1d(conv.weight, x, conv.bias, dilation=4, groups=groups, activations=kind))
    xs = torch.randn(30, 6)
    with torch.no_grad():
        expected = conv(torch.nn.functional.pad(xs.T[None], (8, 0)))[0].T
    result = torch.stack([outputs["y"] for outputs in run(program, [{"x": x} for x in xs])])
    torch.testing.assert_close(result, expected, atol=2e-2 if int8 else 1e-5, rtol=1e-2 if int8 else 1e-5)


def test_embeddings_in_every_layout() -> None:
    matrix, program = sparse(20, 9, 0.4), Program()
    word = program.token("word", 20)
    dense = torch.randn(20, 9)
    for name, kind in {"rows": dense, "packed": packed(matrix), "int8": QuantizedWeight.from_dense(matrix)}.items():
        program.output(name, program.embedding(kind, word))
    for name, tied in {"tied": torch.randn(20, 9), "tied int8": QuantizedWeight.from_dense(dense)}.items():
        value = program.embedding(tied, word)
        activations: Any = "int8" if isinstance(tied, QuantizedWeight) else "float32"
        program.output(name, program.linear(tied, value, activations=activations))
    compare(program, [{"word": index} for index in (0, 7, 19)])
    stream = CompiledProgram.of(program).stream()
    for index in (20, -1):
        stream.tokens["word"][0] = index
        with pytest.raises(IndexError, match="a token is out of range"):
            stream.run()


def test_states_may_change_places_and_outputs_may_be_states() -> None:
    program = Program()
    a, b = program.state("a", 3, torch.tensor([1.0, 2, 3])), program.state("b", 3)
    program.set_state(a, b)
    program.set_state(b, program.add(a, 1.0))
    program.output("a", a)
    program.output("part", program.slice(b, 1, 2))
    compare(program, [{}] * 5)


def test_a_stream_keeps_resets_returns_and_clones_its_state() -> None:
    stream = CompiledProgram.of(gru_program(4, 9)).stream()

    def step(of: Any = stream) -> Tensor:
        of.inputs["x"][:] = 0.5
        of.run()
        return torch.from_numpy(of.outputs["y"].copy())

    first, state, second = step(), stream.state(), step()
    assert not torch.equal(first, second)
    twin = stream.clone()
    third = step()
    assert torch.equal(step(twin), third)
    stream.set_state(state)
    assert torch.equal(step(), second)
    stream.reset()
    assert torch.equal(step(), first)
    with pytest.raises(ValueError, match="the state has h, not other"):
        stream.set_state({"other": np.zeros(9)})
    with pytest.raises(ValueError, match="state h has 9 numbers, not 8"):
        stream.set_state({"h": np.zeros(8)})


def test_steps_from_python_keep_no_memory() -> None:
    stream = CompiledProgram.of(gru_program(4, 9)).stream()
    stream.run()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        stream.run()
    assert sys.getallocatedblocks() - before < 20


def test_streams_in_eight_threads_do_not_disturb_each_other() -> None:
    program = CompiledProgram.of(gru_program(16, 40, 0.4, int8=True))
    inputs = [np.random.default_rng(at).normal(size=(200, 16)).astype(np.float32) for at in range(8)]
    results: dict[int, list[Any]] = {}

    def work(at: int) -> list[Any]:
        stream, outputs = program.stream(), []
        for x in inputs[at]:
            stream.inputs["x"][:] = x
            stream.run()
            outputs.append(stream.outputs["y"].copy())
        return outputs

    expected = [work(at) for at in range(8)]
    threads = [threading.Thread(target=lambda at=at: results.update({at: work(at)})) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(results[at], expected[at]) for at in range(8))


@pytest.mark.slow
def test_large_programs_use_several_threads_with_the_same_result() -> None:
    threads = torch.get_num_threads()
    program = gru_program(512, 700, 0.5, int8=True)
    sequence = [{"x": torch.randn(512)} for _ in range(3)]
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(run(program, sequence))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one["y"], two["y"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("int8", [False, True])
def test_a_file_is_the_program(tmp_path: Path, int8: bool) -> None:
    program = gru_program(7, 12, 0.3, int8)
    program.output("clamped", program.clamp(program.outputs["y"], low=-0.1))
    program.words, program.metadata["note"] = ["a", "the"], "a note"
    save_program(program, tmp_path / "model.srnn")
    sequence = [{"x": torch.randn(7)} for _ in range(3)]
    expected = run(program, sequence)
    loaded = load_program(tmp_path / "model.srnn")
    assert (loaded.words, loaded.metadata) == (["a", "the"], {"note": "a note"})
    for result, right in zip(run(loaded, sequence), expected, strict=True):
        assert all(torch.equal(result[name], right[name]) for name in right)
    save_program(loaded, tmp_path / "again.srnn")
    assert (tmp_path / "again.srnn").read_bytes() == (tmp_path / "model.srnn").read_bytes()
    compiled = CompiledProgram.load(tmp_path / "model.srnn")
    assert (compiled.inputs, compiled.states, compiled.text("note")) == ({"x": 7}, {"h": 12}, "a note")
    assert compiled.outputs == {"y": 5, "clamped": 5}
    assert (compiled.words, compiled.text("nothing")) == (["a", "the"], None)
