"""The networks that are measured, and what they do: a whole training step, or the next token of one text."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.bench.options import BenchOptions
from selfish_rnn.bench.products import to_csr
from selfish_rnn.engine import pack
from selfish_rnn.models import LanguageModel, OrderedNeuronsLSTM, RecurrentHighwayNetwork, StackedRNN, detach
from selfish_rnn.optim import SNTASGD
from selfish_rnn.sparsifier import Sparsifier

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "snt-asgd": SNTASGD,
}

NO_DROPOUT: dict[str, Any] = dict.fromkeys((f"dropout_{place}" for place in ("word", "input", "hidden", "output")), 0.0)
CLIP = 0.25
LEARNING_RATE = 1e-3
SEED = 1


@dataclass(frozen=True)
class Workload:
    """A language model without dropout, and the windows it is trained on."""

    network: str
    hidden: int
    vocabulary: int
    batch: int
    window: int
    optimizer: str = "sgd"

    @classmethod
    def of(cls, options: BenchOptions, hidden: int) -> Workload:
        """What the options say, at one of their sizes."""
        return cls(hidden=hidden, **options.model_dump(include={field.name for field in fields(cls)} - {"hidden"}))

    def dense_model(self) -> LanguageModel:
        """All weights, always the same ones."""
        torch.manual_seed(SEED)
        if self.network == "lstm":
            return StackedRNN(self.vocabulary, embedding=self.hidden, hidden=self.hidden, dropout=0.0)
        if self.network == "rhn":
            return RecurrentHighwayNetwork(self.vocabulary, hidden=self.hidden, **NO_DROPOUT)
        embedding = min(400, self.hidden)
        return OrderedNeuronsLSTM(
            self.vocabulary, embedding=embedding, hidden=self.hidden, weight_drop=0.0, **NO_DROPOUT
        )

    def model(self, engine: str, sparsity: float) -> LanguageModel:
        """The same function in every engine: also the dense network starts with zeros outside the topology."""
        model = self.dense_model()
        sparsifier = Sparsifier(model, sparsity=sparsity, method="static", seed=SEED)
        if engine == "packed":
            pack(model)
        elif engine == "dense":
            sparsifier.detach()
        return model

    def steps(self, engines: tuple[str, ...], sparsity: float) -> dict[str, TrainingStep]:
        """A training step of each engine."""
        return {engine: TrainingStep(self.model(engine, sparsity), self) for engine in engines}

    def next_tokens(self, engines: tuple[str, ...], sparsity: float) -> dict[str, Callable[[], Any]]:
        """Batch-1 inference of each engine."""
        found = dict[str, Callable[[], Any]]()
        for engine in engines:
            model = self.model("packed" if engine == "packed" else "dense", sparsity)
            onednn = engine != "no-onednn"
            found[engine] = ProductChain(model) if engine == "csr" else NextToken(model, self.vocabulary, onednn)
        return found


class TrainingStep:
    """Forward, loss, backward, clipping and the optimizer's step on one window; the state is carried on."""

    def __init__(self, model: LanguageModel, workload: Workload) -> None:
        self.model = model.train()
        self.optimizer = OPTIMIZERS[workload.optimizer](model.parameters(), lr=LEARNING_RATE)
        generator = torch.Generator().manual_seed(SEED)
        shape = (2, workload.window, workload.batch)
        self.tokens, self.targets = torch.randint(workload.vocabulary, shape, generator=generator)
        self.state = model.initial_state(workload.batch)
        self.first_loss: float | None = None

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        encoded = self.model.encode(self.tokens, self.state)
        loss = self.model.loss(encoded.output, self.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.state = detach(encoded.state)
        if self.first_loss is None:
            self.first_loss = loss.item()


class NextToken:
    """One token of one text, with the state of those before it: the scores of the next.

    Torch runs an LSTM with oneDNN of its own accord. For a single token that can be several times slower than without.
    """

    def __init__(self, model: LanguageModel, vocabulary: int, onednn: bool = True) -> None:
        self.model = model.eval()
        self.state = model.initial_state(1)
        self.onednn = onednn
        generator = torch.Generator().manual_seed(SEED)
        self._tokens = itertools.cycle(torch.randint(vocabulary, (64, 1, 1), generator=generator))

    def __call__(self) -> Tensor:
        before = torch.backends.mkldnn.enabled
        torch.backends.mkldnn.enabled = self.onednn  # type: ignore[assignment]
        try:
            with torch.inference_mode():
                encoded = self.model.encode(next(self._tokens), self.state)
                self.state = encoded.state
                return self.model.logits(encoded.output)
        finally:
            torch.backends.mkldnn.enabled = before


class ProductChain:
    """Only the products of a token's way through a network, with torch's CSR matrices; no gates, no lookup."""

    def __init__(self, model: LanguageModel) -> None:
        embedding, decoder = (model.get_submodule(name) for name in ("embedding", "decoder"))
        looked_up = None if decoder.weight is embedding.weight else embedding.weight
        matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2 and parameter is not looked_up]
        self._pairs = [(to_csr(matrix.detach()), torch.randn(matrix.shape[1], 1)) for matrix in matrices]

    def __call__(self) -> None:
        with torch.inference_mode():
            for matrix, x in self._pairs:
                torch.mm(matrix, x)
