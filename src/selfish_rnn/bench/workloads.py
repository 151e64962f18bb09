"""Networks of the benchmark and their work: a training step, or the next word of one text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.bench.dense_bfloat16 import by_hand
from selfish_rnn.bench.engines import ENGINES
from selfish_rnn.bench.options import BenchOptions
from selfish_rnn.bench.rivals import next_word, onednn
from selfish_rnn.engine import pack
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.optimizers import OPTIMIZERS
from selfish_rnn.models import LanguageModel, OrderedNeuronsLSTM, RecurrentHighwayNetwork, StackedRNN, detach
from selfish_rnn.optim import AveragedSGD
from selfish_rnn.sparsifier import Sparsifier
from selfish_rnn.sparsifier.deferred import deferred_init
from selfish_rnn.training.build import build_optimizer

NO_DROPOUT: dict[str, Any] = dict.fromkeys((f"dropout_{place}" for place in ("word", "input", "hidden", "output")), 0.0)
CLIP = 0.25
LEARNING_RATE = 1e-3
SEED = 1


@dataclass(frozen=True)
class Workload:
    """Language model without dropout at a size and sparsity, and its work."""

    options: BenchOptions
    hidden: int
    sparsity: float

    def dense_model(self) -> LanguageModel:
        """Return the dense network, with the same weights every time."""
        torch.manual_seed(SEED)
        words, hidden = self.options.vocabulary, self.hidden
        if self.options.network == "lstm":
            return StackedRNN(words, embedding=hidden, hidden=hidden, dropout=0.0)
        if self.options.network == "rhn":
            return RecurrentHighwayNetwork(words, hidden=hidden, **NO_DROPOUT)
        return OrderedNeuronsLSTM(words, embedding=min(400, hidden), hidden=hidden, weight_drop=0.0, **NO_DROPOUT)

    def model(self, engine: str) -> LanguageModel:
        """Return the network of an engine. All engines compute the same function, with zeros outside the topology.

        The packed network is never dense in memory.
        """
        packed = ENGINES[engine].kernels
        with deferred_init() if packed else nullcontext():
            model = self.dense_model()
        sparsifier = Sparsifier(model, sparsity=self.sparsity, method="static", min_side=1, rescale=False, seed=SEED)
        if packed:
            pack(model, precision=ENGINES[engine].precision)
        elif engine != "masked":
            sparsifier.detach()
        return by_hand(model) if engine == "bfloat16-hand" else model

    def positions(self) -> int:
        """Return the number of positions of all matrices."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.dense_model().parameters() if parameter.ndim == 2)

    def at_width(self, hidden: int) -> Workload:
        """Return the workload with another hidden size and the same number of weights, except for rounding."""
        wide = replace(self, hidden=hidden)
        weights, positions = (1 - self.sparsity) * self.positions(), wide.positions()
        if weights > positions:
            raise UserError(
                f"--widths {hidden} has {positions:,} positions, too few for the {weights:,.0f} weights of "
                f"--hidden {self.hidden} at sparsity {self.sparsity:g}"
            )
        return replace(wide, sparsity=1 - weights / positions)

    def training_step(self, engine: str, model: LanguageModel | None = None) -> Callable[[], float]:
        """Return a call of a whole training step on one window, which returns the loss.

        The state is carried from call to call. ``model`` replaces the network of :meth:`model`.
        """
        model = self.model(engine) if model is None else model
        section = {"name": self.options.optimizer, "lr": LEARNING_RATE, "weight_decay": 0.0}
        settings = OPTIMIZERS[self.options.optimizer].settings.model_validate(section)
        optimizer = build_optimizer(settings, model.train().parameters(), epochs=1, below=0.0)
        if isinstance(optimizer, AveragedSGD):  # as in most of a run
            optimizer.start_averaging()
        batch = self.options.batch
        tokens, targets = self._tokens(2, self.options.window, batch)
        state = model.initial_state(batch)

        def step() -> float:
            nonlocal state
            optimizer.zero_grad(set_to_none=True)
            with onednn(engine != "no-onednn"):
                with torch.autocast("cpu", torch.bfloat16, enabled=engine == "bfloat16"):
                    encoded = model.encode(tokens, state)
                    loss = model.loss(encoded.output, targets)
                loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            state = detach(encoded.state)
            return loss.item()

        return step

    def next_word(self, engine: str) -> Callable[[], Any]:
        """Return a call that processes one word of one text and returns the scores of the next word."""
        return next_word(engine, self.model(engine), self._tokens(64))

    def _tokens(self, *shape: int) -> Tensor:
        return torch.randint(self.options.vocabulary, shape, generator=torch.Generator().manual_seed(SEED))
