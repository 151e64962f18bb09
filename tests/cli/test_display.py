"""Display of training."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from selfish_rnn.cli import display as shown
from selfish_rnn.cli.display import (
    PAGE,
    LiveProgress,
    PlainLog,
    epoch_line,
    listener_for,
    perplexity_text,
    show_methods,
    show_outcome,
)
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS, method_row
from selfish_rnn.training.metrics import StepReport
from selfish_rnn.training.records import EpochRecord
from tiny_runs import tiny_trainer

STEP = StepReport(epoch=2, epochs=12, row=25, rows=100, loss=2.0, tokens_per_second=12345.6, seconds_left=185)
WEIGHTS = 17_912_345
EPOCH = EpochRecord(
    epoch=2, step=20, train_loss=2.0, valid_loss=3.0, averaging=True, learning_rate=40.0, prune_rate=0.4567, seconds=61,
    train_perplexity=math.exp(2), valid_perplexity=math.exp(3), active_weights=WEIGHTS,
)  # fmt: skip
FOLDER = Path("runs/[bold]")


def paper(terminal: bool = False, width: int = 100) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=width, highlight=False, color_system=None), file


def test_an_epoch_is_one_line():
    assert epoch_line(EPOCH, WEIGHTS, epochs=12, seconds_left=600, best=True) == (
        "epoch  2/12  train     7.39  valid    20.09  10 min 00 s left  averaged, rewired 45.7 %, best"
    )
    quiet = dataclasses.replace(EPOCH, averaging=False, prune_rate=0.0, valid_perplexity=math.inf)
    assert epoch_line(quiet, WEIGHTS, epochs=12, seconds_left=600).endswith("valid      inf  10 min 00 s left")


def test_the_number_of_weights_is_told_when_it_changes():
    line = epoch_line(EPOCH, WEIGHTS + 1, epochs=12, seconds_left=600, best=True)
    assert line.endswith("averaged, 17,912,345 weights, best")


def test_what_prunes_is_not_called_rewired(texts: Path):
    console, file = paper()
    log = PlainLog(console, FOLDER)
    trainer = tiny_trainer(texts, method="gmp")
    log.on_start(trainer)
    log.on_epoch(dataclasses.replace(EPOCH, active_weights=trainer.sparsifier.active_weights))
    assert "averaged, pruned 45.7 %" in file.getvalue()


def test_the_longest_line_of_an_epoch_fits_a_page():
    longest = dataclasses.replace(EPOCH, epoch=100, train_perplexity=math.exp(345), valid_perplexity=math.exp(345))
    for weights in (WEIGHTS, WEIGHTS + 1):
        line = epoch_line(longest, weights, epochs=100, seconds_left=359999, best=True)
        assert len(line) <= PAGE


@pytest.mark.parametrize(
    ("value", "text"),
    [(87.456, "87.46"), (999_999.0, "999999.00"), (1.23e150, "1.2e+150"), (2.5e6, "2.5e+06"), (math.inf, "inf")],
)
def test_perplexities_of_diverged_networks_are_orders_of_magnitude(value: float, text: str):
    assert perplexity_text(value) == text


def test_the_plain_log_tells_of_epochs_and_of_long_ones_inside(texts: Path, monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(shown.time, "monotonic", lambda: now)
    console, file = paper(width=40)
    log = PlainLog(console, FOLDER)
    log.on_start(tiny_trainer(texts, epochs=12))
    file.truncate(file.seek(0))
    log.on_step(STEP)
    now = shown.LOG_SECONDS + 1
    log.on_step(STEP)
    log.on_step(STEP)
    log.on_epoch(EPOCH)
    log.on_note("averaging [starts] after epoch 3")
    assert file.getvalue().splitlines() == [
        "epoch 2/12  25 %  12,346 tokens/s  loss 2.000  perplexity 7.39  3 min 05 s left",
        "epoch  2/12  train     7.39  valid    20.09  0 s left  averaged, 17,912,345 weights",
        "averaging [starts] after epoch 3",
    ]


def test_a_terminal_gets_a_bar_and_a_file_a_log(texts: Path):
    terminal, file = paper(terminal=True)
    live = listener_for(terminal, FOLDER)
    assert isinstance(live, LiveProgress)
    live.on_start(tiny_trainer(texts))
    with live:
        live.on_step(STEP)
        live._progress.refresh()
        live.on_epoch(EPOCH)
    text = file.getvalue()
    assert "epoch 2/12" in text
    assert "12,346 tokens/s  loss 2.000" in text
    assert "valid    20.09" in text
    assert type(listener_for(paper()[0], FOLDER)) is PlainLog


def test_the_start_names_what_is_trained_whatever_its_name(texts: Path):
    console, file = paper(width=200)
    trainer = tiny_trainer(texts)
    trainer.corpus = dataclasses.replace(trainer.corpus, name="odd [/] name")
    active, total = trainer.sparsifier.active_weights, trainer.sparsifier.total_weights
    PlainLog(console, FOLDER).on_start(trainer)
    text = file.getvalue()
    assert "stacked-lstm on odd [/] name" in text
    assert "408 training tokens, 19 words" in text
    assert f"{active:,} of {total:,} weights exist (sparsity 60 %)" in text
    assert "run folder runs/[bold]" in text
    assert "is finished" not in text
    trainer.state.finished = True
    PlainLog(console, FOLDER).on_start(trainer)
    assert "The run in runs/[bold] is finished; this is its outcome." in file.getvalue()


SUMMARY: dict[str, Any] = {
    "test_perplexity": 123.456, "valid_perplexity": 130.2, "unigram_perplexity": 400.0, "best_epoch": 7,
    "vocabulary": 5000, "active_weights": 330_000, "total_weights": 1_000_000, "sparsity": 0.67,
    "active_parameters": 331_000, "total_parameters": 1_001_000, "seconds": 95.0, "steps": 4200,
    "peak_memory_mib": 512.3,
    "density": {
        "embedding.weight": {"all": 0.33, "unit": 0.33},
        "rnn.weight_hh_l0": {"input": 0.25, "forget": 0.4, "all": 0.33},
    },
}  # fmt: skip


def test_the_outcome_has_perplexities_weights_gates_and_the_folder():
    console, file = paper()
    show_outcome(console, SUMMARY, Path("runs/[x]-1"))
    text = file.getvalue()
    squeezed = [" ".join(line.split()) for line in text.splitlines()]
    assert "test perplexity 123.46 0.31 times the unigram perplexity" in squeezed
    assert "valid perplexity 130.20 best at epoch 7" in squeezed
    assert any(line.startswith("unigram perplexity 400.00") for line in squeezed)
    assert any(line.startswith("weights 330,000 of 1,000,000") and "67.0 %" in line for line in squeezed)
    assert any(line.startswith("parameters 331,000 of 1,001,000") for line in squeezed)
    assert "time 1 min 35 s 4,200 steps" in squeezed
    assert "peak memory 512 MiB of the process, including torch" in squeezed
    assert "matrix all input forget" in squeezed
    assert "rnn.weight_hh_l0 67.0 75.0 60.0" in squeezed
    assert "embedding.weight 67.0" in squeezed
    assert "The run is in runs/[x]-1." in squeezed


def test_additional_averages_have_a_row_each():
    console, file = paper()
    averages = {"nt-20": {"valid_perplexity": 131.25, "test_perplexity": 124.5, "best_epoch": 44}}
    show_outcome(console, {**SUMMARY, "averages": averages}, Path("runs/x"))
    squeezed = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert "test, average nt-20 124.50 valid 131.25, best at epoch 44" in squeezed


def test_a_peak_that_the_system_does_not_tell_is_left_out():
    console, file = paper()
    show_outcome(console, {**SUMMARY, "peak_memory_mib": None}, Path("runs/x"))
    assert "peak memory" not in file.getvalue()


def test_a_network_without_gates_has_no_columns_for_them():
    console, file = paper()
    show_outcome(console, {**SUMMARY, "density": {"rnn.weight_hh_l0": {"unit": 0.3, "all": 0.3}}}, Path("run"))
    assert "rnn.weight_hh_l0 70.0" in [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert "unit " not in file.getvalue()


def test_a_diverged_run_says_so():
    console, file = paper()
    show_outcome(console, SUMMARY, Path("run"))
    assert "diverged" not in file.getvalue()
    show_outcome(console, {**SUMMARY, "test_perplexity": 1.23e150, "valid_perplexity": 4.5e9}, Path("run"))
    text = " ".join(file.getvalue().split())
    assert "test perplexity 1.2e+150 valid perplexity 4.5e+09" in text
    assert "The run diverged: its perplexity is above 5,000, that of a uniform guess among its words." in text


def test_the_methods_fit_a_page_with_their_parts_whole_and_their_references():
    console, file = paper(width=200)
    show_methods(console, CONFIGURABLE_METHODS.values())
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= PAGE
    words = " ".join(file.getvalue().split())
    for expected in map(method_row, CONFIGURABLE_METHODS.values()):
        row = next(line.split() for line in lines if line.split() and line.split()[0] == expected["method"])
        assert row[1] == expected["allocation"]
        assert " ".join(row).startswith(" ".join([expected["method"], expected["allocation"], expected["removal"]]))
        assert f"{expected['method']} {expected['reference']}" in words
