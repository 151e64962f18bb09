"""The density of gates: of models in any form, and over the epochs of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from network_cases import sparse_model, sparsifier_of
from torch import nn

from selfish_rnn import IntrinsicSparseStructures, Sparsifier, gate_densities
from selfish_rnn.analysis.networks import densities_over_time, gate_deviations
from selfish_rnn.engine import available
from selfish_rnn.models import MODELS
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.training.metrics import describe
from tiny_runs import finished_run


@pytest.mark.parametrize(
    "packed", [False, pytest.param(True, marks=pytest.mark.skipif(not available(), reason="no kernels"))]
)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_tells_what_its_sparsifier_knows(name: str, packed: bool) -> None:
    torch.manual_seed(0)
    model = sparse_model(name, packed=packed)
    sparsifier = sparsifier_of(model)
    sparsifier.rewire()
    densities = gate_densities(model)
    expected = describe(sparsifier)["density"]
    assert {matrix: densities[matrix] for matrix in expected} == expected
    assert set(densities) - set(expected) == ({"prior.weight"} if name == "awd-lstm-mos" else set())


def test_without_a_sparsifier_zeros_count() -> None:
    lstm = nn.LSTM(3, 4)
    lstm.weight_hh_l0.data[4:8] = 0  # the forget gate
    densities = gate_densities(lstm)
    assert densities["weight_hh_l0"] == {"input": 1, "forget": 0, "candidate": 1, "output": 1, "all": 0.75}
    assert gate_deviations(densities) == {"input": 0.125, "forget": -0.375, "candidate": 0.125, "output": 0.125}


def test_a_matrix_that_only_the_sparsifier_knows() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(4, 5))

    model = nn.Sequential(Own())
    with pytest.raises(ValueError, match="register_cell"):
        gate_densities(model)
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=1, include="0.matrix")
    assert gate_densities(model) == {"0.matrix": {"all": 0.5}}
    assert sparsifier.active_weights == 10


def test_intrinsic_structures_count_what_is_not_zero() -> None:
    model = MODELS["stacked-lstm"](20, embedding=4, hidden=4)
    structure = IntrinsicSparseStructures(model)
    model.rnn.weight_hh_l0.data[:4] = 0
    assert gate_densities(model)["rnn.weight_hh_l0"]["input"] == 0
    assert structure.active_weights < structure.total_weights


def test_the_epochs_of_a_run(texts: Path, tmp_path: Path) -> None:
    recorder = finished_run(texts, tmp_path / "run")
    series = densities_over_time(RunFolder(tmp_path / "run").metrics.read())
    assert list(series) == [weight.name for weight in recorder.trainer.sparsifier.weights]
    forget = series["rnn.weight_hh_l0"]["forget"]
    assert len(forget) == 3
    assert len(set(forget)) > 1
    assert len({round(density, 9) for density in series["rnn.weight_hh_l0"]["all"]}) == 1
