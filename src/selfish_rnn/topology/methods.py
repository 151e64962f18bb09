"""Methods as data: the paper's Table 1, each a composition of parts."""

from __future__ import annotations

import dataclasses
from collections.abc import KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfish_rnn.errors import unknown
from selfish_rnn.topology.allocation import ALLOCATIONS, Allocation, AnyPart, Shape
from selfish_rnn.topology.growth import GROWTHS, Growth
from selfish_rnn.topology.redistribution import REDISTRIBUTIONS, Redistribution
from selfish_rnn.topology.removal import POOLS, REMOVALS, Pool, Removal, Signal
from selfish_rnn.topology.schedules import PRUNINGS, SCHEDULES, Pruning, Schedule

_TABLES: dict[str, tuple[type, dict[str, Any]]] = {
    "allocation": (Allocation, ALLOCATIONS),
    "removal": (Removal, REMOVALS),
    "pool": (Pool, POOLS),
    "redistribution": (Redistribution, REDISTRIBUTIONS),
    "growth": (Growth, GROWTHS),
    "pruning": (Pruning, PRUNINGS),
    "schedule": (Schedule, SCHEDULES),
}

METHOD_PARTS = ("allocation", "removal", "pool", "redistribution", "growth", "pruning")
OPTIONAL_PARTS = ("removal", "growth", "pruning")
"""Parts a method can be without."""


def register(part: AnyPart) -> AnyPart:
    """Give a part of your own a name that configurations and :meth:`Method.replace` know; the last of a name counts.

    >>> keep_all = register(Removal("nothing", lambda values, rate: torch.zeros(len(values), dtype=torch.bool)))
    >>> SELFISH.replace(removal="nothing").removal is keep_all
    True
    """
    for kind, table in _TABLES.values():
        if isinstance(part, kind):
            table[part.name] = part
            return part
    raise TypeError(
        f"a part is an Allocation, Removal, Pool, Redistribution, Growth, Pruning or Schedule, not {part!r}"
    )


def registered_names(kind: str) -> KeysView[str]:
    """The names of all parts of a kind, also of those that will be registered."""
    return _TABLES[kind][1].keys()


def find_part(kind: str, part: Any) -> Any:
    """A part itself, given it or its name."""
    of_kind, table = _TABLES[kind]
    if isinstance(part, str):
        if part in table:
            return table[part]
    elif isinstance(part, of_kind) or (part is None and kind in OPTIONAL_PARTS):
        return part
    raise ValueError(unknown(kind, part, [*table, *(["none"] if kind in OPTIONAL_PARTS else [])]))


@dataclass(frozen=True)
class Method:
    """How a topology starts and how one rewiring changes it.

    ``allocation`` divides the budget over the matrices, ``removal`` marks the weights of each ``pool`` that go,
    ``redistribution`` says who grows how many of the freed weights and ``growth`` where. ``removal=None`` keeps the
    topology as it started; ``growth=None`` lets weights go for good, when ``pruning`` says. Each part is an object or
    the name of a registered one. A new method is an old one with a part replaced:

    >>> SELFISH.replace(name="without cell gate redistribution", pool="gate", redistribution="gate").pool.name
    'gate'
    """

    name: str
    reference: str
    allocation: Allocation = ALLOCATIONS["uniform"]
    removal: Removal | None = None
    pool: Pool = POOLS["matrix"]
    redistribution: Redistribution = REDISTRIBUTIONS["matrix"]
    growth: Growth | None = GROWTHS["random"]
    pruning: Pruning | None = None
    own_optimizer: bool = False

    def __post_init__(self) -> None:
        try:
            for kind in METHOD_PARTS:
                object.__setattr__(self, kind, find_part(kind, getattr(self, kind)))
            self._check()
        except ValueError as error:
            raise ValueError(f"method {self.name!r}: {error}") from None

    def _check(self) -> None:
        """Refuse parts that do not go together, rather than silently not use one."""
        if self.pruning and not self.prunes:
            raise ValueError(
                f"pruning {self.pruning.name} lets weights go for good: growth must be none, and not removal"
            )
        if self.removal is None:
            return
        if self.prunes and not (
            self.allocation.dense and self.removal.can_prune and self.pool.can_prune and self.pruning
        ):
            raise ValueError(
                "without growth it only prunes: allocation must be dense, removal one of "
                f"{_those_that_prune(REMOVALS)}, pool {_those_that_prune(POOLS)} and pruning one of "
                f"{', '.join(PRUNINGS)}"
            )
        pools = [find_part("pool", each) for each in self.removal.pools or (self.pool,)]
        if self.pool not in pools:
            raise ValueError(
                f"removal {self.removal.name} does not work on each {self.pool.name}: pool must be "
                f"{' or '.join(pool.name for pool in pools)}"
            )
        if self.removal.rates and self.pool.together:
            raise ValueError(f"removal {self.removal.name}: a rate for every matrix needs a pool that lies in one")
        signals = self._signals()
        if len(set(signals.values())) > 1:
            said = ", ".join(f"{kind} by {signal.value}" for kind, signal in signals.items())
            raise ValueError(f"its parts go by different signals ({said}): use parts that go by the same")

    def _signals(self) -> dict[str, Signal]:
        parts = {kind: getattr(self, kind) for kind in ("removal", "redistribution", "growth") if self.rewires}
        return {kind: Signal(part.signal) for kind, part in parts.items() if part.signal}

    @property
    def rewires(self) -> bool:
        """Whether weights are removed and as many grown."""
        return self.removal is not None and self.growth is not None

    @property
    def prunes(self) -> bool:
        """Whether weights are removed for good, until the sparsity is reached."""
        return self.removal is not None and self.growth is None

    @property
    def stays_dense(self) -> bool:
        """Whether every weight exists from the first step to the last."""
        return self.allocation.dense and not self.prunes

    @property
    def signal(self) -> Signal | None:
        """What a rewiring goes by besides the existing weights, as its parts say."""
        return next(iter(self._signals().values()), None)

    @property
    def looks_at_gradients(self) -> bool:
        """Whether a rewiring looks at gradients of the last backward pass, of existing weights or of all positions."""
        return self.signal is not None or (self.rewires and self.redistribution.gradients)

    @property
    def sparse_backward(self) -> bool:
        """Whether nothing is ever computed or stored for weights that do not exist."""
        return not self.allocation.dense and self.signal is None

    def counts(self, shapes: Sequence[Shape], sparsity: float, done: int, planned: int | None) -> list[int]:
        """How many weights each matrix is to have after ``done`` of the ``planned`` rewirings.

        Where weights move between matrices, only the sum is as promised.
        """
        if self.pruning is None:
            return self.allocation.counts(shapes, 1 - sparsity)
        return self.pruning.counts(shapes, sparsity, done, planned or 1)

    def first_state(self) -> dict[str, Any]:
        """What the parts keep from one rewiring to the next, before the first: JSON values by kind of part."""
        return {} if self.removal is None or self.removal.state is None else {"removal": self.removal.state}

    def part_names(self) -> dict[str, str | None]:
        """The name of every part, nothing for one the method is without."""
        parts = {kind: getattr(self, kind) for kind in METHOD_PARTS}
        return {kind: None if part is None else part.name for kind, part in parts.items()}

    def replace(self, **parts: Any) -> Method:
        """A copy with some parts replaced, given as objects or by name."""
        return dataclasses.replace(self, **parts)


