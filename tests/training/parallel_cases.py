"""What each of two processes does in the tests of training together; spawned processes import it by name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from selfish_rnn.corpora import load_corpus
from selfish_rnn.errors import RankLostError, UserError
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import StackedRNN
from selfish_rnn.training.engine_choice import choose_engine
from selfish_rnn.training.evaluation import evaluate
from selfish_rnn.training.metrics import DivergedError, Listener
from selfish_rnn.training.ranks import Ranks
from selfish_rnn.training.trainer import Trainer
from tiny_runs import OPTIMIZERS, TINY_MODELS, UPDATES_PER_EPOCH, Recorder, tiny_experiment, tiny_trainer

Changes = dict[str, Any]

STOP = UPDATES_PER_EPOCH + 4
"""The update after which a run is saved: inside its second epoch."""

BASE: Changes = {"epochs": 2, "optimizer": OPTIMIZERS["snt-asgd"]}
CASES: dict[str, Changes] = {
    **{
        f"{method} {engine}": {**BASE, "method": method, "engine": engine}
        for method in CONFIGURABLE_METHODS
        if method != "small-dense"  # which is dense
        for engine in ("masked", "packed")
    },
    **{f"{model}": {**BASE, "model": {"name": model, **options}} for model, options in TINY_MODELS.items()},
    "snfs with momentum": {**BASE, "method": "snfs", "optimizer": OPTIMIZERS["momentum-sgd"]},
    "adam, rewired every few updates": {**BASE, "method": "rigl", "optimizer": OPTIMIZERS["adam"], "rewire_every": 4},
    "several averages": {
        **BASE,
        "epochs": 3,
        "averages": [{"kind": "nt", "from": 1}, {"kind": "snt", "from": 2}],
        "restart_at": [2],
    },
    "penalties": {**BASE, "ar": 1.0, "tar": 1.0, "variable_window": True},
}


def runnable(texts: Path, changes: Changes) -> bool:
    """Whether the engine that a case names can do it."""
    experiment = tiny_experiment(texts, **changes)
    return choose_engine(experiment, vocabulary=len(load_corpus(texts).vocabulary)).engine == experiment.engine


class Saved(Exception):  # noqa: N818 - ends training, and is no error
    """Training was stopped and its state kept."""


class StopAt(Listener):
    """Keeps the state after some update, and ends training there."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.state: dict[str, Any] = {}

    def on_pause(self, trainer: Trainer) -> None:
        if trainer.state.step == self.step:
            self.state = trainer.state_dict()
            raise Saved


def outcome(recorder: Recorder) -> dict[str, Any]:
    """What ranks must agree on: losses up to rounding, topologies and numbers of weights exactly."""
    trainer = recorder.trainer
    return {
        "losses": [loss for record in recorder.epochs for loss in (record.train_loss, record.valid_loss)]
        + [average.valid_loss for record in recorder.epochs for average in record.averages.values()],
        "masks": {name: mask.tolist() for name, mask in trainer.sparsifier.masks().items()},
        "weights": trainer.sparsifier.active_weights,
        "budget": trainer.sparsifier.target_weights,
    }


def finished(texts: Path, state: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The outcome of a run, from its start or from a saved state."""
    recorder = Recorder()
    trainer = tiny_trainer(texts, recorder, **changes)
    if state is not None:
        trainer.load_state_dict(dict(state))
    trainer.run()
    return outcome(recorder)


def saved(texts: Path, **changes: Any) -> dict[str, Any]:
    """The state of a run inside its second epoch."""
    stop = StopAt(STOP)
    try:
        tiny_trainer(texts, stop, **changes).run()
    except Saved:
        return stop.state
    raise AssertionError("the run ended before it was saved")


def shared_evaluation(columns: int) -> float:
    torch.manual_seed(3)
    model = StackedRNN(7, embedding=4, hidden=5, layers=1, dropout=0.5)
    stream = torch.randint(7, (61,), generator=torch.Generator().manual_seed(1))
    return evaluate(model, stream, batch_size=columns, window=5, ranks=Ranks.here())


def told(ranks: Ranks, error: bool) -> Any:
    """What all ranks get of a value, or an error, of the first."""

    def make() -> Experiment | str:
        if error:
            raise UserError("no such corpus")
        return f"made by {os.getpid()}"

    try:
        return ranks.from_main(make)
    except UserError as raised:
        return type(raised).__name__, str(raised)


def flags(ranks: Ranks) -> list[bool]:
    return ranks.any(False, ranks.rank == 1, True)


def sums(ranks: Ranks) -> list[Tensor]:
    """Gradients of a flat parameter and of one that lies transposed in memory, after they were added up."""
    flat, matrix, frozen = (torch.nn.Parameter(torch.zeros(shape)) for shape in ((5,), (2, 3), (1,)))
    flat.grad = torch.full((5,), 1.0 + ranks.rank)
    matrix.grad = (torch.arange(6.0).view(3, 2) + ranks.rank).t()
    ranks.sum_gradients([flat, matrix, frozen])
    return [parameter.grad for parameter in (flat, matrix, frozen) if parameter.grad is not None]


def lost(texts: Path, ranks: Ranks) -> str:
    """What the first rank says when the second one vanishes inside an epoch."""

    def vanish(_: object) -> None:
        if not ranks.is_main and len(recorder.steps) == 3:
            os._exit(9)

    recorder = Recorder(vanish)
    try:
        tiny_trainer(texts, recorder).run()
    except RankLostError as error:
        return str(error)
    return "nothing was lost"


def spoilt(texts: Path, ranks: Ranks) -> str:
    """What a rank says when a weight of the second one alone is no number after an update."""

    def spoil(*_: object) -> None:
        if not ranks.is_main and trainer.state.step == 3:
            trainer.model.decoder.bias.data[0] = torch.nan  # type: ignore[index, union-attr, operator]

    trainer = tiny_trainer(texts, rewire_every=4)
    trainer.optimizer.register_step_pre_hook(spoil)
    try:
        trainer.run()
    except DivergedError as error:
        return str(error)
    return "nothing was found"


def work(rank: int, store: str, texts: Path, state: bytes, cases: dict[str, Changes], outcomes: Any) -> None:
    """Everything one of the two processes does, in one go: importing torch takes longer than all of it."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    ranks = Ranks.here()
    found: dict[str, Any] = {name: finished(texts, **changes) for name, changes in cases.items()}
    found["saved"] = saved(texts, **BASE)
    found["continued"] = finished(texts, pickle.loads(state), **BASE)
    found["evaluations"] = [shared_evaluation(columns) for columns in (1, 2, 3)]
    found["told"] = [told(ranks, error=False), told(ranks, error=True)]
    found["flags"] = flags(ranks)
    found["sums"] = sums(ranks)
    found["spoilt"] = spoilt(texts, ranks)
    outcomes[rank] = pickle.dumps(found)
    outcomes["lost"] = lost(texts, ranks)
