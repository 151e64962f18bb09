"""Exported runs with matrices around a density of 1/32, where topologies are saved as bits or as positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from typer.testing import CliRunner

from selfish_rnn.cli.app import app
from selfish_rnn.engine import available
from selfish_rnn.engine.saving import SavedWeights, load_sparse, make_sparse
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors
from selfish_rnn.runs.export import export, load_model
from selfish_rnn.runs.run import Run
from selfish_rnn.sparsifier import Sparsifier
from tiny_runs import tiny_run

ENGINES = [False, *([True] if available() else [])]
PRECISIONS = ["float32", *(["int8"] if available() else [])]
DENSITIES: dict[str, dict[str, Any]] = {
    "very sparse": {"sparsity": 0.98, "method": "selfish"},
    "mixed": {"sparsity": 0.975, "method": "set"},  # by ER: the output matrix is denser than the recurrent one
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    model = {"name": "stacked-lstm", "embedding": 40, "hidden": 40, "layers": 1, "dropout": 0.0}
    result = {name: tiny_run(texts, folder / name, model=model, epochs=1, **DENSITIES[name]) for name in DENSITIES}
    for run in result.values():
        run.train()
    return result


def topology_types(path: Path) -> set[torch.dtype]:
    return {tensor.dtype for name, tensor in load_tensors(path)[0].items() if name.endswith((".bits", ".positions"))}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", DENSITIES)
def test_an_exported_run_is_the_model_of_the_run(
    name: str, precision: Any, runs: dict[str, Run], tmp_path: Path
) -> None:
    run, file = runs[name], tmp_path / "model.safetensors"
    export(run, file, precision=precision)
    if precision == "float32":
        assert topology_types(file) == ({torch.int32} if name == "very sparse" else {torch.int32, torch.uint8})
    tokens = torch.randint(len(run.vocabulary), (6, 3), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = run.model()(tokens)[0]
        for packed in ENGINES:
            scores = load_model(file, packed=packed)(tokens)[0]
            assert torch.allclose(scores, expected, atol=1e-5 if precision == "float32" else 0.05)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", DENSITIES)
def test_the_command_line_opens_an_exported_run(
    name: str, precision: str, runs: dict[str, Run], tmp_path: Path
) -> None:
    file, runner = tmp_path / "model.safetensors", CliRunner()
    folder = str(runs[name].folder.path)
    for words in (
        ["export", folder, "--precision", precision, "--out", str(file)],
        ["evaluate", str(file)],
        ["generate", str(file), "--prompt", "the cat", "--tokens", "3"],
    ):
        result = runner.invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "mask", [torch.zeros(9), torch.tensor([[1], [2]]), torch.tensor([5, 3]), torch.tensor([10**9])]
)
def test_a_mask_that_is_not_one_is_refused(mask: Tensor, runs: dict[str, Run], tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    export(runs["very sparse"], file)
    tensors, metadata = load_tensors(file)
    save_tensors(file, {**tensors, "rnn.weight_hh_l0.positions": mask}, metadata)
    for packed in ENGINES:
        with pytest.raises(UserError, match=r"rnn\.weight_hh_l0"):
            load_model(file, packed=packed)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 16)


@given(st.lists(st.integers(0, 64), min_size=2, max_size=2), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_weights_of_any_density_survive_saving_and_loading(counts: list[int], seed: int) -> None:
    """The masks have up to ``counts`` in 1024 positions: densities from 0 to 1/16, half of them below 1/32."""
    model, generator = Pair(), torch.Generator().manual_seed(seed)
    masks = {}
    for name, count in zip(("first.weight", "second.weight"), counts, strict=True):
        shape = model.get_parameter(name).shape
        order = torch.randperm(shape.numel(), generator=generator)
        masks[name] = torch.zeros(shape.numel(), dtype=torch.bool)
        masks[name][order[: max(1, count * shape.numel() // 1024)]] = True
        masks[name] = masks[name].view(shape)
    sparsifier = Sparsifier(model, method="static", masks=masks)
    saved = SavedWeights.of(model, sparsifier.weights)
    other = Pair()
    load_sparse(other, saved, "file")
    results = [other.state_dict(), make_sparse(Pair, saved, "file", packed=False).state_dict()]
    if available():
        packed = make_sparse(Pair, saved, "file", packed=True)
        results.append({name: getattr(packed, name.split(".")[0]).weight.to_dense() for name in masks})
    for result in results:
        assert all(torch.equal(result[name], model.get_parameter(name)) for name in masks)