def _those_that_prune(table: Mapping[str, Removal | Pool]) -> str:
    return ", ".join(name for name, part in table.items() if part.can_prune)


def register_method(method: Method) -> Method:
    """Put a method of your own into the method table, and parts of its own into theirs, by their names."""
    METHODS[method.name] = method
    for kind, name in method.part_names().items():
        if name is not None:
            _TABLES[kind][1].setdefault(name, getattr(method, kind))
    return method


STATIC = Method(
    name="static",
    reference="Mocanu et al.: A topological insight into restricted Boltzmann machines, Machine Learning 2016",
)
STATIC_ER = STATIC.replace(name="static-er", allocation="er")
DENSE = STATIC.replace(name="dense", reference="the network itself", allocation="dense")
SELFISH = STATIC.replace(
    name="selfish",
    reference="Liu, Mocanu, Pei, Pechenizkiy: Selfish Sparse RNN Training, ICML 2021",
    removal="magnitude",
    pool="layer",
    redistribution="gates-equal",
    own_optimizer=True,
)
SET = STATIC.replace(
    name="set",
    reference="Mocanu et al.: Scalable training of artificial neural networks with adaptive sparse connectivity, "
    "Nature Communications 2018; per gate as in Liu et al. 2019",
    allocation="er",
    removal="magnitude",
    pool="gate",
    redistribution="gate",
)
DSR = STATIC.replace(
    name="dsr",
    reference="Mostafa, Wang: Parameter efficient training of deep convolutional neural networks by dynamic sparse "
    "reparameterization, ICML 2019",
    removal="threshold",
    pool="network",
    redistribution="layers-by-survivors",
    growth="random-elsewhere",
)
SNFS = STATIC.replace(
    name="snfs",
    reference="Dettmers, Zettlemoyer: Sparse networks from scratch, 2019",
    removal="magnitude-sparing-dense",
    redistribution="layers-by-momentum",
    growth="momentum",
)
RIGL = STATIC.replace(
    name="rigl",
    reference="Evci, Gale, Menick, Castro, Elsen: Rigging the lottery, ICML 2020",
    allocation="erk",
    removal="magnitude",
    growth="gradient",
)
GMP = STATIC.replace(
    name="gmp",
    reference="Zhu, Gupta: To prune, or not to prune, 2017",
    allocation="dense",
    removal="magnitude",
    growth=None,
    pruning="gradual",
)

METHODS = {method.name: method for method in (SELFISH, SET, DSR, SNFS, RIGL, GMP, STATIC, STATIC_ER, DENSE)}
"""The method table."""


def find_method(method: Method | str) -> Method:
    """A method itself, given it or its name."""
    if isinstance(method, str) and method not in METHODS:
        raise ValueError(unknown("method", method, METHODS))
    return METHODS[method] if isinstance(method, str) else method
