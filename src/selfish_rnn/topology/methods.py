"""Methods as data: the table of methods, each a composition of parts."""

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
"""Parts that a method may lack."""


def register(part: AnyPart) -> AnyPart:
    """Add your own part to the names of configurations and :meth:`Method.replace`. It replaces a part of the same name.

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
    """Return a live view of the names of all parts of a kind."""
    return _TABLES[kind][1].keys()


def find_part(kind: str, part: Any) -> Any:
    """Return a part, looked up if ``part`` is a name."""
    of_kind, table = _TABLES[kind]
    if isinstance(part, str):
        if part in table:
            return table[part]
    elif isinstance(part, of_kind) or (part is None and kind in OPTIONAL_PARTS):
        return part
    raise ValueError(unknown(kind, part, [*table, *(["none"] if kind in OPTIONAL_PARTS else [])]))


@dataclass(frozen=True)
class Method:
    """A sparse training method: the start of a topology, and its change in one rewiring.

    ``allocation`` divides the budget over the matrices. ``removal`` marks weights of each ``pool``. ``redistribution``
    divides the freed weights over gates or matrices, and ``growth`` chooses their positions. With ``removal=None`` the
    topology never changes. With ``pruning`` weights are also removed for good, down to the final sparsity. With
    ``growth=None`` nothing else happens. Each part is an object or the name of a registered one. A new method is an old
    one with a part replaced:

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
        """Raise an error if parts do not fit together, rather than ignore one of them."""
        if self.removal is None:
            if self.pruning:
                raise ValueError(f"pruning {self.pruning.name} removes weights: removal must not be none")
            return
        if self.growth is None and not (self.allocation.dense and self.pool.can_prune and self.pruning):
            raise ValueError(
                "without growth a method only prunes: allocation must be dense, pool "
                f"{_names_that_prune(POOLS)} and pruning one of {', '.join(PRUNINGS)}"
            )
        if self.pruning:
            self._check_pruning(self.pruning, self.removal)
        pools = [find_part("pool", pool) for pool in self.removal.pools or (self.pool,)]
        if self.pool not in pools:
            raise ValueError(
                f"removal {self.removal.name} does not support pool {self.pool.name}: pool must be "
                f"{' or '.join(pool.name for pool in pools)}"
            )
        if self.removal.rates and self.pool.network:
            raise ValueError(f"removal {self.removal.name}: rates for every matrix need a pool within a matrix")
        if self.removal.whole and not self.pool.can_prune:
            raise ValueError(f"removal {self.removal.name} judges whole matrices: pool must be matrix")
        signals = self._signals()
        if len(set(signals.values())) > 1:
            listed = ", ".join(f"{kind} by {signal.value}" for kind, signal in signals.items())
            raise ValueError(f"parts need different signals ({listed}): use parts that share one")

    def _check_pruning(self, pruning: Pruning, removal: Removal) -> None:
        if not removal.can_prune:
            raise ValueError(
                f"pruning {pruning.name} removes exact numbers of weights: removal must be one of "
                f"{_names_that_prune(REMOVALS)}"
            )
        moves = self.rewires and (self.pool.network or self.redistribution.counts is not None)
        uneven = self.allocation not in (ALLOCATIONS["uniform"], ALLOCATIONS["dense"])
        if not pruning.network and (moves or uneven):
            raise ValueError(
                f"pruning {pruning.name} brings every matrix to the same density: allocation must be uniform or dense, "
                "and redistribution within a matrix or layer"
            )

    def _signals(self) -> dict[str, Signal]:
        parts = {kind: getattr(self, kind) for kind in ("removal", "redistribution", "growth") if self.rewires}
        return {kind: Signal(part.signal) for kind, part in parts.items() if part.signal}

    @property
    def rewires(self) -> bool:
        """True if a rewiring removes weights and grows the same number."""
        return self.removal is not None and self.growth is not None

    @property
    def prunes(self) -> bool:
        """True if weights are removed for good until the sparsity is reached. A method may prune and rewire."""
        return self.pruning is not None

    @property
    def moves_between_matrices(self) -> bool:
        """True if a matrix may gain weights that another one loses, other than those of its layer."""
        over_network = self.pool.network or self.redistribution.counts is not None
        return (self.rewires and over_network) or (self.pruning is not None and self.pruning.network)

    @property
    def stays_dense(self) -> bool:
        """True if every weight exists throughout the run."""
        return self.allocation.dense and not self.prunes

    @property
    def signal(self) -> Signal | None:
        """Quantity that a rewiring needs of positions without a weight, if any."""
        return next(iter(self._signals().values()), None)

    @property
    def uses_gradients(self) -> bool:
        """True if a rewiring uses gradients of the last backward pass, of existing weights or of other positions."""
        return self.signal is not None or self.uses_weight_gradients

    @property
    def uses_weight_gradients(self) -> bool:
        """True if a rewiring uses the gradients of the existing weights in the last backward pass."""
        if self.removal is None:
            return False
        return self.removal.gradients or (self.rewires and self.redistribution.gradients)

    @property
    def sparse_backward(self) -> bool:
        """True if no dense gradient or momentum is ever computed or stored.

        A method that samples gradients computes a few for positions without a weight before a rewiring.
        """
        return not self.allocation.dense and (self.signal is None or not self.signal.dense)

    def counts(self, shapes: Sequence[Shape], sparsity: float, done: int, planned: int | None) -> list[int]:
        """Return the number of weights that each matrix should have after ``done`` of the ``planned`` rewirings.

        If weights move between matrices, only the sum is binding.
        """
        if self.pruning is None:
            return self.allocation.counts(shapes, 1 - sparsity)
        if done == 0:
            return self.allocation.counts(shapes, 1 - self.pruning.sparsity(0.0, sparsity))
        return self.pruning.counts(shapes, sparsity, done, planned or 1)

    def first_state(self) -> dict[str, Any]:
        """Return the state of the parts before the first rewiring: JSON values by kind of part."""
        return {} if self.removal is None or self.removal.state is None else {"removal": self.removal.state}

    def part_names(self) -> dict[str, str | None]:
        """Return the name of every part, or None for a missing part."""
        parts = {kind: getattr(self, kind) for kind in METHOD_PARTS}
        return {kind: None if part is None else part.name for kind, part in parts.items()}

    def replace(self, **parts: Any) -> Method:
        """Return a copy with some parts replaced, by object or name."""
        return dataclasses.replace(self, **parts)


def _names_that_prune(table: Mapping[str, Removal | Pool]) -> str:
    return ", ".join(name for name, part in table.items() if part.can_prune)


def register_method(method: Method) -> Method:
    """Add your own method to the method table, and its new parts to their tables."""
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

METHODS: dict[str, Method] = {
    method.name: method for method in (SELFISH, SET, DSR, SNFS, RIGL, GMP, STATIC, STATIC_ER, DENSE)
}
"""The method table."""


def find_method(method: Method | str) -> Method:
    """Return a method, looked up if ``method`` is a name."""
    if isinstance(method, str) and method not in METHODS:
        raise ValueError(unknown("method", method, METHODS))
    return METHODS[method] if isinstance(method, str) else method
