"""Every figure shows what it was given: its lines, its labels and the epochs it marks."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import GATES, MATRICES, epochs, record

from selfish_rnn.analysis.figures import (
    DistanceSeries,
    Estimate,
    Outcomes,
    RatioLine,
    RatioPanel,
    degree_distributions,
    density_maps,
    distances,
    forest_plot,
    gate_breakdown,
    gate_history,
    growth_interval,
    learning_curves,
    outcomes_by_setting,
    prune_rate_sensitivity,
    pruning_comparison,
    ratios_against_sparsity,
    save,
    sparsity_sensitivity,
    time_against_perplexity,
    weights_above_threshold,
)
from selfish_rnn.analysis.figures.style import COLUMN, PAGE, legend_below, one_panel, save_svg
from selfish_rnn.analysis.networks import gate_name, short_names
from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.analysis.topologies import degree_shares, density_map, in_degrees, out_degrees, random_degrees
from selfish_rnn.errors import UserError
from selfish_rnn.topology import GateLayout, Topology


def test_long_names_stand_one_below_the_other() -> None:
    columns = []
    for names in (
        ("one", "two"),
        ("a name that takes most of a column of a paper", "another one that is as long as it"),
    ):
        figure, axes = one_panel()
        for name in names:
            axes.plot([1, 2], label=name)
        legend_below(figure, axes, 2)
        columns.append(figure.legends[0]._ncols)
    assert columns == [2, 1]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def curves(axes: Any) -> list[Any]:
    """The lines with something on them; the others only explain."""
    return [line for line in axes.lines if len(line.get_xdata()) > 1]


def test_learning_curves_mark_where_averaging_starts_and_restarts() -> None:
    pair = [record("one", averaging_from=8, restart_at=[5]), record("two", averaging_from=None, scale=1.1)]
    figure = learning_curves(pair, labels=["Selfish", "Static"])
    axes = figure.axes[0]
    assert legend(figure) == ["Selfish", "Static", "averaging starts", "restart"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("epoch", "validation perplexity", "log")
    first, marks, second, restart = axes.lines[0], axes.lines[1], axes.lines[2], axes.lines[4]
    assert list(first.get_ydata()) == [epoch.valid_perplexity for epoch in pair[0].epochs]
    assert list(second.get_ydata()) == [epoch.valid_perplexity for epoch in pair[1].epochs]
    assert list(marks.get_xdata()) == [8]
    assert list(restart.get_xdata()) == [5, 5]
    assert first.get_color() != second.get_color()


def test_curves_without_averaging_do_not_explain_it() -> None:
    assert legend(learning_curves([record("one", averaging_from=None)])) == ["one"]


def test_weights_above_a_tenth_are_solid_for_one_optimizer_and_dashed_for_the_other() -> None:
    nt_asgd = {"optimizer.name": "nt-asgd"}
    figure = weights_above_threshold([record("one"), record("two", **nt_asgd)])
    assert legend(figure) == ["ih1", "hh1", "SNT-ASGD", "NT-ASGD"]
    lines = curves(figure.axes[0])
    assert [line.is_dashed() for line in lines] == [False, True, False, True]
    assert list(lines[0].get_ydata()) == list(range(1, 13))  # thousands
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()


def test_runs_of_the_same_optimizer_are_named_by_their_names() -> None:
    assert legend(weights_above_threshold([record("one"), record("two")]))[-2:] == ["one", "two"]
    with pytest.raises(ValueError, match=r"decoder\.weight"):
        weights_above_threshold([record("one")], matrices=["decoder.weight"])


def test_time_is_in_minutes_and_perplexity_never_rises() -> None:
    rising = record("one", count=3)
    worse = [*rising.epochs, *epochs(1, scale=5.0)]
    figure = time_against_perplexity([type(rising)("one", rising.settings, worse)])
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == [0.5, 1.0, 1.5, 0.5]
    assert list(line.get_ydata()) == [epoch.valid_perplexity for epoch in rising.epochs] + [
        rising.epochs[-1].valid_perplexity
    ]


def test_distances_have_a_panel_for_each_title_and_a_line_for_each_series() -> None:
    within = [
        DistanceSeries(name, [5, 10], [0.0, 0.4], growth) for name in MATRICES for growth in ("random", "gradient")
    ]
    figure = distances({"within a run": within, "between two runs": within[:2]}, density=0.33)
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("within a run", "between two runs")
    assert legend(figure) == ["ih1", "hh1", "random growth", "gradient growth", "independent topologies"]
    level = 1 - 0.33 / 1.67
    drawn = [line for line in curves(left) if list(line.get_ydata()) != [level, level]]
    assert [line.is_dashed() for line in drawn] == [False, True, False, True]
    assert len(curves(left)) == 5
    assert len(curves(right)) == 3
    with pytest.raises(ValueError, match="as many distances"):
        DistanceSeries("ih1", [1, 2], [0.5])


@pytest.mark.parametrize(
    ("draw", "label"),
    [
        (sparsity_sensitivity, "sparsity"),
        (prune_rate_sensitivity, "initial prune rate"),
        (growth_interval, "updates between rewirings"),
        (pruning_comparison, "sparsity"),
    ],
)
def test_sensitivities_show_every_value_and_dash_the_dense_baseline(draw: Callable[..., Any], label: str) -> None:
    values = [50.0, 400.0] if draw is growth_interval else [0.5, 0.95]
    given = [Outcomes("LSTM", values, [72.0, 90.0], [0.5, 1.0], dense=73.4), Outcomes("RHN", values, [60.0, 80.0])]
    figure = draw(given)
    axes = figure.axes[0]
    assert legend(figure) == ["LSTM", "RHN", "dense"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (label, "test perplexity")
    assert [text.get_text() for text in axes.get_xticklabels()] == [f"{value:g}" for value in values]
    baselines = [line for line in curves(axes) if list(line.get_ydata()) == [73.4, 73.4]]
    assert len(baselines) == 1
    assert baselines[0].get_linestyle() == "--"
    assert len(axes.containers) == 2


def test_sparsities_that_halve_what_is_left_are_equally_far_apart() -> None:
    figure = pruning_comparison([Outcomes("Selfish", [0.8, 0.9, 0.95], [1.0, 2.0, 3.0])])
    axes = figure.axes[0]
    places = np.log(np.asarray(axes.lines[0].get_xdata(), dtype=float))
    assert axes.get_xscale() == "log"
    assert places[1] - places[0] == pytest.approx(places[2] - places[1])


def test_outcomes_are_averaged_over_runs_with_the_same_value() -> None:
    runs = [record(test=test, sparsity=sparsity) for sparsity, test in ((0.8, 60.0), (0.5, 50.0), (0.8, 62.0))]
    result = outcomes_by_setting("LSTM", runs, "sparsity", dense=48.0)
    assert list(result.values) == [0.5, 0.8]
    assert list(result.perplexities) == [50.0, 61.0]
    assert result.spreads == pytest.approx([0.0, 2**0.5])
    with pytest.raises(ValueError, match="not finished"):
        outcomes_by_setting("LSTM", [record(test=None)], "sparsity")
    with pytest.raises(ValueError, match="rewire_every"):
        outcomes_by_setting("LSTM", runs, "rewire_every")


def test_the_gates_of_every_matrix_have_their_bars() -> None:
    figure = gate_breakdown(record())
    axes = figure.axes[0]
    assert legend(figure) == [*GATES, "whole matrix"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["ih1", "hh1"]
    forget = axes.containers[1]
    assert [bar.get_height() for bar in forget] == pytest.approx([0.79, 0.79])


def test_the_history_of_gates_has_a_panel_for_each_matrix() -> None:
    figure = gate_history(record())
    assert [axes.get_title() for axes in figure.axes] == ["ih1", "hh1"]
    assert legend(figure) == [*GATES, "whole matrix"]
    forget = curves(figure.axes[1])[1]
    assert list(forget.get_xdata()) == list(range(1, 13))
    assert forget.get_ydata()[-1] == pytest.approx(0.21)


def gated_record(matrices: int, count: int = 3) -> RunRecord:
    """Return a run whose matrices have gates of different densities, other ones after every epoch."""
    return dataclasses.replace(
        record(),
        epochs=[
            dataclasses.replace(
                epoch,
                density={
                    f"rnn.weight_hh_l{layer}": {
                        **{gate: density(layer, number, epoch.epoch) for number, gate in enumerate(GATES)},
                        "all": density(layer, len(GATES), epoch.epoch),
                    }
                    for layer in range(matrices)
                },
            )
            for epoch in epochs(count)
        ],
    )


def density(layer: int, gate: int, epoch: int) -> float:
    return 0.05 + 0.11 * gate + 0.03 * layer + 0.007 * epoch


@pytest.mark.parametrize("matrices", [1, 3])
def test_the_bars_of_gates_have_their_numbers_and_places(matrices: int) -> None:
    axes = gate_breakdown(gated_record(matrices)).axes[0]
    assert len(axes.containers) == len(GATES)
    for number, bars in enumerate(axes.containers):
        heights = [1 - density(layer, number, 3) for layer in range(matrices)]
        assert [bar.get_height() for bar in bars] == pytest.approx(heights)
        # Bars of a matrix stand side by side around its tick, with a tenth of their place between them.
        middles = [layer + 0.2 * (number - 1.5) for layer in range(matrices)]
        assert [bar.get_x() + bar.get_width() / 2 for bar in bars] == pytest.approx(middles)
        assert [bar.get_width() for bar in bars] == pytest.approx([0.18] * matrices)
    assert list(axes.get_xticks()) == list(range(matrices))
    (whole,) = axes.collections
    lines = [[list(point) for point in line] for line in whole.get_segments()]
    expected = [
        [[layer + side * 0.45, 1 - density(layer, len(GATES), 3)] for side in (-1, 1)] for layer in range(matrices)
    ]
    assert np.allclose(lines, expected)
    assert axes.get_ylim() == (0, 1)
    assert axes.get_ylabel() == "sparsity"


def test_bars_of_more_than_six_matrices_take_the_width_of_a_page() -> None:
    widths = [gate_breakdown(gated_record(matrices)).get_figwidth() for matrices in (6, 7)]
    assert widths == [COLUMN, PAGE]


@pytest.mark.parametrize(("matrices", "across", "down"), [(1, 2, 1), (3, 2, 2), (4, 2, 2), (5, 4, 2)])
def test_the_history_of_gates_has_its_numbers(matrices: int, across: int, down: int) -> None:
    figure = gate_history(gated_record(matrices))
    assert figure.get_figwidth() == (COLUMN if across == 2 else PAGE)
    assert len(figure.axes) == across * down
    assert [axes.get_visible() for axes in figure.axes] == [index < matrices for index in range(across * down)]
    for layer, axes in enumerate(figure.axes[:matrices]):
        lines = curves(axes)
        assert len(lines) == len(GATES) + 1
        for number, line in enumerate(lines):
            assert list(line.get_xdata()) == [1, 2, 3]
            assert list(line.get_ydata()) == pytest.approx([density(layer, number, epoch) for epoch in (1, 2, 3)])
            assert line.get_linestyle() == (":" if number == len(GATES) else "-")
        assert len({line.get_color() for line in lines}) == len(lines)
        assert axes.get_ylabel() == ("density" if layer % across == 0 else "")
        assert axes.get_xlabel() == ("epoch" if layer >= matrices - across else "")


def topology(rows: int = 40, columns: int = 30, count: int = 400, gates: tuple[str, ...] = GATES) -> Topology:
    return Topology.random((rows, columns), GateLayout.even(gates, rows), count, torch.Generator().manual_seed(1))


def test_a_map_counts_the_positions_of_its_places() -> None:
    item = topology()
    mask = item.to_mask().numpy()
    for number, gate in enumerate(GATES):
        rows = mask[10 * number : 10 * (number + 1)]
        np.testing.assert_allclose(density_map(item, gate, 5), rows.reshape(5, 2, 5, 6).mean(axis=(1, 3)))
        np.testing.assert_array_equal(density_map(item, gate, 100), rows)
        np.testing.assert_array_equal(in_degrees(item, gate), rows.sum(axis=1))
        np.testing.assert_array_equal(out_degrees(item, gate), rows.sum(axis=0))
    with pytest.raises(ValueError, match="no gate 'reset'; there are input"):
        density_map(item, "reset")


def test_places_of_unequal_size_keep_the_density_right() -> None:
    item = topology(rows=10, columns=7, count=70, gates=("all",))
    assert np.all(density_map(item, "all", 3) == 1)


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_random_degrees_are_a_distribution_with_the_right_mean(density: float) -> None:
    degrees, shares = random_degrees(density, 50)
    assert shares.sum() == pytest.approx(1)
    assert (degrees * shares).sum() == pytest.approx(50 * density)


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("count", [0, 400, 1200])
def test_every_unit_is_in_one_bin(sent: bool, count: int) -> None:
    shares = degree_shares(topology(count=count), sent=sent, start=topology(count=300), bins=7)
    for result in [*shares.gates.values(), shares.random]:
        assert result.sum() == pytest.approx(1)
    assert len(shares.edges) <= 9


def test_density_maps_have_one_for_every_gate() -> None:
    figure = density_maps({"rnn.weight_ih_l0": topology(), "decoder.weight": topology(gates=("all",))}, bins=8)
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.images]
    assert [axes.get_title() for axes in shown] == [*GATES, "whole matrix"]
    assert shown[0].get_ylabel() == "ih1"
    assert shown[0].images[0].get_array().shape == (8, 8)
    assert len({axes.images[0].get_clim() for axes in shown}) == 1


def test_a_large_matrix_is_not_made_dense() -> None:
    huge = Topology((4_000_000, 1_000_000), GateLayout.even(GATES, 4_000_000), torch.arange(0, 4 * 10**12, 10**9))
    figure = density_maps({"weight": huge}, bins=4)
    assert figure.axes[0].images[0].get_array().shape == (4, 4)


def test_degrees_are_drawn_against_the_random_start() -> None:
    item, start = topology(), topology(count=300)
    expected = degree_distributions({"rnn.weight_ih_l0": item})
    given = degree_distributions({"rnn.weight_ih_l0": item}, start={"rnn.weight_ih_l0": start})
    for figure in (expected, given):
        assert legend(figure) == [*GATES, "random start"]
        assert [axes.get_title() for axes in figure.axes] == ["weights received", "weights sent"]
        assert [len(axes.patches) for axes in figure.axes] == [5, 5]
    values = degree_shares(item, sent=False, start=start).random
    np.testing.assert_array_equal(given.axes[0].patches[0].get_data().values, values)


def test_a_forest_has_a_row_and_a_verdict_for_each_estimate() -> None:
    rows = [
        Estimate("against static", 2.3, 1.4, 3.2, "holds"),
        Estimate("against dense", -0.2, -1.5, 1.1, "inconclusive", threshold=-0.8),
        Estimate("one seed", 9.0, -math.inf, math.inf, "inconclusive"),
    ]
    figure = forest_plot({"perplexity": rows, "fraction": rows[:1], "empty": []}, {"holds": "#009E73"})
    assert [axes.get_xlabel() for axes in figure.axes] == ["perplexity", "fraction"]
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["against static", "against dense", "one seed"]
    assert [text.get_text() for text in axes.texts] == ["holds", "inconclusive", "inconclusive"]
    intervals = [tuple(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 1.6]
    assert intervals == [(1.4, 3.2), (-1.5, 1.1)]  # none for a single seed
    squares = [line for line in axes.lines if line.get_marker() == "s"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in squares] == [(2.3, 0), (-0.2, 1), (9.0, 2)]
    assert squares[2].get_markerfacecolor() != squares[2].get_color()
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"] == [-0.8]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row is at the top


def test_ratios_have_the_dense_network_at_one() -> None:
    quality = RatioLine("Selfish", [0.5, 0.9], [0.97, 1.06], [0.95, 1.05], [0.98, 1.1])
    speed = RatioLine("training step", [0.9], [7.4])
    figure = ratios_against_sparsity(
        [RatioPanel("quality", [quality]), RatioPanel("speed", [speed], logarithmic=True), RatioPanel("empty", [])]
    )
    assert [axes.get_title() for axes in figure.axes] == ["quality", "speed"]
    for axes in figure.axes:
        (dense,) = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert list(dense.get_ydata()) == [1, 1]
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0.5", "0.9"]
    (bars,) = figure.axes[0].containers
    ends = [sorted(y for _, y in segment) for segment in bars.lines[2][0].get_segments()]
    np.testing.assert_allclose(ends, [[0.95, 0.98], [1.05, 1.1]])


def test_a_ratio_line_needs_as_many_values_as_sparsities() -> None:
    with pytest.raises(ValueError, match="speed: values and their ends must be as many as sparsities"):
        RatioLine("speed", [0.5, 0.9], [1.9])


@pytest.mark.parametrize("dark", [False, True])
def test_figures_for_dark_screens_have_a_dark_background(dark: bool, tmp_path: Path) -> None:
    row = Estimate("against static", 2.3, 1.4, 3.2, "holds")
    figure = forest_plot({"perplexity": [row]}, {}, dark=dark)
    assert (sum(figure.get_facecolor()[:3]) < 1) == dark
    path = save_svg(figure, tmp_path / "forest.svg", "points 123")
    assert "points 123" in path.read_text()


def test_forest_and_ratios_of_nothing_are_errors() -> None:
    with pytest.raises(ValueError, match="no estimates"):
        forest_plot({"perplexity": []}, {})
    with pytest.raises(ValueError, match="no ratios"):
        ratios_against_sparsity([RatioPanel("speed", [])])


@pytest.mark.parametrize("draw", [learning_curves, time_against_perplexity, sparsity_sensitivity])
def test_nothing_to_draw_is_an_error(draw: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="no"):
        draw([])


def test_figures_fit_a_column_and_are_saved_twice_with_the_same_bytes(tmp_path: Path) -> None:
    figure = learning_curves([record()])
    assert figure.get_figwidth() == COLUMN
    vector, pixels = save(figure, tmp_path / "new" / "sparsity-0.5")
    assert (vector.name, pixels.name) == ("sparsity-0.5.svg", "sparsity-0.5.png")
    again = save(learning_curves([record()]), tmp_path / "again.png")
    assert vector.read_bytes() == again[0].read_bytes()
    assert pixels.read_bytes() == again[1].read_bytes()
    assert pixels.read_bytes()[:4] == b"\x89PNG"


def test_a_figure_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*figure"):
        save(learning_curves([record()]), tmp_path / "file" / "figure")


def test_names_are_short_where_they_stay_different() -> None:
    names = ["rnns.0.weight_ih_l0", "rnns.1.weight_ih_l0", "cell.weight_recurrent_2", "latent.weight"]
    assert short_names(names) == ["ih1", "ih2", "hh2", "latent"]
    assert short_names(["a.weight_ih_l0", "b.weight_ih_l0"]) == ["a.weight_ih_l0", "b.weight_ih_l0"]
    assert (gate_name("master_forget"), gate_name("all")) == ("master forget", "whole matrix")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'selfish-rnn\[analysis\]'"):
        learning_curves([record()])


@pytest.mark.slow
def test_matplotlib_is_not_imported_before_a_figure_is_drawn() -> None:
    check = (
        "import sys, selfish_rnn.analysis.figures, selfish_rnn.analysis.report; sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
