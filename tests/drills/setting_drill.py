"""Random settings: each is refused in one line of bounded length, or can be written, read again and trained."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from drill import LONGEST_MESSAGE, SCRATCH, FailedError, Outcome, in_children, quiet, source

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.optimizers import OPTIMIZERS
from selfish_rnn.experiment.presets import (
    Settings,
    build_experiment,
    parse,
    preset_names,
    read_config,
    read_preset,
    to_yaml,
    with_assignments,
    with_settings,
)
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.runs.run import Run
from selfish_rnn.topology import METHODS
from tiny_runs import TINY_MODELS, tiny_settings, write_corpus

LONGEST_ERROR = 2 * LONGEST_MESSAGE

INNER = {
    "model": ("name", "hidden", "embedding", "layers", "dropout", "depth", "chunk", "experts", "tied", "init_range"),
    "optimizer": ("name", "lr", "weight_decay", "betas", "eps", "momentum", "nonmono", "average_from", "drop", "x"),
    "method": ("name", "allocation", "removal", "pool", "growth", "redistribution", "pruning", "strength"),
}
NAMES = (
    *TINY_MODELS, *OPTIMIZERS, *METHODS, "iss", "small-dense", "cosine", "auto", "packed", "masked", "cuda", "cpu:0",
)  # fmt: skip
VALUES = (
    "[{kind: nt, from: 1}]", "[{kind: snt}, {kind: nt, from: .5}]",
    "", "0", "1", "-1", "2", "3", "7", "1000", "1e3", "1e-3", "0.5", "0.9", "1.0", "1e308", "-0.0", ".inf",
    "-.inf", ".nan", "null", "true", "yes", "[]", "[1]", "[0.9, 0.999]", "[1, 1]", "{}", "{a: 1}",
    "{factor: 2, patience: 1}", "x", "'", '"', "a: b", "*a", "&a", "!!int 3", "!!python/name:os.system",
    "2020-99-99", "12:30:45", "0x1f", "0o17", "0b1", "1_000", "2147483648", "9223372036854775808", "1" * 400, "~",
    "?", "|", ">", "%", "@", "`", "\u202e", "\x1b[2J", "é" * 50, "[" * 60,
)  # fmt: skip


def drill(tries: int, seed: int) -> Outcome:
    presets = [read_preset(name)[0] for name in preset_names()]
    with tempfile.TemporaryDirectory(prefix="drill-", dir=SCRATCH) as name:
        folder = Path(name)
        texts = write_corpus(folder / "texts", train_lines=40)
        tiny = tiny_settings(texts)

        def attempt(number: int) -> str:
            chosen = source(seed, number)
            try:
                experiment = _experiment(chosen, folder / f"{number}.yaml", chosen.choice((*presets, *[tiny] * 4)))
            except UserError as error:
                return _refused(error)
            if build_experiment(parse(to_yaml(experiment)), "again") != experiment:
                raise FailedError("another experiment after it was written and read")
            if chosen.random() > 0.03:
                return "passed"
            return _trained(experiment, texts, folder / f"run-{number}")

        return in_children("settings", tries, seed, attempt, patience=120)


def _refused(error: UserError) -> str:
    if len(str(error)) > LONGEST_ERROR:
        raise FailedError(f"a message of {len(str(error))} characters")
    return "refused"


def _experiment(chosen: random.Random, path: Path, base: Settings) -> Experiment:
    """Words on top of a preset or of tiny settings, sometimes with a file of YAML between them."""
    if chosen.random() < 0.3:
        try:
            path.write_bytes(_yaml(chosen))
            base = with_settings(base, read_config(path))
        finally:
            path.unlink(missing_ok=True)
    words = [_word(chosen) for _ in range(chosen.choice((0, 1, 1, 2, 4)))]
    return build_experiment(with_assignments(base, words), "settings")


def _key(chosen: random.Random) -> str:
    key = chosen.choice((*Experiment.model_fields, "x", "model", "optimizer", "method"))
    return f"{key}.{chosen.choice(INNER[key])}" if key in INNER and chosen.random() < 0.8 else key


def _value(chosen: random.Random) -> str:
    kind = chosen.random()
    if kind < 0.35:
        return chosen.choice(VALUES)
    if kind < 0.6:
        return chosen.choice(NAMES)
    if kind < 0.8:
        return str(chosen.choice((chosen.randrange(-3, 100), chosen.random(), 10 ** chosen.randrange(25))))
    return "".join(
        chr(chosen.choice((chosen.randrange(128), chosen.randrange(0x2000)))) for _ in range(chosen.randrange(12))
    )


def _word(chosen: random.Random) -> str:
    word = f"{_key(chosen)}={_value(chosen)}"
    return word if chosen.random() < 0.95 else word.replace("=", chosen.choice(("", "==", ".", "=.")))


def _yaml(chosen: random.Random) -> bytes:
    lines = [f"{_key(chosen).partition('.')[0]}: {_value(chosen)}" for _ in range(chosen.randrange(6))]
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    if chosen.random() < 0.3 and text:
        damaged = bytearray(text)
        for _ in range(3):
            damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        text = bytes(damaged)
    return text


def _trained(experiment: Experiment, texts: Path, path: Path) -> str:
    """Train what passed, made small: it ends, or is refused in one line."""
    quiet()
    settings = experiment.model_dump(mode="json")
    small: dict[str, Any] = {"corpus": str(texts), "epochs": 1, "threads": 1, "checkpoint_every": 10.0, "window": 11}
    sizes = {key: min(value, 12) for key, value in settings["model"].items() if type(value) is int}
    small["model"] = {**settings["model"], **sizes}
    small.update(
        {key: min(settings[key], 8) for key in ("batch_size", "sub_batches", "valid_batch_size", "test_batch_size")}
    )
    try:
        Run.start(build_experiment({**settings, **small}, "small"), path).train()
    except UserError as error:
        return f"{_refused(error)} before or while it was trained"
    return "trained"
