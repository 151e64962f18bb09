"""Lightning trains sparse modules, resumes them, and validates averages."""

from __future__ import annotations

import logging
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from framework_cases import ENGINES, Classifier, examples, same
from torch import nn
from torch.utils.data import DataLoader

from selfish_rnn import SNTASGD

pytest.importorskip("lightning", reason="needs the extra lightning")
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging

from selfish_rnn.integrations.lightning import SelfishCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*(num_workers|logging interval|litlogger|exists and is not empty|LeafSpec|dirpath has changed)"
    ),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

EPOCHS = 4


class Module(LightningModule):
    def __init__(self, optimizer: str = "adam") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.model = Classifier()
        self.kind = optimizer
        self.validated: list[bool] = []

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.loss(batch)

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        scores: torch.Tensor = self.model(batch[0])
        return scores

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", self.loss(batch))
        if not self.trainer.optimizers:  # validate, not fit
            return
        self.validated.append(getattr(self.optimizers().optimizer, "averages_swapped_in", False))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.kind == "snt-asgd":
            return SNTASGD(self.parameters(), lr=1.0, nonmono=0)
        return torch.optim.Adam(self.parameters(), lr=0.01)


def silent_trainer(*callbacks: Any, epochs: int = EPOCHS, kind: Any = Trainer) -> Any:
    silent: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    keep = {} if any(isinstance(each, ModelCheckpoint) for each in callbacks) else {"enable_checkpointing": False}
    return kind(max_epochs=epochs, accelerator="cpu", callbacks=list(callbacks), **silent, **keep)


def fit(
    callback: SelfishCallback, *others: Any, module: Module | None = None, epochs: int = EPOCHS, **given: Any
) -> Module:
    module = Module() if module is None else module
    loader = DataLoader(examples(), 8)
    silent_trainer(callback, *others, epochs=epochs).fit(module, loader, loader, **given)
    return module


def nonzeros(module: Module) -> int:
    return sum(int(each.count_nonzero()) for each in module.parameters() if each.ndim > 1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("method", "optimizer"), [("selfish", "snt-asgd"), ("rigl", "adam"), ("gmp", "adam")])
@pytest.mark.parametrize("at", ["validation", "end"])
def test_a_resumed_training_is_bit_identical(engine: Any, method: str, optimizer: str, at: str, tmp_path: Path) -> None:
    def train(folder: str, checkpoint: Path | None) -> tuple[Module, SelfishCallback]:
        monitor = "val_loss" if optimizer == "snt-asgd" else None
        callback = SelfishCallback(sparsity=0.7, method=method, engine=engine, monitor=monitor)
        keep = ModelCheckpoint(tmp_path / folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=at == "end")
        return fit(callback, keep, module=Module(optimizer), ckpt_path=checkpoint), callback

    module, callback = train("first", None)
    resumed, resumed_callback = train("second", tmp_path / "first" / "epoch=1.ckpt")
    assert same(module, resumed)
    assert callback.sparsifier.rewirings_done == resumed_callback.sparsifier.rewirings_done == EPOCHS - 1
    assert callback.sparsifier.active_weights == callback.sparsifier.target_weights == round(0.3 * 792)


