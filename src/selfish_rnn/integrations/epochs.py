"""Common part of the callbacks: work around the epochs of a training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from selfish_rnn.engine import pack
from selfish_rnn.optim import AveragedSGD
from selfish_rnn.sparsifier import Sparsifier

Engine = Literal["masked", "packed"]


class SparseEpochs:
    """Sparsifier whose model a framework trains, epoch by epoch.

    The rewiring of an epoch happens right before the next epoch. So validation and checkpoints in between see the
    weights that were trained, and a resumed training does the rewiring itself.
    """

    sparsifier: Sparsifier
    """Bound when the framework begins with a model."""

    def __init__(self, engine: Engine, settings: dict[str, Any]) -> None:
        if engine not in ("masked", "packed"):
            raise ValueError(f'engine is "masked" or "packed", got {engine!r}')
        self._engine = engine
        self._settings = settings
        self._model: nn.Module | None = None
        self._collecting = contextlib.ExitStack()
        self._averaged = contextlib.ExitStack()
        self._awaited = contextlib.ExitStack()

    def bind(self, model: nn.Module, epochs: int | None) -> None:
        """Make a model sparse, unless it is already; ``epochs`` is None if unknown."""
        if self._model is model:
            return
        by_itself = self._settings.get("rewire_every") is not None
        known = {} if epochs is None or by_itself else {"rewirings": epochs}
        self.sparsifier = Sparsifier(model, **(known | self._settings))
        self._model = model
        if self._engine == "packed" and pack(model) is not model:
            raise ValueError(
                f"a {type(model).__name__} alone is replaced when it is packed: make it a part of a module"
            )

    def bind_when_loaded(self, model: nn.Module) -> None:
        """Make a model sparse as soon as a ``state_dict`` is loaded into it, for an evaluation in a new process.

        Packed weights have to exist before they can be loaded. Without a ``state_dict`` the model does not change.
        """
        self.stop_waiting()

        def bind(module: nn.Module, *_: Any) -> None:
            self.bind(module, 1)

        handle = model.register_load_state_dict_pre_hook(bind)  # type: ignore[no-untyped-call]
        self._awaited.callback(handle.remove)

    def stop_waiting(self) -> None:
        """Undo :meth:`bind_when_loaded`; a model that was bound stays bound."""
        self._awaited.close()

    def begin_training(self, epochs: int | None, finished: int) -> None:
        """Start the schedule of a training of ``epochs`` epochs, of which ``finished`` are finished.

        A second training with the same model rewires from the full prune rate again. A method that prunes goes on from
        the sparsity it has reached.
        """
        if self.sparsifier.method.prunes:
            return
        if finished == 0:
            self.sparsifier.rewirings_done = self.sparsifier.steps_done = 0
        if epochs is not None and not {"rewirings", "rewire_every"} & self._settings.keys():
            self.sparsifier.rewirings = epochs

    def load(self, state: Mapping[str, Any], *, training: bool) -> None:
        """Load the state of the sparsifier; outside of training it takes the saved number of rewirings."""
        if not training:
            if self._model is None:  # nothing was loaded into the model
                return
            self.sparsifier.rewirings = state["rewirings"]
        self.sparsifier.load_state_dict(state)

    def register_wrapper(self, model: Any) -> None:
        """Register the model that a framework trains, if it is a ``DistributedDataParallel``."""
        if isinstance(model, DistributedDataParallel):
            self.sparsifier.register_ddp(model)

    def begin_epoch(self, finished: int, optimizers: Iterable[Any]) -> None:
        """Rewire after the last of ``finished`` epochs, unless this was done."""
        for optimizer in optimizers:
            self.sparsifier.track(plain(optimizer))  # one that was loaded has made no step yet
        planned = self.sparsifier.rewirings
        after_the_last = planned is not None and finished >= planned
        if self.sparsifier.rewire_every is None and self.sparsifier.rewirings_done < finished and not after_the_last:
            self.sparsifier.rewire()

    def begin_last_pass(self) -> None:
        """Collect dense gradients from here on, for methods that need those before a rewiring."""
        if self.sparsifier.rewire_every is None:
            self._collecting.enter_context(self.sparsifier.dense_gradients())

    def end_last_pass(self) -> None:
        self._collecting.close()

    def show_averages(self, optimizers: Iterable[Any]) -> None:
        """Put the averages of averaging optimizers into the model, for a validation."""
        self.hide_averages()
        for optimizer in averaging(optimizers):
            self._averaged.enter_context(optimizer.averaged())

    def hide_averages(self) -> None:
        """Put the raw weights back into the model."""
        self._averaged.close()

    def end(self) -> None:
        """Finish: prune to the final sparsity, and set weights outside the topology to zero.

        Averages over several topologies, as in stochastic weight averaging, have weights outside the last one.
        """
        if self.sparsifier.rewire_every is None and not self.sparsifier.at_target:
            self.sparsifier.rewire()
        for weight in self.sparsifier.weights:
            weight.apply_mask()


def plain(optimizer: Any) -> Any:
    """Return the optimizer inside the wrapper of accelerate."""
    return getattr(optimizer, "optimizer", optimizer)


def averaging(optimizers: Iterable[Any]) -> list[AveragedSGD]:
    """Return the optimizers that average."""
    return [optimizer for optimizer in map(plain, optimizers) if isinstance(optimizer, AveragedSGD)]


def observed(metrics: Mapping[str, Any], monitor: str) -> float:
    """Return the metric that triggers averaging."""
    if monitor not in metrics:
        raise ValueError(
            f"monitor={monitor!r} is not a metric of this validation; available: {', '.join(sorted(metrics))}"
        )
    return float(metrics[monitor])
