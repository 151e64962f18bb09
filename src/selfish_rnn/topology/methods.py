"""Methods as data: the paper's Table 1, each a composition of named parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from selfish_rnn.topology.allocation import ALLOCATIONS
from selfish_rnn.topology.redistribution import REDISTRIBUTIONS
from selfish_rnn.topology.removal import REMOVALS, Pool

GROWTHS = ("random",)


@dataclass(frozen=True)
class Method:
    """How a topology starts and how one rewiring changes it.

    ``allocation`` divides the budget over the matrices, ``removal`` marks the weights of each ``pool`` that go,
    ``redistribution`` says who grows how many of the freed weights and ``growth`` where. ``removal=None`` keeps the
    topology as it started. A new method is an old one with a part replaced:

    >>> SELFISH.replace(name="without cell gate redistribution", pool="gate", redistribution="gate").pool
    'gate'
    """

    name: str
    reference: str
    allocation: str = "uniform"
    removal: str | None = None
    pool: Pool = "matrix"
    redistribution: str = "matrix"
    growth: str = "random"

    def __post_init__(self) -> None:
        self._check("allocation", self.allocation, ALLOCATIONS)
        self._check("removal", self.removal, [*REMOVALS, None])
        self._check("pool", self.pool, ("gate", "matrix", "network"))
        self._check("redistribution", self.redistribution, REDISTRIBUTIONS)
        self._check("growth", self.growth, GROWTHS)

    def _check(self, part: str, value: str | None, known: Collection[str | None]) -> None:
        if value not in known:
            raise ValueError(f"method {self.name!r}: {part} must be one of {list(known)}, got {value!r}")

    @property
    def rewires(self) -> bool:
        """Whether the topology changes during training."""
        return self.removal is not None

    def replace(self, **parts: str | None) -> Method:
        """A copy with some parts replaced."""
        return dataclasses.replace(self, **parts)  # type: ignore[arg-type]


SELFISH = Method(
    name="selfish",
    reference="Liu, Mocanu, Pei, Pechenizkiy: Selfish Sparse RNN Training, ICML 2021",
    removal="magnitude",
    redistribution="gates-equal",
)
STATIC = Method(
    name="static",
    reference="Mocanu et al.: A topological insight into restricted Boltzmann machines, Machine Learning 2016",
)

METHODS: dict[str, Method] = {method.name: method for method in (SELFISH, STATIC)}
