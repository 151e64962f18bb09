"""What a callback of any framework does around the epochs of a training."""

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
    """A sparsifier whose model a framework trains, epoch by epoch.

    An epoch's rewiring comes right before the next epoch begins, not at its end: what is validated and saved in between
    are the weights that were trained, and a training that is resumed from there makes the rewiring itself.
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
        """Make a model sparse, unless it is already, for so many epochs; ``None`` if nobody knows how many."""
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

        Packed weights have to be in their place before they can be loaded. Without a ``state_dict`` there is no
        topology, and the model stays as it is.
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
        """Load the state of the sparsifier; outside of a training its number of rewirings is the saved one."""
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
        """Rewire, if ``finished`` epochs are finished and this has not been done after the last of them."""
        for optimizer in optimizers:
            self.sparsifier.track(plain(optimizer))  # one that was loaded has made no step yet
        planned = self.sparsifier.rewirings
        after_the_last = planned is not None and finished >= planned
        if self.sparsifier.rewire_every is None and self.sparsifier.rewirings_done < finished and not after_the_last:
            self.sparsifier.rewire()

    def begin_last_pass(self) -> None:
        """The passes from here on are those before a rewiring, whose dense gradients some methods need."""
        if self.sparsifier.rewire_every is None:
            self._collecting.enter_context(self.sparsifier.dense_gradients())

    def end_last_pass(self) -> None:
        self._collecting.close()

    def show_averages(self, optimizers: Iterable[Any]) -> None:
        """Let the model hold the averages of optimizers that average, for a validation."""
        self.hide_averages()
        for optimizer in averaging(optimizers):
            self._averaged.enter_context(optimizer.averaged())

    def hide_averages(self) -> None:
        """Let the model hold its raw weights again."""
        self._averaged.close()

    def end(self) -> None:
        """A method that prunes step by step makes its last step; nothing is left outside the topology.

        Averages over several topologies, such as those of stochastic weight averaging, have weights outside the last.
        """
        if self.sparsifier.rewire_every is None and not self.sparsifier.at_target:
            self.sparsifier.rewire()
        for weight in self.sparsifier.weights:
            weight.apply_mask()


def plain(optimizer: Any) -> Any:
    """The optimizer itself; accelerate wraps it in another one."""
    return getattr(optimizer, "optimizer", optimizer)


def averaging(optimizers: Iterable[Any]) -> list[AveragedSGD]:
    """Those of some optimizers that average."""
    return [optimizer for optimizer in map(plain, optimizers) if isinstance(optimizer, AveragedSGD)]


def observed(metrics: Mapping[str, Any], monitor: str) -> float:
    """The metric that decides when averaging starts."""
    if monitor not in metrics:
        raise ValueError(f"monitor={monitor!r} is none of the metrics of this validation: {', '.join(sorted(metrics))}")
    return float(metrics[monitor])
