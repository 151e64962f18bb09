"""The pareto comparison: trained networks beside measured costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reproduce_cases import made_up

from selfish_rnn.reproduce.paper.comparisons import PARETO
from selfish_rnn.reproduce.rendering.figures import draw_pareto, pareto_points
from selfish_rnn.reproduce.rendering.tables import ResultView, table
from selfish_rnn.reproduce.results import Results

SERIES = {"epoch": [1, 2], "averaging": [False, True], "seconds": [3600.0, 7200.0], "valid_perplexity": [120.0, 90.0]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The results of the first pair, and the costs of its sparse network."""
    results = Results(tmp_path, "small")
    for row, test in zip(PARETO.rows[:2], (80.0, 85.0), strict=True):
        assert row.case is not None
        results.save(*made_up(row.case, 1, test, series=SERIES))
    costs = {
        "units": 1500, "sparsity": 0.9, "latency_ms": {"torch int8": 0.3, "selfish-rnn int8": 0.125},
        "bytes": {"torch int8": 33e6, "selfish-rnn int8": 9.5e6}, "step_ms": 240.0,
    }  # fmt: skip
    (tmp_path / "pareto").mkdir()
    (tmp_path / "pareto" / "costs.json").write_text(json.dumps({"rows": [costs]}))
    return tmp_path


def test_costs_are_those_of_the_fastest_engine_for_a_network_of_this_size(root: Path) -> None:
    lines = table(PARETO, ResultView.read(root, "small")).splitlines()
    assert lines[2].startswith(
        "| 33 epochs: Selfish, 1500 units, S = 0.9 | 90.00 | 80.00 | 1,000 | 0.2 | 0.125 | 9.5 |"
    )
    assert lines[3].startswith("| 33 epochs: dense, 512 units | 95.00 | 85.00 | 1,000 | 0.2 | - | - | - |")
    assert lines[-1] == ("*Not run:* 33 epochs (dense, 272 units, Selfish, 1500 units, S = 0.8); all of: 100 epochs.")


def test_points_name_their_files(root: Path) -> None:
    points = pareto_points(ResultView.read(root, "small"))
    assert [point["label"] for point in points["networks"]] == [
        "33 epochs: Selfish, 1500 units, S = 0.9", "33 epochs: dense, 512 units",
    ]  # fmt: skip
    for point in points["networks"]:
        assert (root / point["file"]).is_file()
        assert point["hours"] == [1.0, 2.0]
    assert (root / points["costs"]).is_file()
    json.dumps(points, allow_nan=False)


@pytest.mark.slow
def test_the_figure_has_a_panel_for_every_cost_and_one_for_training(root: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = draw_pareto(pareto_points(ResultView.read(root, "small")))
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "next word, int8 (ms)", "int8 weights (MB)", "core-hours of training", "core-hours of training",
    ]  # fmt: skip
    assert [line.get_label() for line in figure.axes[2].lines] == [
        "33 epochs: Selfish, 1500 units, S = 0.9", "33 epochs: dense, 512 units",
    ]  # fmt: skip
    assert len(figure.axes[0].lines) == 1
