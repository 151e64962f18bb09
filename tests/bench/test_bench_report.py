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

from selfish_rnn.bench.measurements import Row, completed
from selfish_rnn.bench.options import read
from selfish_rnn.bench.report import DRAWN, draw, figure_of, no_figure, show, write

MACHINE = {"processor": "a processor", "threads": 1, "kernels": None, "torch": "2"}
SPARSITIES = (0.5, 0.67, 0.8, 0.9, 0.95)


def rows() -> list[Row]:
    """All kinds, with dense torch faster without oneDNN."""
    found = list[Row]()
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
            found.append({"kind": kind, "title": DRAWN[kind], **place, "engines": engines})
    return completed(found)


def saved(path: Path) -> dict[str, Any]:
    write(path, {"machine": MACHINE, "rows": rows()})
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_the_table_names_the_baseline():
    file = io.StringIO()
    show(Console(file=file, width=200), rows(), read({"hidden": "20"}))
    said = file.getvalue()
    assert "batch-1 inference: time of dense torch without oneDNN, and how many times as fast the others are" in said
    heading = next(line for line in said.splitlines() if "dense torch without oneDNN (baseline)" in line)
    assert re.split(r"  +", heading.strip())[2:] == ["dense torch without oneDNN (baseline)", "dense torch", "packed"]
    assert "0.20 (0.20 to 0.20)" in said, "dense torch with oneDNN, over the baseline"


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
    assert "dense torch without oneDNN (baseline)" in legends["lstm 20: batch-1 inference"]
    assert "dense torch" in legends["lstm 20: batch-1 inference"]


def test_products_alone_have_no_figure():
    assert "would show training steps" in str(no_figure(["operators"]))
    assert no_figure(["operators", "step"]) is None


RESULTS = sorted((Path(__file__).parents[2] / "results" / "bench").glob("*/bench.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_results_in_the_repository_say_what_their_seconds_say(path: Path):
    content = json.loads(path.read_text())
    found = completed(content["rows"])
    assert found == content["rows"]
    assert list(read(content["settings"]).what) == list(dict.fromkeys(row["kind"] for row in found))
