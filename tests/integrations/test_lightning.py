"""Lightning trains sparse modules, resumes them, and validates averages."""

from __future__ import annotations

import logging
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

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", self.loss(batch))
        self.validated.append(getattr(self.optimizers().optimizer, "averages_swapped_in", False))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.kind == "snt-asgd":
            return SNTASGD(self.parameters(), lr=1.0, nonmono=0)
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(callback: SelfishCallback, *others: Any, module: Module | None = None, **given: Any) -> Module:
    module = Module() if module is None else module
    loader = DataLoader(examples(), 8)
    silent: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    keep = {} if any(isinstance(each, ModelCheckpoint) for each in others) else {"enable_checkpointing": False}
    trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[callback, *others], **silent, **keep)
    trainer.fit(module, loader, loader, **given)
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
    with pytest.raises(ValueError, match="monitor='loss' is none of the metrics of this validation: val_loss"):
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
