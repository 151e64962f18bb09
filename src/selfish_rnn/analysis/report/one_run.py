"""The sections of a report about a single run: outcome, sample text, sparsity, settings and next steps."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfish_rnn.analysis.networks import gate_name, with_gates
from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.analysis.report.comparison import command_of
from selfish_rnn.analysis.report.markup import (
    NOTHING,
    Cell,
    Markup,
    concatenated,
    duration,
    number,
    section,
    table,
    tag,
)
from selfish_rnn.analysis.training_flops import run_flops
from selfish_rnn.experiment.comparison import flat
from selfish_rnn.runs.export import Precision, export
from selfish_rnn.runs.run import Run
from selfish_rnn.text import counted
from selfish_rnn.topology.gates import WHOLE
from selfish_rnn.training.evaluation import generate

SAMPLE_WORDS = 80
"""Length of the sample text."""

SAMPLE_SEED = 1
"""Random seed of the sample text, so that the same run gives the same page."""

MEGABYTE = 1e6


@dataclass(frozen=True)
class ModelFacts:
    """Facts that need the model of a run: a sample text, and the sizes of exported files in bytes."""

    sample: str
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, record: RunRecord) -> ModelFacts | None:
        """Return the facts of a run, or None if its folder has no model that this version can read."""
        if record.path is None:
            return None
        try:
            run = Run.open(record.path)
            model = run.model()
            sample = generate(
                model, model.vocabulary, "", tokens=SAMPLE_WORDS, temperature=0.8, top=0, seed=SAMPLE_SEED
            )
            return cls("\n".join(filter(str.strip, sample.splitlines())), _export_sizes(run))
        except (ValueError, RuntimeError):
            return None


def _export_sizes(run: Run) -> dict[str, int]:
    """Return the size of the exported model at every precision that the model supports."""
    sizes: dict[str, int] = {}
    precisions: tuple[Precision, ...] = ("float32", "int8")
    with tempfile.TemporaryDirectory() as folder:
        for precision in precisions:
            path = Path(folder) / precision
            try:
                export(run, path, precision=precision)
            except ValueError:  # int8 is for sparse models
                continue
            sizes[precision] = path.stat().st_size
    return sizes


def outcome(record: RunRecord, facts: ModelFacts | None, machine: str, notes: list[str]) -> Markup:
    """Return the table of results of a run."""
    summary: Mapping[str, Any] = record.summary or {}
    last = record.epochs[-1]
    rows: list[list[object]] = []
    test, unigram = record.test_perplexity, summary.get("unigram_perplexity")
    if test is None:
        verdict = f"The run is not finished: epoch {last.epoch} of {record.settings.get('epochs')}."
    else:
        verdict = f"Test perplexity {test:,.2f}"
        verdict += f", {test / unigram:.2f} times that of word frequencies alone." if unigram else "."
        rows.append(["test perplexity", number(test), "of the best model"])
    best = summary.get("best_epoch")
    rows.append(
        ["validation perplexity", number(record.valid_perplexity), f"best at epoch {best}" if best else "so far"]
    )
    if unigram is not None:
        rows.append(["unigram perplexity", number(unigram), "of the test text, by word counts alone"])
    total = f"of {last.total_weights:,} (sparsity {100 * last.sparsity:.1f} %)" if last.total_weights else ""
    rows.append(["weights", Cell(f"{last.active_weights:,}", last.active_weights), total])
    rows += _sizes(summary, facts)
    steps = f", {summary['steps']:,} updates" if "steps" in summary else ""
    rows.append(["training time", duration(record.seconds), f"{counted(last.epoch, 'epoch')}{steps}; {machine}"])
    if summary.get("peak_memory_mib") is not None:
        rows.append(["peak memory", number(summary["peak_memory_mib"], 0, " MiB"), "of the process, including torch"])
    rows += _flops_rows(record)
    facts_table = table(["", "value", ""], rows, caption="Results of the run", sortable=False, title=False)
    return section("outcome", "Outcome", tag("p", verdict, class_="verdict"), facts_table,
                   *(tag("p", note, class_="note") for note in notes))  # fmt: skip


def _sizes(summary: Mapping[str, Any], facts: ModelFacts | None) -> list[list[object]]:
    """Return rows on the sizes of exported files, relative to the dense network in float32."""
    dense = 4 * summary.get("total_parameters", 0)
    rows: list[list[object]] = []
    for precision, size in (facts.sizes if facts else {}).items():
        share = f"{100 * size / dense:.0f} % of the dense weights in float32" if dense else ""
        rows.append([f"export, {precision}", number(size / MEGABYTE, 2, " MB"), share])
    return rows


def _flops_rows(record: RunRecord) -> list[list[object]]:
    """Return rows on FLOPs, if the folder has the facts."""
    if record.path is None:
        return []
    try:
        flops = run_flops(Run.open(record.path))
    except ValueError:
        return []
    return [
        [f"{name} FLOPs", Cell(f"{count:.3g}", count), f"{ratio:.2f} of the dense network"]
        for name, count, ratio in (
            ("training", flops.training, flops.training_ratio),
            ("inference", flops.inference, flops.inference_ratio),
        )
    ]


def sample(facts: ModelFacts) -> Markup:
    """Return the section with the sample text."""
    about = f"{SAMPLE_WORDS} words that the best model wrote (temperature 0.8)."
    return section("sample", "Sample text", tag("p", about), tag("blockquote", facts.sample))


def sparsity(record: RunRecord) -> Markup | None:
    """Return a table of the sparsity of every matrix and gate; None without densities."""
    density = record.epochs[-1].density
    if not density:
        return None
    gated = with_gates(density)
    gates = [gate for gate in dict.fromkeys(gate for by_gate in gated.values() for gate in by_gate) if gate != WHOLE]
    rows = [
        [_breakable(name), *(_share(by_gate, gate, name in gated) for gate in (WHOLE, *gates))]
        for name, by_gate in density.items()
    ]
    headings = ["matrix", "all", *map(gate_name, gates)]
    caption = "Percentage of zeros at the end of training."
    return section("gates", "Sparsity by gate", tag("div", table(headings, rows, caption=caption), class_="matrices"))


def _breakable(name: str) -> Markup:
    """Return a dotted name that may be broken behind its dots and underscores."""
    parts = re.split(r"(?<=[._])", name)
    return Markup("<wbr>".join(concatenated(part) for part in parts))


def _share(density: Mapping[str, float], gate: str, gated: bool) -> Cell:
    if gate not in density or (gate != WHOLE and not gated):
        return Cell(NOTHING)
    return number(100 * (1 - density[gate]), 1)


def settings(record: RunRecord) -> Markup:
    """Return the section with all settings, closed."""
    values = flat(record.settings)
    rows = [[tag("code", key), "none" if value is None else str(value)] for key, value in values.items()]
    inner = table(["key", "value"], rows, caption="Settings of the run", sortable=False, title=False)
    details = tag("details", tag("summary", f"All {counted(len(values), 'setting')}"), inner)
    pre = tag("pre", command_of(record), tabindex=0)
    copy = tag("button", "Copy", type="button", class_="copy")
    return section("settings", "Settings", tag("p", "This command trains the same network."), pre, copy, details)


def next_steps(record: RunRecord) -> Markup:
    """Return commands to try with the run."""
    folder = shlex.quote(record.path.as_posix() if record.path is not None else record.name)
    config = f"--config {folder}/config.yaml"
    method = str(record.method)
    variant = "selfish" if method == "static" else "static"
    steps = [
        ("Continue the text", f"selfish-rnn generate {folder} --prompt 'the'"),
        ("Export it in int8", f"selfish-rnn export {folder} --precision int8"),
        ("Compare with another method", f"selfish-rnn train {config} method={variant}"),
        ("Measure chance with another seed", f"selfish-rnn train {config} seed=2"),
        ("Try a higher sparsity", f"selfish-rnn train {config} sparsity={_sparser(record):g}"),
    ]
    if not record.finished:
        steps = [("Finish the run", f"selfish-rnn resume {folder}"), *steps[:1]]
    rows = [[words, tag("code", command)] for words, command in steps]
    return section(
        "next", "What to try next", table(["", "command"], rows, caption="Commands", sortable=False, title=False)
    )


def _sparser(record: RunRecord) -> float:
    """Return a sparsity with half of the weights of the run."""
    sparsity = record.epochs[-1].sparsity
    return round((1 + sparsity) / 2, 2)
