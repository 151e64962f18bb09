"""Which engine a run uses: where the packed one is faster, that one."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass

import torch

from selfish_rnn.engine import available
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.optimizers import OPTIMIZERS
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.sparsifier.selection import unpackable
from selfish_rnn.system import available_memory, give_back_freed_memory
from selfish_rnn.training.build import build_network

ROUNDS = 3
SECONDS = 0.5
"""How many updates of each engine are measured at a time, and for how long, at least."""

TURNS = 3
CLEAR = 1.5
"""How often both engines are measured, unless packed is so many times as fast: one noisy moment must not decide for a
whole run."""

KNOWN_MODELS = ("stacked-lstm", "rhn", "on-lstm")
KNOWN_POSITIONS = 2**23
KNOWN_SPARSITY = 0.5
KNOWN_TOKENS = 128
"""From here on nothing is measured: in every network of ``results/bench`` that is as large, as sparse and trained on as
many tokens at a time, an update is at least 1.9 times as fast as a dense one, and a masked one does more than that."""

MASKED_BYTES = 12
"""What a position takes while a masked network is trained, at least: weight, mask and gradient."""

MARGIN = 1.05
"""How much faster the packed engine has to be in the short measurement: less could be noise."""

WITHOUT_KERNELS = (
    "the packed engine's kernels were not built when selfish-rnn was installed (that takes a C++ compiler): "
    "reinstall with one"
)


@dataclass(frozen=True)
class EngineChoice:
    """An engine, and why."""

    engine: str
    reason: str | None = None


def choose_engine(experiment: Experiment, vocabulary: int) -> EngineChoice:
    """The engine of a run: as its settings say, where that is possible.

    ``auto`` takes the packed one where the masked network would not fit into memory, or where packing is known to pay.
    Elsewhere it measures a few updates with both, one after the other. A network that cannot fit into memory is refused
    before any of it is made.
    """
    choice = _choose(experiment, vocabulary)
    refuse_too_large(experiment, vocabulary, choice.engine)
    return choice


def refuse_too_large(experiment: Experiment, vocabulary: int, engine: str) -> None:
    """Refuse a network whose training takes more memory than there is."""
    needed, free = needed_memory(experiment, vocabulary, engine), available_memory()
    if torch.device(experiment.device).type == "cpu" and free is not None and needed > free:
        raise UserError(
            f"to train this network with engine={engine} takes at least {needed / 2**30:,.1f} GiB of memory, "
            f"{free / 2**30:,.1f} GiB are free: make the model or batch_size smaller"
            + ("" if engine == "packed" else ", or use engine=packed and a higher sparsity")
        )


def needed_memory(experiment: Experiment, vocabulary: int, engine: str) -> int:
    """How many bytes training takes at least: weights, gradients, what the optimizer remembers of each; the scores of
    all words where they are made whole."""
    sparse, others = experiment.model.sizes(vocabulary)
    state = OPTIMIZERS[experiment.optimizer.name].state_bytes
    state += sum(8 if average.kind == "snt" else 4 for average in experiment.averages)
    if engine == "packed":  # 4 bytes of an index for each weight
        return int((1 - experiment.sparsity) * sparse) * (12 + state) + others * (8 + state)
    words = experiment.window * experiment.batch_size // experiment.sub_batches
    return (sparse + others) * (8 + state) + 2 * 4 * words * vocabulary


def _choose(experiment: Experiment, vocabulary: int) -> EngineChoice:
    if experiment.engine == "masked":
        return EngineChoice("masked")
    asked = experiment.engine == "packed"
    if not available():
        if asked:
            raise UserError(f"engine=packed: {WITHOUT_KERNELS}, or use engine=masked")
        return EngineChoice("masked", WITHOUT_KERNELS)
    if torch.device(experiment.device).type != "cpu":
        if asked:
            raise UserError(f"engine=packed runs on the cpu, not on {experiment.device}: use engine=masked there")
        return EngineChoice("masked")
    reason = _nothing_to_pack(experiment)
    if reason is not None:
        return EngineChoice("masked", reason if asked else None)
    if asked:
        return EngineChoice("packed")
    reason = _known_to_pay(experiment, vocabulary)
    if reason is not None:
        return EngineChoice("packed", reason)
    ratio = _measure(experiment, vocabulary)
    if ratio >= MARGIN:
        return EngineChoice("packed", f"{ratio:.1f} times as fast as masked in a short measurement")
    return EngineChoice("masked", f"packed is {ratio:.1f} times as fast in a short measurement")


def _nothing_to_pack(experiment: Experiment) -> str | None:
    method = experiment.method.build()
    if experiment.sparsity == 0 or method.stays_dense:
        return f"method {method.name} at sparsity {experiment.sparsity:g} has no zeros to leave out"
    return unpackable(method)


def _known_to_pay(experiment: Experiment, vocabulary: int) -> str | None:
    """Why the packed engine is the one to take, if that is known without a measurement."""
    size, _ = experiment.model.sizes(vocabulary)
    masked, available = size * MASKED_BYTES, available_memory()
    if available is not None and masked > available:
        return f"masked takes {masked / 2**30:,.0f} GiB or more, {available / 2**30:,.0f} are available"
    large = size >= KNOWN_POSITIONS and experiment.model.name in KNOWN_MODELS
    sparse = experiment.sparsity >= KNOWN_SPARSITY and not experiment.method.build().prunes
    tokens = experiment.batch_size // experiment.sub_batches * experiment.window
    if large and sparse and tokens >= KNOWN_TOKENS:
        return f"known to be faster for {size:,} positions at sparsity {experiment.sparsity:g}"
    return None


def _measure(experiment: Experiment, vocabulary: int) -> float:
    """How many times as fast an update is with the packed engine: the shortest times of all turns count."""
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    seconds = {"masked": math.inf, "packed": math.inf}
    for _ in range(TURNS):
        for engine, shortest in seconds.items():  # one after the other: never are both networks in memory
            seconds[engine] = min(shortest, _seconds(experiment, vocabulary, engine))
            gc.collect()
            give_back_freed_memory()
        if seconds["masked"] >= CLEAR * seconds["packed"]:
            break
    return seconds["masked"] / seconds["packed"]


def _seconds(experiment: Experiment, vocabulary: int, engine: str) -> float:
    """The shortest time of an update on random words: others on the machine only make it longer."""
    model, _ = build_network(experiment.model_copy(update={"engine": engine}), vocabulary, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = experiment.batch_size // experiment.sub_batches
    words = torch.randint(vocabulary, (experiment.window + 1, batch))
    state = model.initial_state(batch)
    found: list[float] = []
    while len(found) <= ROUNDS or sum(found) < SECONDS:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        encoded = model.encode(words[:-1], state)
        model.loss(encoded.output, words[1:]).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(time.perf_counter() - start)
    return min(found[1:])  # the first warms up