def test_the_weights_in_a_checkpoint_are_those_that_were_validated(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    callback = SelfishCallback(sparsity=0.7, prune_rate=0.9, schedule="constant")
    fit(callback, keep)
    saved = torch.load(tmp_path / "epoch=2.ckpt", weights_only=True)
    trained = sum(int((value != 0).sum()) for key, value in saved["state_dict"].items() if "weight" in key)
    assert trained == callback.sparsifier.active_weights  # right after a rewiring most would be grown, and zero


@pytest.mark.parametrize("engine", ENGINES)
def test_validations_see_averages_once_there_are_any(engine: Any) -> None:
    callback = SelfishCallback(sparsity=0.7, engine=engine, monitor="val_loss")
    module = fit(callback, module=Module("snt-asgd"))
    assert all(module.validated)
    optimizer = module.optimizers().optimizer
    assert not optimizer.averages_swapped_in
    assert len(optimizer.trigger.losses) == EPOCHS  # not that of the sanity check before


def test_an_optimizer_that_nobody_tells_of_validation_losses_is_named() -> None:
    with pytest.warns(UserWarning, match="monitor="):
        fit(SelfishCallback(sparsity=0.7), module=Module("snt-asgd"))


def test_a_monitor_that_is_not_logged_is_named() -> None:
    with pytest.raises(ValueError, match="monitor='loss' is not a metric of this validation; available: val_loss"):
        fit(SelfishCallback(sparsity=0.7, monitor="loss"), module=Module("snt-asgd"))


@pytest.mark.parametrize("first", [True, False])
def test_stochastic_weight_averaging_leaves_no_weight_outside_the_topology(first: bool) -> None:
    callback, averages = SelfishCallback(sparsity=0.7), StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2)
    module = fit(*((callback, averages) if first else (averages, callback)))  # type: ignore[arg-type]
    assert averages.n_averaged is not None
    assert averages.n_averaged == 3
    weights = dict(module.named_parameters())
    assert not any(weights[name][~mask].any() for name, mask in callback.sparsifier.masks().items())
    # It averages when an epoch begins, so what has grown just then is zero in the average.
    assert 0.8 * round(0.3 * 792) < nonzeros(module) <= callback.sparsifier.active_weights


def test_moving_averages_are_validated() -> None:
    callback = SelfishCallback(sparsity=0.7)
    module = fit(callback, EMAWeightAveraging(decay=0.9))
    assert nonzeros(module) == callback.sparsifier.active_weights


@pytest.mark.skipif("packed" not in ENGINES, reason="needs the packed engine")
@pytest.mark.parametrize(
    "averages", [StochasticWeightAveraging(swa_lrs=0.01), EMAWeightAveraging()], ids=["swa", "ema"]
)
def test_averages_over_packed_weights_of_different_positions_are_refused(averages: Any) -> None:
    with pytest.raises(ValueError, match='use engine="masked", or the optimizer selfish_rnn'):
        fit(SelfishCallback(sparsity=0.7, engine="packed"), averages)


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_may_rewire_by_themselves(engine: Any) -> None:
    callback = SelfishCallback(sparsity=0.7, engine=engine, method="rigl", rewire_every=6, rewirings=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(callback)
    assert callback.sparsifier.rewirings_done == 3


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match='engine is "masked" or "packed", got \'dense\''):
        SelfishCallback(engine="dense", sparsity=0.5)  # type: ignore[arg-type]


# A second training


@pytest.mark.parametrize("engine", ENGINES)
def test_another_fit_with_the_same_callback_starts_the_schedule_again(engine: Any) -> None:
    callback = SelfishCallback(sparsity=0.7, engine=engine)
    module = fit(callback)
    for epochs in (EPOCHS, 6):
        before = callback.sparsifier.masks()
        rates = rates_of(callback, module, epochs)
        assert rates == pytest.approx([0.25 * (1 + math.cos(math.pi * done / epochs)) for done in range(1, epochs)])
        assert callback.sparsifier.rewirings_done == epochs - 1
        assert callback.sparsifier.rewirings == epochs
        assert any((mask != before[name]).any() for name, mask in callback.sparsifier.masks().items())
        assert callback.sparsifier.active_weights == round(0.3 * 792)


def rates_of(callback: SelfishCallback, module: Module, epochs: int) -> list[float]:
    """Return the prune rate of every rewiring of a fit."""
    rates: list[float] = []

    def rewire(original: Any = callback.sparsifier.rewire) -> None:
        rates.append(callback.sparsifier.prune_rate)
        original()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callback.sparsifier, "rewire", rewire)
        fit(callback, module=module, epochs=epochs)
    return rates


def test_a_trainer_that_goes_on_for_more_epochs_goes_on_with_the_schedule() -> None:
    callback, module = SelfishCallback(sparsity=0.7), Module()
    trainer = silent_trainer(callback)
    loader = DataLoader(examples(), 8)
    trainer.fit(module, loader)
    assert callback.sparsifier.rewirings_done == EPOCHS - 1
    trainer.fit_loop.max_epochs = EPOCHS + 3
    trainer.fit(module, loader)
    assert callback.sparsifier.rewirings == EPOCHS + 3
    assert callback.sparsifier.rewirings_done == EPOCHS + 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pruned_network_stays_as_sparse_in_another_fit(engine: Any) -> None:
    callback = SelfishCallback(sparsity=0.7, method="gmp", engine=engine)
    module = fit(callback)
    before = callback.sparsifier.masks()
    fit(callback, module=module)
    assert all(torch.equal(mask, before[name]) for name, mask in callback.sparsifier.masks().items())


