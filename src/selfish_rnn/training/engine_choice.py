"""Choice of the engine of a run: the packed one where it is faster."""

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
from selfish_rnn.system import available_memory, trim_memory
from selfish_rnn.training.build import build_network

ROUNDS = 3
"""Smallest number of measured updates per engine and repetition."""

SECONDS = 0.5
"""Smallest duration of a measurement."""

REPETITIONS = 3
"""Number of measurements of both engines, so that one noisy moment does not decide."""

CLEAR_RATIO = 1.5
"""Ratio of times above which packed is chosen without further repetitions."""

KNOWN_MODELS = ("stacked-lstm", "rhn", "on-lstm")
KNOWN_POSITIONS = 2**23
KNOWN_SPARSITY = 0.5
KNOWN_TOKENS = 128
"""Networks with at least this many tokens per update, and with the other ``KNOWN`` properties, are not measured.

In all of ``results/bench`` a packed update of such a network is at least 1.9 times as fast as a dense one, and a masked
update is slower than a dense one.
"""

MASKED_BYTES = 12
"""Smallest number of bytes per position in the training of a masked network: weight, mask and gradient."""

MARGIN = 1.05
"""Smallest measured speedup for which packed is chosen; less could be noise."""

WITHOUT_KERNELS = (
    "the packed engine's kernels were not built when selfish-rnn was installed: install a C++ compiler and reinstall"
)


@dataclass(frozen=True)
class EngineChoice:
    """An engine and the reason for its choice."""

    engine: str
    reason: str | None = None


def choose_engine(experiment: Experiment, vocabulary: int) -> EngineChoice:
    """Return the engine of a run: that of its settings, if possible.

    ``auto`` chooses the packed engine if the masked network would not fit into memory, or if packing is known to be
    faster. Otherwise it measures a few updates with both engines. A network that cannot fit into memory is an error
    before any of it is built.
    """
    choice = _choose(experiment, vocabulary)
    if experiment.precision != "float32" and choice.engine == "masked":
        reason = f" ({choice.reason})" if choice.reason else ""
        raise UserError(
            f"precision={experiment.precision} is for the packed engine, and this run uses the masked one{reason}: "
            "use precision=float32, or engine=packed"
        )
    check_memory(experiment, vocabulary, choice.engine)
    return choice


def check_memory(experiment: Experiment, vocabulary: int, engine: str) -> None:
    """Raise an error if training takes more memory than is free."""
    needed, free = needed_memory(experiment, vocabulary, engine), available_memory()
    if torch.device(experiment.device).type == "cpu" and free is not None and needed > free:
        raise UserError(
            f"training this network with engine={engine} takes at least {needed / 2**30:,.1f} GiB of memory, but "
            f"{free / 2**30:,.1f} GiB are free: make the model or batch_size smaller"
            + ("" if engine == "packed" else ", or use engine=packed and a higher sparsity")
        )


def needed_memory(experiment: Experiment, vocabulary: int, engine: str) -> int:
    """Return a lower bound of the bytes that training takes.

    It counts weights, gradients and optimizer state, and the scores of all words if the loss computes them at once.
    """
    sparse, others = experiment.model.sizes(vocabulary)
    state = OPTIMIZERS[experiment.optimizer.name].state_bytes
    state += sum(8 if average.kind == "snt" else 4 for average in experiment.averages)
    if engine == "packed":  # an index takes 4 bytes per weight
        return int((1 - experiment.sparsity) * sparse) * (12 + state) + others * (8 + state)
    words = experiment.window * experiment.batch_size // experiment.sub_batches
    return (sparse + others) * (8 + state) + 2 * 4 * words * vocabulary


def _choose(experiment: Experiment, vocabulary: int) -> EngineChoice:
    # Conditions under which packing is impossible come first: an error if the user asked for it, else the masked
    # engine. Then the known and the measured speed decide.
    if experiment.engine == "masked":
        return EngineChoice("masked")
    requested = experiment.engine == "packed" or experiment.precision != "float32"
    if not available():
        if requested:
            raise UserError(f"engine=packed: {WITHOUT_KERNELS}, or use engine=masked")
        return EngineChoice("masked", WITHOUT_KERNELS)
    if torch.device(experiment.device).type != "cpu":
        if requested:
            raise UserError(f"engine=packed runs on the cpu, not on {experiment.device}: use engine=masked there")
        return EngineChoice("masked")
    reason = _nothing_to_pack(experiment)
    if reason is not None:
        return EngineChoice("masked", reason if requested else None)
    if requested:
        return EngineChoice("packed")
    reason = _known_benefit(experiment, vocabulary)
    if reason is not None:
        return EngineChoice("packed", reason)
    ratio = _measure(experiment, vocabulary)
    if ratio >= MARGIN:
        return EngineChoice("packed", f"{ratio:.1f} times as fast as masked in a short measurement")
    return EngineChoice("masked", f"packed is {ratio:.1f} times as fast in a short measurement")


def _nothing_to_pack(experiment: Experiment) -> str | None:
    method = experiment.method.build()
    if experiment.sparsity == 0 or method.stays_dense:
        return f"method {method.name} at sparsity {experiment.sparsity:g} has no zeros to skip"
    return unpackable(method)


def _known_benefit(experiment: Experiment, vocabulary: int) -> str | None:
    """Return the reason to choose the packed engine without a measurement, or None."""
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
    """Return the speedup of an update with the packed engine, from the shortest times of all repetitions."""
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    seconds = {"masked": math.inf, "packed": math.inf}
    for _ in range(REPETITIONS):
        for engine, shortest in seconds.items():  # one after the other, so that memory never holds both networks
            seconds[engine] = min(shortest, _seconds(experiment, vocabulary, engine))
            gc.collect()
            trim_memory()
        if seconds["masked"] >= CLEAR_RATIO * seconds["packed"]:
            break
    return seconds["masked"] / seconds["packed"]


def _seconds(experiment: Experiment, vocabulary: int, engine: str) -> float:
    """Return the shortest time of an update on random words; other processes only make updates slower."""
    model, _ = build_network(experiment.model_copy(update={"engine": engine}), vocabulary, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = experiment.batch_size // experiment.sub_batches
    words = torch.randint(vocabulary, (experiment.window + 1, batch))
    state = model.initial_state(batch)
    times: list[float] = []
    while len(times) <= ROUNDS or sum(times) < SECONDS:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        encoded = model.encode(words[:-1], state)
        model.loss(encoded.output, words[1:]).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return min(times[1:])  # the first update warms up
