"""What a benchmark is asked to measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from selfish_rnn.bench.workloads import NETWORKS, OPTIMIZERS, Workload
from selfish_rnn.errors import UserError

KINDS = ("step", "inference", "operators", "memory")
"""What can be measured: a whole training step, the next token of one text, single products, peak memory."""

ENGINES = ("dense", "no-onednn", "masked", "packed", "csr", "sparseprop")
"""What can be compared; the first is what the others are compared with."""

APPLICABLE = {
    "step": ("dense", "masked", "packed"),
    "inference": ("dense", "no-onednn", "packed", "csr"),
    "operators": ("dense", "packed", "csr", "sparseprop"),
    "memory": ("dense", "masked", "packed"),
}
"""Who takes part in what: CSR and SparseProp have no recurrent layers, and a masked network runs as a dense one."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class BenchSettings:
    """Sizes, sparsities and engines of a benchmark; the words of the command line, read and checked."""

    network: str
    hidden: tuple[int, ...]
    sparsity: tuple[float, ...]
    batch: int
    window: int
    vocabulary: int
    kinds: tuple[str, ...]
    engines: tuple[str, ...]
    rounds: int
    limit: float | None
    threads: int | None
    optimizer: str
    keep_memory: bool

    @classmethod
    def read(
        cls,
        *,
        network: str,
        hidden: str | None,
        sparsity: str,
        batch: int,
        window: int,
        vocabulary: int,
        what: str,
        engines: str,
        rounds: int,
        limit: float | None,
        threads: int | None,
        keep_memory: bool,
        optimizer: str,
    ) -> BenchSettings:
        """Check everything before anything is measured."""
        _one_of("--network", network, tuple(NETWORKS))
        _one_of("--optimizer", optimizer, tuple(OPTIMIZERS))
        sizes = {"--batch": batch, "--window": window, "--vocabulary": vocabulary, "--rounds": rounds}
        if threads is not None:
            sizes["--threads"] = threads
        for option, size in sizes.items():
            if size < 1:
                raise UserError(f"{option} must be at least 1, got {size}")
        if limit is not None and not 0 < limit < math.inf:
            raise UserError(f"--limit must be a number of seconds above 0, got {limit:g}")
        named = _words("--engines", engines, ENGINES)
        return cls(
            network=network,
            hidden=_numbers(
                "--hidden",
                str(NETWORKS[network]) if hidden is None else hidden,
                int,
                lambda size: size >= 1,
                "at least 1",
            ),
            sparsity=_numbers(
                "--sparsity", sparsity, float, lambda zeros: 0 <= zeros < 1, "at least 0 and less than 1"
            ),
            batch=batch,
            window=window,
            vocabulary=vocabulary,
            kinds=_words("--what", what, KINDS),
            engines=tuple(engine for engine in ENGINES if engine in named or engine == ENGINES[0]),
            rounds=rounds,
            limit=limit,
            threads=threads,
            keep_memory=keep_memory,
            optimizer=optimizer,
        )

    def workloads(self) -> Iterator[Workload]:
        """One for every hidden size."""
        for hidden in self.hidden:
            yield Workload(self.network, hidden, self.vocabulary, self.batch, self.window, self.optimizer)

    def engines_for(self, kind: str) -> tuple[str, ...]:
        return tuple(engine for engine in self.engines if engine in APPLICABLE[kind])


def _one_of(option: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise UserError(f"{option} must be one of {', '.join(known)}; got {word!r}")


def _words(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in known:
            raise UserError(f"{option} takes {', '.join(known)}, separated by commas; got {word!r}")
    return tuple(word for word in known if word in words)


def _numbers(
    option: str, text: str, kind: Callable[[str], Number], fits: Callable[[Number], bool], expected: str
) -> tuple[Number, ...]:
    numbers = list[Number]()
    for word in text.split(","):
        try:
            number = kind(word)
        except ValueError:
            raise UserError(f"{option} takes numbers separated by commas; got {word.strip()!r}") from None
        if not fits(number):
            raise UserError(f"{option} must be {expected}, got {word.strip()}")
        numbers.append(number)
    return tuple(dict.fromkeys(numbers))
