"""The figure, and the results in the repository."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from selfish_rnn.bench.engines import KINDS
from selfish_rnn.bench.measurements import Row, completed
from selfish_rnn.bench.options import read
from selfish_rnn.bench.report import draw, figure_of, no_figure, show, write

MACHINE = {"processor": "a processor", "threads": 1, "kernels": None, "torch": "2"}
SPARSITIES = (0.5, 0.67, 0.8, 0.9, 0.95)


def rows() -> list[Row]:
    """All kinds, with dense torch faster without oneDNN."""
    result = list[Row]()
    for sparsity in SPARSITIES:
        packed = {"seconds": [1 - sparsity, 1.5 * (1 - sparsity)]}
        peak = {"training": 900.0, "process": 950.0, "imports": 300.0}
        measured = {
            "inference": {"dense": {"seconds": [5.0, 5.0]}, "no-onednn": {"seconds": [1.0, 1.0]}, "packed": packed},
            "step": {"dense": {"seconds": [1.0, 1.0]}, "masked": {"seconds": [1.2, 1.1]}, "packed": packed},
            "memory": {"dense": peak, "packed": peak},
        }
        for kind, engines in measured.items():
            place = {"network": "lstm", "hidden": 20, "sparsity": sparsity}
            result.append({"kind": kind, "title": KINDS[kind], **place, "engines": engines})
    return completed(result)


def wide_rows() -> list[Row]:
    """Time and memory at three widths, for two numbers of weights."""
    result = list[Row]()
    for sparsity in (0.5, 0.9):
        for width, seconds in ((20, 1.0), (40, 1.25), (80, 2.0)):
            peaks = {"training": 300.0 + width, "process": 400.0, "imports": 250.0}
            place = {"network": "lstm", "hidden": 20, "sparsity": sparsity, "width": width, "positions": width**2}
            engines = {"packed": {"seconds": [seconds, 2 * seconds], **peaks}}
            weights = round(400 * (1 - sparsity))
            result.append({"kind": "width", "title": f"width {width}", **place, "weights": weights, "engines": engines})
    return completed(result)


def saved(path: Path) -> dict[str, Any]:
    write(path, {"machine": MACHINE, "rows": rows()})
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_the_table_names_the_baseline():
    file = io.StringIO()
    show(Console(file=file, width=200), rows(), read({"hidden": "20"}))
    said = file.getvalue()
    assert "next word of one text: time of dense torch without oneDNN, and relative speed of the others" in said
    lines = [re.split(r"  +", line.strip()) for line in said.splitlines()]
    first = next(index for index, line in enumerate(lines) if line[0] == "dense torch without oneDNN (baseline)")
    assert lines[first - 1] == ["sparsity", *(f"{sparsity:g}" for sparsity in SPARSITIES)]
    assert lines[first][1:] == ["1e+03 ms"] * 5 or lines[first][1:] == ["1000 ms"] * 5
    assert lines[first + 1] == ["dense torch", *["0.20 (0.2-0.2)"] * 5]
    assert lines[first + 2][:2] == ["packed", "1.67 (1.3-2.0)"]
    assert lines[first + 3] == ["ideal: 1/(1-S)", "2.00", "3.03", "5.00", "10.00", "20.00"]


def test_widths_are_compared_with_the_first():
    rows = wide_rows()
    assert completed(rows) == rows
    file = io.StringIO()
    show(Console(file=file, width=200), rows, read({"hidden": "20"}))
    said = file.getvalue()
    assert "lstm 20, sparsity 0.5: as many weights in wider networks" in said
    lines = [re.split(r"  +", line.strip()) for line in said.splitlines()]
    assert ["80", "0.96875", "200", "3000 ms", "2.00 (2.00-2.00)", "380 MiB", "400 MiB", "0 MiB"] in lines
    assert "baseline" not in said


def test_the_figure_of_widths_shows_time_memory_and_positions():
    (axes,) = figure_of({"machine": MACHINE, "rows": wide_rows()}).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert lines["positions"] == [1, 4, 16]
    assert lines["step time, 0.0 M weights"] == [1, 1.25, 2]
    assert len(lines) == 3 or len(axes.get_lines()) == 5


def test_a_figure_is_drawn_from_the_file(tmp_path: Path):
    saved(tmp_path / "bench.json")
    assert draw(tmp_path / "bench.json").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.png"]


def test_nothing_in_the_figure_is_cut_or_touches(tmp_path: Path):
    figure = figure_of(saved(tmp_path / "bench.json"))
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    width, height = figure.canvas.get_width_height()
    outlines = [axes.get_tightbbox(renderer) for axes in figure.axes]
    assert len(outlines) == 3
    for left, right in itertools.pairwise(outlines):
        assert left.x1 + 20 < right.x0
    for axes, outline in zip(figure.axes, outlines, strict=True):
        assert outline.x0 >= 0
        assert outline.x1 <= width
        assert outline.y1 <= height
        texts = [*axes.texts, *axes.get_legend().get_texts()]
        assert len(axes.texts) == (0 if "memory" in axes.get_title() else len(SPARSITIES))
        for text in texts:
            box = text.get_window_extent(renderer)
            assert axes.bbox.x0 <= box.x0
            assert box.x1 <= axes.bbox.x1, text.get_text()
            assert axes.bbox.y0 <= box.y0
            assert box.y1 <= axes.bbox.y1, text.get_text()


def test_the_legend_names_the_baseline(tmp_path: Path):
    figure = figure_of(saved(tmp_path / "bench.json"))
    legends = {axes.get_title(): [text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes}
    assert "dense torch (baseline)" in legends["lstm 20: training step"]
    assert "dense torch without oneDNN (baseline)" in legends["lstm 20: next word of one text"]
    assert "dense torch" in legends["lstm 20: next word of one text"]


def test_products_alone_have_no_figure():
    assert "it shows training steps" in str(no_figure(["operators"]))
    assert no_figure(["operators", "step"]) is None


RESULTS = sorted((Path(__file__).parents[2] / "results" / "bench").glob("*/bench.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_results_in_the_repository_say_what_their_seconds_say(path: Path):
    content = json.loads(path.read_text())
    result = completed(content["rows"])
    assert result == content["rows"]
    assert list(read(content["settings"]).what) == list(dict.fromkeys(row["kind"] for row in result))
