"""Whole runs with the packed engine: the same as with the masked one, and from one to the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import selfish_rnn
from selfish_rnn import METHODS, UserError
from selfish_rnn.corpora import load_corpus
from selfish_rnn.engine import PackedWeight, available, library
from selfish_rnn.experiment.presets import build_experiment, read_preset, with_settings
from selfish_rnn.runs.export import export, load_model
from selfish_rnn.runs.run import Run, experiment_corpus
from selfish_rnn.training import engine_choice as engines
from selfish_rnn.training.engine_choice import choose_engine
from selfish_rnn.training.evaluation import generate
from selfish_rnn.training.trainer import Trainer
from tiny_runs import (
    OPTIMIZERS,
    TINY_MODELS,
    Recorder,
    budget_of,
    finished_run,
    result_of,
    run_in_parts,
    stop_after,
    tiny_experiment,
    tiny_run,
    trained,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="the kernels were not built (no C++ compiler)"),
]

PACKABLE = [name for name in METHODS if name not in ("snfs", "dense")]


def topologies(trainer: Trainer) -> list[Tensor]:
    return [weight.topology.positions for weight in trainer.sparsifier.weights]


def packed_weights(model: torch.nn.Module) -> list[PackedWeight]:
    return [module for module in model.modules() if isinstance(module, PackedWeight)]


def same_run(texts: Path, **changes: Any) -> Trainer:
    """Same weights at the same places, same losses to rounding; the trainer of the packed run."""
    masked, packed = (trained(texts, engine=engine, **changes) for engine in ("masked", "packed"))
    assert not packed_weights(masked.trainer.model)
    assert packed_weights(packed.trainer.model)
    for one, other in zip(topologies(masked.trainer), topologies(packed.trainer), strict=True):
        assert torch.equal(one, other)
    for first, second in zip(masked.epochs, packed.epochs, strict=True):
        assert first.density == second.density
        assert first.train_loss == pytest.approx(second.train_loss, abs=1e-4)
        assert first.valid_loss == pytest.approx(second.valid_loss, abs=1e-4)
    trainer: Trainer = packed.trainer
    return trainer


@pytest.mark.parametrize("optimizer", ["snt-asgd", "adam", "momentum-sgd"])
@pytest.mark.parametrize("method", PACKABLE)
def test_every_method_is_the_same_run_in_both_engines(method: str, optimizer: str, texts: Path) -> None:
    same_run(texts, method=method, optimizer=OPTIMIZERS[optimizer])


# The gradient of some weights of an ON-LSTM's master gates is zero but for rounding, and these are the first to go:
# which of them is not the same in both engines.
@pytest.mark.parametrize(
    ("model", "method"),
    [
        (model, method)
        for model in TINY_MODELS
        for method in (("static", "rigl") if model == "on-lstm" else ("selfish", "rigl"))
    ],
)
def test_every_model_is_the_same_run_in_both_engines(model: str, method: str, texts: Path) -> None:
    packed = same_run(texts, model={"name": model, **TINY_MODELS[model]}, method=method)
    assert packed.sparsifier.active_weights == budget_of(packed)


def test_rewiring_every_few_updates_is_the_same_in_both_engines(texts: Path) -> None:
    same_run(texts, method="rigl", rewire_every=3, sub_batches=2)


def test_a_quickstart_is_the_same_run_in_both_engines_to_rounding() -> None:
    """Of its own size, rewired often.

    Among half a million weights there are always a few so close to each other that rounding decides which one goes. It
    stays at these few: what else goes and grows is the same.
    """
    settings, _ = read_preset("quickstart")
    changes: dict[str, Any] = {"train_tokens": 6000, "epochs": 1, "rewire_every": 12, "threads": 1}
    found: dict[str, list[Any]] = {}
    for engine in ("masked", "packed"):
        experiment = build_experiment(with_settings(settings, {**changes, "engine": engine}), "test")
        seen: list[Any] = []
        found[engine] = seen
        trainer: Any = None

        def note(report: Any, seen: list[Any] = seen) -> None:
            seen.append((report.loss, topologies(trainer)))  # noqa: B023

        trainer = Trainer(experiment, experiment_corpus(experiment), Recorder(note))
        trainer.run()
    assert len(found["masked"]) == len(found["packed"]) > 25
    for step, (one, other) in enumerate(zip(found["masked"], found["packed"], strict=True), start=1):
        assert one[0] == pytest.approx(other[0], abs=1e-4)
        if step < 12:
            assert all(map(torch.equal, one[1], other[1]))
        common = sum(int(torch.isin(a, b).sum()) for a, b in zip(one[1], other[1], strict=True))
        assert common >= 0.9999 * sum(map(len, one[1]))


@pytest.mark.parametrize("engine", ["masked", "packed"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_of_one_engine_is_continued_by_the_other(
    optimizer: str, engine: str, texts: Path, tmp_path: Path
) -> None:
    other = {"masked": "packed", "packed": "masked"}[engine]
    changes: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer], "epochs": 4}
    whole = trained(texts, **changes)
    stop_after(tiny_run(texts, tmp_path / "parts", engine=engine, **changes), 24)
    second = Recorder()
    Run.open(tmp_path / "parts", engine=other).train(second)
    assert bool(packed_weights(second.trainer.model)) == (other == "packed")
    for one, two in zip(topologies(whole.trainer), topologies(second.trainer), strict=True):
        assert torch.equal(one, two)
    records = Run.open(tmp_path / "parts").folder.metrics.read()
    for record, expected in zip(records, whole.epochs, strict=True):
        assert record.valid_loss == pytest.approx(expected.valid_loss, abs=1e-4)


def test_a_packed_run_resumes_bit_identically(texts: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"engine": "packed", "optimizer": OPTIMIZERS["snt-asgd"]}
    finished_run(texts, tmp_path / "whole", **changes)
    run_in_parts(texts, tmp_path / "parts", 14, **changes)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")


# Choosing


def test_methods_that_cannot_be_packed_say_so(texts: Path) -> None:
    words = len(load_corpus(texts).vocabulary)
    for method, reason in (("snfs", "momentum of all positions"), ("dense", "no zeros"), ("iss", "no zeros")):
        choice = choose_engine(tiny_experiment(texts, method=method, engine="packed"), words)
        assert choice.engine == "masked"
        assert choice.reason is not None
        assert reason in choice.reason


def test_auto_takes_what_is_faster_and_says_so(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ratio, engine in ((2.0, "packed"), (1.0, "masked")):
        monkeypatch.setattr(engines, "_measure", lambda *_, ratio=ratio: ratio)
        run, recorder = tiny_run(texts, tmp_path / engine, engine="auto", epochs=1), Recorder()
        assert run.experiment.engine == engine
        run.train(recorder)
        assert any(f"{ratio:.1f} times as fast" in note for note in recorder.notes)
        # A resumed run does not measure again.
        assert Run.open(tmp_path / engine).experiment.engine == engine


@pytest.mark.parametrize(
    ("changes", "words", "memory", "reason"),
    [
        (
            {"model": {"name": "stacked-lstm", "embedding": 512, "hidden": 512}},
            9000,
            2**40,
            "known to be faster for 13,4",
        ),
        ({"model": {"name": "stacked-gru", "hidden": 40_000}, "sparsity": 0.99}, 30, 2**33, r"takes 1\d\d GiB"),
        ({"model": {"name": "stacked-lstm", "hidden": 512}, "sparsity": 0.3}, 9000, 2**40, "measured"),
        ({"model": {"name": "stacked-gru", "hidden": 1500}}, 9000, 2**40, "measured"),
        ({"model": {"name": "rhn", "hidden": 830}, "method": "gmp"}, 9000, 2**40, "measured"),
        ({"model": {"name": "rhn", "hidden": 830}, "window": 5}, 9000, 2**40, "measured"),
        ({}, 30, None, "measured"),
    ],
)
def test_auto_measures_only_where_no_rule_knows(
    changes: dict[str, Any], words: int, memory: int | None, reason: str, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> float:
        raise RuntimeError("measured")

    monkeypatch.setattr(engines, "_measure", measure)
    monkeypatch.setattr(engines, "available_memory", lambda: memory)
    experiment = tiny_experiment(texts, **{"engine": "auto", "window": 35, **changes})
    if reason == "measured":
        with pytest.raises(RuntimeError, match=reason):
            choose_engine(experiment, words)
    else:
        choice = choose_engine(experiment, words)
        assert choice.engine == "packed"
        assert re.search(reason, choice.reason or "")


def test_auto_measures(texts: Path) -> None:
    choice = choose_engine(tiny_experiment(texts, engine="auto"), 30)
    assert choice.engine in ("masked", "packed")
    assert "short measurement" in (choice.reason or "")


@pytest.mark.parametrize(
    ("times", "engine", "said"),
    [
        ([4.0, 2.0], "packed", "2.0 times as fast as masked"),  # clear at once
        ([3.6, 4.0, 4.0, 2.0], "packed", "1.8 times"),  # packed was slowed down the first time
        ([4.0, 3.9, 4.0, 3.9, 3.9, 3.9], "masked", "packed is 1.0 times"),
        ([2.0, 4.0, 2.0, 4.0, 2.0, 4.0], "masked", "packed is 0.5 times"),
    ],
)
def test_auto_does_not_decide_on_one_noisy_measurement(
    times: list[float], engine: str, said: str, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(times)
    asked = []
    monkeypatch.setattr(engines, "_seconds", lambda *arguments: asked.append(arguments[2]) or next(left))
    choice = choose_engine(tiny_experiment(texts, engine="auto"), 30)
    assert choice.engine == engine
    assert said in (choice.reason or "")
    assert asked == ["masked", "packed"] * (len(times) // 2)


def test_without_kernels_auto_is_masked_and_packed_is_refused(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "available", lambda: False)
    choice = choose_engine(tiny_experiment(texts, engine="auto"), 30)
    assert choice.engine == "masked"
    assert "C++ compiler" in (choice.reason or "")
    with pytest.raises(UserError, match=r"engine=packed.*C\+\+ compiler"):
        choose_engine(tiny_experiment(texts, engine="packed"), 30)


# Exporting


@pytest.mark.parametrize("model", TINY_MODELS)
@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_an_exported_model_says_what_the_run_s_says(engine: str, model: str, texts: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model": {"name": model, **TINY_MODELS[model]}, "epochs": 1, "engine": engine}
    run = tiny_run(texts, tmp_path / "run", **changes)
    run.train()
    export(run, tmp_path / "model.safetensors")
    best = run.model()
    tokens = torch.randint(len(run.vocabulary), (5, 3))
    with torch.no_grad():
        expected = best(tokens)[0]
        for packed in (True, False):
            loaded = load_model(tmp_path / "model.safetensors", packed=packed)
            assert bool(packed_weights(loaded)) == packed
            assert torch.allclose(loaded(tokens)[0], expected, atol=1e-5)
    loaded = selfish_rnn.load_model(tmp_path / "model.safetensors")
    texts_of_both = [generate(each, loaded.vocabulary, "the cat", tokens=8, temperature=0.0) for each in (best, loaded)]
    assert texts_of_both[0] == texts_of_both[1]


def test_what_is_no_exported_model_is_refused(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a file"):
        load_model(tmp_path / "missing.safetensors")
    run = tiny_run(texts, tmp_path / "run", epochs=1)
    with pytest.raises(UserError, match="no epoch is finished yet: selfish-rnn resume"):
        export(run, tmp_path / "model.safetensors")
    run.train()
    with pytest.raises(UserError, match="is not an exported model, it has no format"):
        load_model(tmp_path / "run" / "model.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"bad\.safetensors is not an exported model: make one"):
        load_model(tmp_path / "bad.safetensors")
    export(run, tmp_path / "model.safetensors")
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        load_model(tmp_path / "model.safetensors")


def test_the_kernels_in_use_are_those_of_this_processor() -> None:
    assert library.target() == library.targets()[-1]
