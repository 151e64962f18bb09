"""Exported int8 models: in Python, on the command line, damaged, and in a program without Python."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fuzz_exported import fuzz, fuzz_content
from selfish_rnn.cli.app import app
from selfish_rnn.engine import available
from selfish_rnn.engine.int8.quantized_weight import quantized_weights
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors
from selfish_rnn.runs.export import export, load_model
from selfish_rnn.runs.run import Run
from selfish_rnn.runtime.header import single_header
from selfish_rnn.training.evaluation import generate
from tiny_runs import TINY_MODELS, tiny_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built"),
]

ROOT = Path(__file__).parents[2]
COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

SCORES = """
#include "selfish_rnn.hpp"
#include <cstdio>
int main(int count, char** arguments) {
  selfish::Model model(arguments[1]);
  for (int at = 2; at < count; ++at) {
    const float* scores = model.step(std::stoi(arguments[at]));
    for (size_t word = 0; word < model.words().size(); ++word) std::printf("%a ", scores[word]);
    std::printf("\\n");
  }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Path:
    """Exported files of every model, int8.safetensors and float.safetensors in a folder of its name."""
    folder = tmp_path_factory.mktemp("exports")
    for model, options in TINY_MODELS.items():
        changes: dict[str, Any] = {"model": {"name": model, **options}, "epochs": 1}
        run = tiny_run(texts, folder / model / "run", **changes, optimizer={"name": "adam", "lr": 0.02})
        run.train()
        export(run, folder / model / "int8.safetensors", precision="int8")
        export(run, folder / model / "float.safetensors")
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two programs: the example, for any processor, and one that prints scores, for this one."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "selfish_rnn.hpp").write_text(single_header())
    (folder / "scores.cpp").write_text(SCORES)
    shutil.copy(ROOT / "examples" / "generate.cpp", folder)
    for name, flags in (("generate", ["-O1"]), ("scores", ["-O1", "-march=native", "-fopenmp"])):
        command = [str(COMPILER), "-std=c++17", "-Wno-psabi", *flags, f"{name}.cpp", "-o", name]
        subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("model", TINY_MODELS)
def test_an_int8_file_is_the_model_of_the_run_but_for_rounding(model: str, folder: Path) -> None:
    exact, small = (load_model(folder / model / f"{name}.safetensors") for name in ("float", "int8"))
    assert quantized_weights(small).keys() == packed_weights(exact).keys()
    rounded = load_model(folder / model / "int8.safetensors", arithmetic="float32")
    assert packed_weights(rounded).keys() == packed_weights(exact).keys()
    masked = load_model(folder / model / "int8.safetensors", packed=False)
    tokens = torch.randint(len(small.vocabulary), (6, 3), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = exact(tokens)[0].log_softmax(-1)
        assert float((small(tokens)[0].log_softmax(-1) - expected).abs().mean()) < 0.02
        assert float((rounded(tokens)[0].log_softmax(-1) - expected).abs().mean()) < 0.02
        assert torch.allclose(masked(tokens)[0], rounded(tokens)[0], atol=1e-4)


def test_the_command_line_exports_evaluates_and_generates(folder: Path, tmp_path: Path) -> None:
    run, file, runner = folder / "stacked-lstm" / "run", tmp_path / "small.safetensors", CliRunner()

    def say(*words: str) -> str:
        result = runner.invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "small.safetensors" in say("export", str(run), "--precision", "int8", "--out", str(file))
    of_run, of_file = (
        {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in say("evaluate", str(path)).splitlines()}
        for path in (run, file)
    )
    assert of_run.keys() == of_file.keys()
    assert of_file["test perplexity"] == pytest.approx(of_run["test perplexity"], rel=5e-3)
    writing = ("generate", str(file), "--prompt", "the cat", "--tokens", "9", "--seed", "4")
    assert say(*writing) == say(*writing)
    assert say(*writing, "--top", "1") == say(*writing, "--temperature", "0")
    assert "selfish_rnn.hpp" in say("header", "--out", str(tmp_path / "selfish_rnn.hpp"))
    assert (tmp_path / "selfish_rnn.hpp").read_text() == single_header()


def test_what_does_not_fit_is_refused(folder: Path, texts: Path, tmp_path: Path) -> None:
    file = folder / "stacked-lstm" / "float.safetensors"
    with pytest.raises(UserError, match="has weights in float32"):
        load_model(file, arithmetic="int8")
    with pytest.raises(UserError, match="precision must be"):
        CliRunner().invoke(app, ["export", str(tmp_path), "--precision", "int4"], catch_exceptions=False)
    with pytest.raises(UserError, match="other words than"):
        CliRunner().invoke(app, ["evaluate", str(file), "--corpus", "python-docs"], catch_exceptions=False)
    dense = tiny_run(texts, tmp_path / "dense", epochs=1, method="dense", sparsity=0.0)
    dense.train()
    with pytest.raises(UserError, match="no sparse weights"):
        export(Run.open(tmp_path / "dense"), tmp_path / "dense.safetensors", precision="int8")
    tensors, metadata = load_tensors(folder / "stacked-lstm" / "int8.safetensors")
    for change, message in (
        ({"format": "int8 9"}, "of format int8 9"),
        ({"model": "[]"}, "of a model called"),
        ({"evaluation": '{"window": 0}'}, "settings of its evaluation: window: must be greater than 0"),
        ({"evaluation": '{"widow": 3}'}, "settings of its evaluation"),
        ({"training": '{"tokens": -3}'}, "settings of its training: tokens: must be greater than 0"),
        ({"training": "[]"}, "settings of its training"),
    ):
        save_tensors(tmp_path / "odd.safetensors", tensors, {**metadata, **change})
        with pytest.raises(UserError, match=message):
            load_model(tmp_path / "odd.safetensors")
    del tensors["rnn.weight_hh_l0.scales"]
    save_tensors(tmp_path / "odd.safetensors", tensors, metadata)
    with pytest.raises(UserError, match=r"rnn\.weight_hh_l0\.scales is missing"):
        load_model(tmp_path / "odd.safetensors")


def test_damaged_files_are_refused_or_give_the_same_result(folder: Path) -> None:
    refused, same = fuzz(folder / "stacked-lstm" / "int8.safetensors", 150)
    assert refused > 100
    assert refused + same == 150
    assert fuzz_content(folder / "stacked-lstm" / "int8.safetensors", 100) > 50


@needs_compiler
@pytest.mark.parametrize("model", TINY_MODELS)
def test_a_program_without_python_computes_the_same_bits(model: str, folder: Path, programs: Path) -> None:
    file = folder / model / "int8.safetensors"
    step = load_model(file).next_word()
    assert step is not None
    words = [3, 1, 0, 5, 5]
    expected = [step(word).tolist() for word in words]
    said = subprocess.run([programs / "scores", file, *map(str, words)], capture_output=True, text=True, check=True)
    found = [[float.fromhex(number) for number in line.split()] for line in said.stdout.splitlines()]
    if model == "awd-lstm-mos":  # its logarithm is that of the C++ library
        assert torch.allclose(torch.tensor(found), torch.tensor(expected), atol=1e-5)
    else:
        assert found == expected


@needs_compiler
def test_a_program_without_python_reads_matrices_below_a_density_of_1_32(
    texts: Path, programs: Path, tmp_path: Path
) -> None:
    model = {"name": "stacked-lstm", "embedding": 40, "hidden": 40, "layers": 1}
    run = tiny_run(texts, tmp_path / "run", model=model, sparsity=0.98, epochs=1)
    run.train()
    for precision in ("float32", "int8"):
        export(run, tmp_path / precision, precision=precision)
    step = load_model(tmp_path / "int8").next_word()
    assert step is not None
    words = [3, 1, 0, 5]
    command = [programs / "scores", tmp_path / "int8", *map(str, words)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    scores = [[float.fromhex(number) for number in line.split()] for line in output.splitlines()]
    assert scores == [step(word).tolist() for word in words]
    command = [programs / "generate", tmp_path / "float32", "2", "0", "1"]
    assert "no int8 model" in subprocess.run(command, capture_output=True, text=True).stderr


def test_another_processor_computes_the_same_bits(folder: Path, programs: Path, tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64")
    command = [compiler, "-std=c++17", "-O1", "-static", "-Wno-psabi", "scores.cpp", "-o", str(tmp_path / "scores")]
    subprocess.run(command, cwd=programs, check=True)
    words = [3, 1, 0, 5, 5]
    for model in sorted(TINY_MODELS.keys() - {"awd-lstm-mos"}):  # whose logarithm is that of the C++ library
        file = folder / model / "int8.safetensors"
        step = load_model(file).next_word()
        assert step is not None
        expected = [step(word).tolist() for word in words]
        said = subprocess.run([emulator, tmp_path / "scores", file, *map(str, words)], capture_output=True, text=True)
        assert [[float.fromhex(number) for number in line.split()] for line in said.stdout.splitlines()] == expected


@needs_compiler
def test_the_example_program_writes_what_python_does(folder: Path, programs: Path, tmp_path: Path) -> None:
    file = folder / "stacked-lstm" / "int8.safetensors"
    model = load_model(file)
    expected = generate(model, model.vocabulary, "the cat", tokens=12, temperature=0)
    said = subprocess.run([programs / "generate", file, "12", "0", "1", "the", "cat"], capture_output=True, text=True)
    assert said.stdout.split() == expected.split()
    assert "words per second" in said.stderr
    again = [subprocess.run([programs / "generate", file, "30", "1", "7"], capture_output=True).stdout for _ in "ab"]
    assert again[0] == again[1]


@needs_compiler
def test_a_program_without_python_refuses_what_is_damaged(folder: Path, programs: Path, tmp_path: Path) -> None:
    file = folder / "stacked-lstm" / "int8.safetensors"

    def error_of(path: Path) -> str:
        said = subprocess.run([programs / "generate", path, "2", "0", "1"], capture_output=True, text=True)
        assert said.returncode == 1
        assert said.stderr.startswith("error: ")
        return said.stderr

    assert "cannot be read" in error_of(tmp_path / "missing")
    assert "no int8 model" in error_of(folder / "stacked-lstm" / "float.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    assert "checksum" in error_of(tmp_path / "damaged")
    tensors, metadata = load_tensors(file)
    step = json.loads(metadata["step"])
    for change, message in (
        ({"memory": 10}, "leaves the memory"),
        ({"memory": 1 << 40}, "impossible amount"),
        ({"scores": [0, 3]}, "other scores than words"),
        ({"operations": [[*step["operations"][0][:11], "rnn.weight_hh_l0", None]]}, "another number of rows"),
        ({"operations": [step["operations"][-1], step["operations"][0]]}, "out of order"),
    ):
        save_tensors(tmp_path / "odd", tensors, {**metadata, "step": json.dumps({**step, **change})})
        assert message in error_of(tmp_path / "odd"), change
