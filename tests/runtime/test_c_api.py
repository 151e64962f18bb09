"""C and C++ programs with the generated header compute the same bits as Python, and refuse damaged files."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfish_rnn import Sparsifier
from selfish_rnn.corpora import Vocabulary
from selfish_rnn.engine import QuantizedWeight, available, quantize
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors
from selfish_rnn.models.stacked import StackedRNN
from selfish_rnn.runtime.compiled import CompiledProgram
from selfish_rnn.runtime.header import single_header
from selfish_rnn.runtime.program import Program
from selfish_rnn.runtime.stored import program_bytes, save_program
from selfish_rnn.training.evaluation import generate

COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler"),
]

HERE, EXAMPLES = Path(__file__).parent, Path(__file__).parents[2] / "examples" / "c"
FLAGS = ["-std=c++17", "-O1", "-Wno-psabi"]

SCORES = r"""
#include "selfish_rnn.h"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char** arguments) {
  srnn_model* model = srnn_load(arguments[1]);
  if (model == NULL) return fprintf(stderr, "%s\n", srnn_error()), 1;
  const size_t inputs = srnn_input_size(model), outputs = srnn_output_size(model);
  void* memory = malloc(srnn_stream_size(model));
  srnn_stream* stream = srnn_stream_new_in(model, memory, srnn_stream_size(model));
  float* in = (float*)malloc(sizeof(float) * (inputs + 1));
  float* out = (float*)malloc(sizeof(float) * outputs);
  FILE* file = fopen(arguments[2], "rb");
  while (fread(in, sizeof(float), inputs, file) == inputs) {
    if (srnn_step(stream, in, out) != SRNN_OK) return 1;
    fwrite(out, sizeof(float), outputs, stdout);
  }
  return count - 3;
}
"""


def compile_program(compiler: str, source: str, folder: Path, name: str, *flags: str) -> Path:
    command = [compiler, *FLAGS, *flags, "-I", str(folder), source, "-o", name]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the header and compiled programs: the examples, and one that runs a file of floats."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "selfish_rnn.h").write_text(single_header())
    (folder / "scores.cpp").write_text("#define SRNN_IMPLEMENTATION\n" + SCORES)
    assert COMPILER is not None
    compile_program(COMPILER, "scores.cpp", folder, "scores", "-march=native")
    for name in ("generate", "filter_wav"):
        compile_program(COMPILER, str(EXAMPLES / f"{name}.c"), folder, name)
    return folder


def sparse(rows: int, columns: int, density: float) -> torch.Tensor:
    return torch.randn(rows, columns) * (torch.rand(rows, columns) < density) / columns**0.5


def audio_program(frame: int = 32, units: int = 48, int8: bool = True) -> Program:
    """Return a filter of frames: a convolution, a GRU and a linear layer, with norms and activations."""
    torch.manual_seed(3)
    program = Program()
    kind: Any = "int8" if int8 else "float32"

    def matrix(rows: int, columns: int, density: float) -> Any:
        values = sparse(rows, columns, density)
        return QuantizedWeight.from_dense(values) if int8 else values

    x, h = program.input("x", frame), program.state("h", units)
    past = program.frames(x, 3, 2)
    features = program.silu(program.layer_norm(program.linear(matrix(40, 3 * frame, 0.1), past, activations=kind)))
    sums = [
        program.linear(matrix(3 * units, value.size, 0.3), value, torch.randn(3 * units), activations=kind)
        for value in (features, h)
    ]
    after = program.gru_cell(*sums, h)
    program.set_state(h, after)
    program.output("y", program.tanh(program.linear(matrix(frame, units, 0.9), after, activations=kind)))
    return program


def in_python(program: Program, xs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    stream = CompiledProgram.of(program).stream()
    results = []
    for x in xs:
        stream.inputs["x"][:] = x
        stream.run()
        results.append(stream.outputs["y"].copy())
    return np.stack(results)


def frames(count: int = 40, frame: int = 32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=(count, frame)).astype(np.float32)


@pytest.mark.parametrize("int8", [True, False])
def test_a_program_without_python_computes_the_same_bits(folder: Path, tmp_path: Path, int8: bool) -> None:
    program, xs = audio_program(int8=int8), frames()
    save_program(program, tmp_path / "model.srnn")
    xs.tofile(tmp_path / "in")
    result = subprocess.run([folder / "scores", tmp_path / "model.srnn", tmp_path / "in"], capture_output=True)
    assert result.returncode == 0, result.stderr
    assert np.array_equal(np.frombuffer(result.stdout, np.float32).reshape(xs.shape), in_python(program, xs))


def test_plain_c_uses_the_functions_by_their_declarations(folder: Path, tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None or COMPILER is None:
        pytest.skip("needs gcc")
    (tmp_path / "scores.c").write_text(SCORES)
    (tmp_path / "selfish_rnn.h").write_text(single_header())
    run: Any = {"cwd": tmp_path, "check": True, "timeout": 600}
    implementation = ["-DSRNN_IMPLEMENTATION", "-x", "c++", "-c", "selfish_rnn.h", "-o", "implementation.o"]
    subprocess.run([COMPILER, *FLAGS, "-march=native", *implementation], **run)
    subprocess.run([compiler, "-std=c99", "-Wall", "-Werror", "-c", "scores.c", "-o", "scores.o"], **run)
    subprocess.run([COMPILER, "scores.o", "implementation.o", "-o", "scores"], **run)
    program, xs = audio_program(), frames()
    save_program(program, tmp_path / "model.srnn")
    xs.tofile(tmp_path / "in")
    result = subprocess.run([tmp_path / "scores", "model.srnn", "in"], cwd=tmp_path, capture_output=True, check=True)
    assert np.array_equal(np.frombuffer(result.stdout, np.float32).reshape(xs.shape), in_python(program, xs))


def test_another_processor_computes_the_same_int8_bits(folder: Path, tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64")
    program, xs = audio_program(), frames()
    save_program(program, tmp_path / "model.srnn")
    xs.tofile(tmp_path / "in")
    expected = in_python(program, xs)
    for name, flags in {"arm": [], "arm-dot": ["-march=armv8.2-a+dotprod"]}.items():
        compile_program(compiler, "scores.cpp", folder, name, "-static", *flags)
        command = [emulator, str(folder / name), str(tmp_path / "model.srnn"), str(tmp_path / "in")]
        result = subprocess.run(command, capture_output=True)
        assert result.returncode == 0, result.stderr
        assert np.array_equal(np.frombuffer(result.stdout, np.float32).reshape(xs.shape), expected), name


def test_webassembly_computes_the_same_int8_bits(folder: Path, tmp_path: Path) -> None:
    compiler, node = shutil.which("em++"), shutil.which("node")
    if compiler is None or node is None:
        pytest.skip("needs emscripten and node")
    program, xs = audio_program(), frames()
    save_program(program, tmp_path / "model.srnn")
    xs.tofile(tmp_path / "in")
    settings = ["-sNODERAWFS=1", "-sALLOW_MEMORY_GROWTH=1", "-sEXIT_RUNTIME=1"]
    flags = ["-msimd128", "-ffp-contract=off", "-fexceptions", *settings]
    compile_program(compiler, "scores.cpp", folder, "scores.js", *flags)
    # Without fetch, which the emscripten of some distributions calls with a path.
    command = [node, "--no-experimental-fetch", folder / "scores.js", tmp_path / "model.srnn", tmp_path / "in"]
    result = subprocess.run(command, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert np.array_equal(np.frombuffer(result.stdout, np.float32).reshape(xs.shape), in_python(program, xs))


def test_a_wav_file_is_filtered_as_in_python(folder: Path, tmp_path: Path) -> None:
    program = audio_program()
    save_program(program, tmp_path / "model.srnn")
    samples = (np.sin(np.arange(1000) / 7) * 12000).astype(np.int16)
    with wave.open(str(tmp_path / "in.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", "NONE"))
        file.writeframes(samples.tobytes())
    command = [folder / "filter_wav", tmp_path / "model.srnn", tmp_path / "in.wav", tmp_path / "out.wav"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "32 frames of 32 samples" in result.stderr
    with wave.open(str(tmp_path / "out.wav"), "rb") as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (1, 16000, 1000)
        filtered = np.frombuffer(file.readframes(1000), np.int16)
    padded = np.concatenate([samples, np.zeros(24, np.int16)]).astype(np.float32).reshape(-1, 32) / 32768
    expected = in_python(program, padded).reshape(-1)[:1000] * 32768
    assert np.abs(filtered - expected).max() <= 0.51
    (tmp_path / "odd.wav").write_bytes(b"RIFF" + struct.pack("<I", 4) + b"WAVE")
    for model, sound, message in (
        ("model.srnn", "odd.wav", "the file has no samples"),
        ("in.wav", "in.wav", "the model is not a safetensors file"),
        ("missing", "in.wav", "cannot read"),
    ):
        result = subprocess.run(
            [command[0], tmp_path / model, tmp_path / sound, tmp_path / "x.wav"], capture_output=True, text=True
        )
        assert result.returncode == 1
        assert message in result.stderr


def test_the_example_program_writes_what_python_does(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    words = ["<eos>", "<unk>", "the", "cat", *(f"w{at}" for at in range(20))]
    model = StackedRNN(len(words), embedding=12, hidden=20)
    Sparsifier(model, sparsity=0.5, rewirings=2)
    model = quantize(model)
    model.vocabulary = Vocabulary(tuple(words))
    step = model.next_word()
    assert step is not None
    step.save(tmp_path / "model.srnn")
    expected = generate(model, model.vocabulary, "the cat", tokens=12, temperature=0)
    command = [folder / "generate", tmp_path / "model.srnn", "12", "0", "1", "the", "cat"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout.split() == expected.split()
    assert "words per second" in result.stderr
    command[2:] = ["30", "1", "7"]
    again = [subprocess.run(command, capture_output=True).stdout for _ in "ab"]
    assert again[0] == again[1]


def test_a_step_allocates_no_memory(folder: Path, tmp_path: Path) -> None:
    save_program(audio_program(), tmp_path / "model.srnn")
    assert COMPILER is not None
    counter = compile_program(COMPILER, str(HERE / "allocations.cpp"), folder, "allocations", "-march=native")
    result = subprocess.run([counter, tmp_path / "model.srnn", "1000000"], capture_output=True, text=True, check=True)
    assert result.stdout == "0 allocations in 1000000 steps\n"


def test_damaged_files_are_refused_or_run_inside_their_memory(folder: Path, tmp_path: Path) -> None:
    assert COMPILER is not None
    flags = ["-g", "-march=native", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    fuzz = compile_program(COMPILER, str(HERE / "fuzz_stream.cpp"), folder, "fuzz", "-DSRNN_ANY_CHECKSUM", *flags)
    for int8 in (True, False):
        save_program(audio_program(8, 9, int8=int8), tmp_path / "model.srnn")
        result = subprocess.run([fuzz, tmp_path / "model.srnn", "300"], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-3000:]
        assert int(result.stdout.split()[0]) > 150


CHANGES: dict[str, tuple[Any, str]] = {
    "not json": (lambda program: None, "not JSON"),
    "a cycle": (lambda program: program["operations"].reverse(), "reads what is not computed yet"),
    "twice": (lambda program: program["operations"].append(program["operations"][0]), "computed twice"),
    "too large": (lambda program: program["sizes"].__setitem__(0, 1 << 27), "an impossible amount of memory"),
    "another kind": (lambda program: program["operations"][0].__setitem__(0, "fft"), "an operation fft"),
    "a state of another size": (lambda program: program["states"][0].__setitem__(2, 0), "another size"),
    "no outputs": (lambda program: program.update(outputs=[]), "without outputs"),
    "no matrix": (lambda program: program["operations"][1][4].__setitem__(0, "fft"), "has no tensor fft"),
    "a fraction": (lambda program: program["sizes"].__setitem__(0, 1.5), "out of range"),
    "no list": (lambda program: program.update(sizes={}), "has no sizes"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_program_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    save_program(audio_program(), tmp_path / "model.srnn")
    tensors, metadata = load_tensors(tmp_path / "model.srnn")
    program = json.loads(metadata["program"])
    change, message = CHANGES[name]
    change(program)
    text = json.dumps(program) if name != "not json" else "{"
    save_tensors(tmp_path / "odd.srnn", tensors, {**metadata, "program": text})
    with pytest.raises(UserError, match=message):
        CompiledProgram.load(tmp_path / "odd.srnn")


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    save_program(audio_program(), tmp_path / "model.srnn")
    content = bytearray((tmp_path / "model.srnn").read_bytes())
    content[-1] ^= 1
    with pytest.raises(UserError, match="checksum"):
        CompiledProgram(bytes(content))
    with pytest.raises(UserError, match="the program is not a safetensors file"):
        CompiledProgram(b"")
    with pytest.raises(UserError, match="cannot read"):
        CompiledProgram.load(tmp_path / "missing")
    tensors, metadata = load_tensors(tmp_path / "model.srnn")
    save_tensors(tmp_path / "odd.srnn", tensors, {**metadata, "format": "stream 9"})
    with pytest.raises(UserError, match='of format "stream 9", this version reads "stream 1"'):
        CompiledProgram.load(tmp_path / "odd.srnn")
    assert len(program_bytes(audio_program())) == len(content)
