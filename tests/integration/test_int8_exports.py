"""Exported int8 models: in Python, on the command line, damaged, and in a program without Python."""

from __future__ import annotations

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
from selfish_rnn.runtime.compiled import CompiledProgram
from selfish_rnn.runtime.header import single_header
from tiny_runs import TINY_MODELS, tiny_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built"),
]

ROOT = Path(__file__).parents[2]


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
    assert "selfish_rnn.h" in say("header", "--out", str(tmp_path / "selfish_rnn.h"))
    assert (tmp_path / "selfish_rnn.h").read_text() == single_header()
    assert "small.srnn" in say("export", str(run), "--precision", "int8", "--out", str(tmp_path / "small.srnn"))
    step, compiled = load_model(file).next_word(), CompiledProgram.load(tmp_path / "small.srnn")
    assert step is not None
    assert compiled.words == list(load_model(file).vocabulary.tokens)
    stream = compiled.stream()
    stream.tokens["x"][0] = 3
    stream.run()
    assert step(3).tolist() == stream.outputs["y"].tolist()


def test_what_does_not_fit_is_refused(folder: Path, texts: Path, tmp_path: Path) -> None:
    file = folder / "stacked-lstm" / "float.safetensors"
    with pytest.raises(UserError, match="has weights in float32"):
        load_model(file, arithmetic="int8")
    refused = CliRunner().invoke(app, ["export", str(tmp_path), "--precision", "int4"])
    assert refused.exit_code == 2
    assert "'int4' is not one of 'float32', 'int8'" in refused.output
    with pytest.raises(UserError, match="other words than"):
        CliRunner().invoke(app, ["evaluate", str(file), "--corpus", "python-docs"], catch_exceptions=False)
    dense = tiny_run(texts, tmp_path / "dense", epochs=1, method="dense", sparsity=0.0)
    dense.train()
    with pytest.raises(UserError, match="no sparse weights"):
        export(Run.open(tmp_path / "dense"), tmp_path / "dense.safetensors", precision="int8")
    tensors, metadata = load_tensors(folder / "stacked-lstm" / "int8.safetensors")
    for change, message in (
        ({"format": "int8 9"}, "has format int8 9"),
        ({"model": "[]"}, "contains an unknown model"),
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
