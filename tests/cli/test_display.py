"""What a person sees."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from selfish_rnn.training.events import EpochReport, StepReport

from selfish_rnn.cli import display as shown
from selfish_rnn.cli.display import LiveProgress, PlainLog, duration, epoch_line, listener_for, show_outcome, show_start
from tiny_runs import tiny_experiment

STEP = StepReport(
    epoch=2, epochs=12, row=25, rows=100, loss=2.0, tokens_per_second=12345.6, seconds_left=185, active_weights=1234567
)
EPOCH = EpochReport(
    epoch=2, epochs=12, train_loss=2.0, valid_loss=3.0, best=True, averaging=True, learning_rate=40.0, rewired=0.4567,
    pruned=0.0, active_weights=1234567, seconds=61, seconds_left=600,
)  # fmt: skip


def paper(terminal: bool = False, width: int = 100) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=width, highlight=False, color_system=None), file


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7830, "2 h 10 min"),
        (360000, "100 h 00 min"),
    ],
)
def test_durations_as_a_person_says_them(seconds: float, text: str):
    assert duration(seconds) == text


def test_an_epoch_is_one_line():
    assert epoch_line(EPOCH) == (
        "epoch  2/12  train perplexity     7.39  valid perplexity    20.09  1,234,567 weights  "
        "1 min 01 s, 10 min 00 s left  averaged, then rewired 45.7 %, best so far"
    )
    quiet = dataclasses.replace(EPOCH, averaging=False, rewired=0.0, best=False, valid_loss=9999.0)
    assert epoch_line(quiet).endswith("valid perplexity      inf  1,234,567 weights  1 min 01 s, 10 min 00 s left")


def test_the_plain_log_tells_of_epochs_and_of_long_ones_inside(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(shown.time, "monotonic", lambda: now)
    console, file = paper(width=40)
    log = PlainLog(console)
    log.on_step(STEP)
    now = shown.LOG_SECONDS + 1
    log.on_step(STEP)
    log.on_step(STEP)
    log.on_epoch(EPOCH)
    log.on_note("averaging [starts] after epoch 3")
    assert file.getvalue().splitlines() == [
        "epoch 2/12  25 %  12,346 tokens/s  loss 2.000  perplexity 7.4  1,234,567 weights  3 min 05 s left",
        epoch_line(EPOCH),
        "averaging [starts] after epoch 3",
    ]


def test_a_terminal_gets_a_bar_and_a_file_a_log():
    terminal, file = paper(terminal=True)
    live = listener_for(terminal)
    assert isinstance(live, LiveProgress)
    with live:
        live.on_step(STEP)
        live._progress.refresh()
        live.on_epoch(EPOCH)
    text = file.getvalue()
    assert "epoch 2/12" in text
    assert "12,346 tokens/s  loss 2.000" in text
    assert "valid perplexity    20.09" in text
    assert type(listener_for(paper()[0])) is PlainLog


def test_the_start_names_what_is_trained_whatever_its_name(texts: Path):
    console, file = paper(width=200)
    watched = SimpleNamespace(
        sparsifier=SimpleNamespace(active_weights=400, total_weights=1000),
        corpus=SimpleNamespace(name="odd [/] name", train=range(4321), vocabulary=range(99)),
    )
    show_start(console, tiny_experiment(texts), watched, Path("runs/[bold]"))
    text = file.getvalue()
    assert "stacked-lstm on odd [/] name" in text
    assert "4,321 training tokens, 99 words" in text
    assert "400 of 1,000 weights exist (sparsity 60 %)" in text
    assert "run folder runs/[bold]" in text


SUMMARY: dict[str, Any] = {
    "test_perplexity": 123.456, "valid_perplexity": 130.2, "unigram_perplexity": 400.0, "best_epoch": 7,
    "active_weights": 330_000, "total_weights": 1_000_000, "sparsity": 0.67, "active_parameters": 331_000,
    "total_parameters": 1_001_000, "seconds": 95.0, "steps": 4200,
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
    assert "peak memory 512 MiB of the process, torch included" in squeezed
    assert "matrix all input forget" in squeezed
    assert "rnn.weight_hh_l0 67.0 75.0 60.0" in squeezed
    assert "embedding.weight 67.0" in squeezed
    assert "The run is in runs/[x]-1." in squeezed


def test_a_peak_that_the_system_does_not_tell_is_left_out():
    console, file = paper()
    show_outcome(console, {**SUMMARY, "peak_memory_mib": None}, Path("runs/x"))
    assert "peak memory" not in file.getvalue()


def test_a_network_without_gates_has_no_columns_for_them():
    console, file = paper()
    show_outcome(console, {**SUMMARY, "density": {"rnn.weight_hh_l0": {"unit": 0.3, "all": 0.3}}}, Path("run"))
    assert "rnn.weight_hh_l0 70.0" in [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert "unit " not in file.getvalue()