# Evaluation in a new process


@pytest.fixture(scope="module", params=ENGINES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any, Any]:
    """Return the engine of a fit, its checkpoint, its predictions and its masks."""
    folder = tmp_path_factory.mktemp("checkpoint")
    callback = SelfishCallback(sparsity=0.7, engine=request.param)
    module = fit(callback, ModelCheckpoint(folder, "last"))
    module.eval()
    with torch.no_grad():
        scores = module.model(examples().tensors[0])
    return request.param, folder / "last.ckpt", scores, callback.sparsifier.masks()


@pytest.mark.parametrize("stage", ["test", "validate", "predict"])
@pytest.mark.parametrize("bound", [True, False])
def test_a_checkpoint_is_evaluated_by_a_new_callback(stage: str, bound: bool, checkpoint: Any) -> None:
    engine, path, scores, masks = checkpoint
    if engine == "packed" and not bound:
        pytest.skip("a packed checkpoint needs the callback")
    callback = SelfishCallback(sparsity=0.7, engine=engine)
    trainer, module = silent_trainer(*([callback] if bound else [])), Module()
    loader = DataLoader(examples(), 40)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(rewirings|topology|sparse)")
        warnings.filterwarnings("ignore", message="the sparse topology cuts units off")
        result = getattr(trainer, stage)(module, loader, ckpt_path=path)
    if stage == "predict":
        assert torch.equal(result[0], scores)
    else:
        labels = examples().tensors[1]
        expected = nn.functional.cross_entropy(scores, labels)
        assert result[0][f"{'val' if stage == 'validate' else stage}_loss"] == pytest.approx(float(expected))
    if bound:
        assert callback.sparsifier.rewirings_done == EPOCHS - 1
        assert all(torch.equal(mask, masks[name]) for name, mask in callback.sparsifier.masks().items())
        fit(callback, module=module)
        assert callback.sparsifier.rewirings_done == EPOCHS - 1
        assert callback.sparsifier.rewirings == EPOCHS


def test_averages_that_an_evaluation_does_not_see_are_mentioned(tmp_path: Path) -> None:
    callback = SelfishCallback(sparsity=0.7, monitor="val_loss")
    module = Module("snt-asgd")
    fit(callback, ModelCheckpoint(tmp_path, "last"), module=module)
    trainer = silent_trainer(SelfishCallback(sparsity=0.7))
    loader = DataLoader(examples(), 40)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    for fired in (True, False):
        checkpoint["optimizer_states"][0]["param_groups"][0]["trigger"]["fired"] = fired
        torch.save(checkpoint, tmp_path / "edited.ckpt")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.test(Module(), loader, ckpt_path=tmp_path / "edited.ckpt")
        assert fired == any("test sees the raw weights" in str(each.message) for each in caught)


def test_an_evaluation_without_a_checkpoint_leaves_the_module_as_it_is() -> None:
    module, other = Module(), Module()
    silent_trainer(SelfishCallback(sparsity=0.7)).test(module, DataLoader(examples(), 8))
    assert same(module, other)
    module.load_state_dict(other.state_dict())
    assert same(module, other)


@pytest.mark.skipif("packed" not in ENGINES, reason="needs the packed engine")
@pytest.mark.parametrize("name", ["StochasticWeightAveraging", "EMAWeightAveraging"])
def test_averages_of_the_other_package_of_lightning_are_refused_too(name: str) -> None:
    package = pytest.importorskip("pytorch_lightning", reason="needs pytorch_lightning")
    kind = getattr(package.callbacks, name)
    averages = kind(swa_lrs=0.01) if name == "StochasticWeightAveraging" else kind()

    class Other(package.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier()

        training_step = Module.training_step
        loss = Module.loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    callbacks = [SelfishCallback(sparsity=0.7, engine="packed"), averages]
    with pytest.raises(ValueError, match=rf"{name} would average packed weights"):
        silent_trainer(*callbacks, kind=package.Trainer).fit(Other(), DataLoader(examples(), 8))
