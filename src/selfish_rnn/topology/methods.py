"""Methods as data: the paper's Table 1, each a composition of named parts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from selfish_rnn.topology.allocation import ALLOCATIONS
from selfish_rnn.topology.growth import GROWTHS
from selfish_rnn.topology.redistribution import LAYER_REDISTRIBUTIONS, REDISTRIBUTIONS
from selfish_rnn.topology.removal import NETWORK_REMOVALS, REMOVALS, Pool

NEED_MOMENTUM = ("magnitude-sparing-dense", "layers-by-momentum", "momentum")
"""Parts that go by the momentum of weights, or their gradient where the optimizer has no momentum."""

GROUP_LASSO = "group-lasso"
"""Removal by a penalty in the loss instead of by choice: see :class:`selfish_rnn.IntrinsicSparseStructures`."""


def known_parts() -> dict[str, tuple[str | None, ...]]:
    """The parts of a method and what each can be, with what was added to the tables of parts."""
    return {
        "allocation": tuple(ALLOCATIONS),
        "removal": (*REMOVALS, *NETWORK_REMOVALS, GROUP_LASSO, None),
        "pool": ("gate", "matrix", "network"),
        "redistribution": (*REDISTRIBUTIONS, *LAYER_REDISTRIBUTIONS),
        "growth": (*GROWTHS, None),
    }


@dataclass(frozen=True)
class Method:
    """How a topology starts and how one rewiring changes it.

    ``allocation`` divides the budget over the matrices, ``removal`` marks the weights of each ``pool`` that go,
    ``redistribution`` says who grows how many of the freed weights and ``growth`` where. ``removal=None`` keeps the
    topology as it started, ``growth=None`` only prunes. A new method is an old one with a part replaced:

    >>> SELFISH.replace(name="without cell gate redistribution", pool="gate", redistribution="gate").pool
    'gate'
    """

    name: str
    reference: str
    allocation: str = "uniform"
    removal: str | None = None
    pool: Pool = "matrix"
    redistribution: str = "matrix"
    growth: str | None = "random"
    own_optimizer: bool = False

    def __post_init__(self) -> None:
        for part, known in known_parts().items():
            value = getattr(self, part)
            if value not in known:
                raise ValueError(f"method {self.name!r}: {part} must be one of {list(known)}, got {value!r}")
        if problem := self._problem():
            raise ValueError(f"method {self.name!r}: {problem}")

    def _problem(self) -> str | None:
        """Parts that do not go together, rather than parts that are silently not used."""
        if self.prunes and (self.allocation, self.removal, self.pool) != ("dense", "magnitude", "matrix"):
            return "without growth it only prunes: allocation must be dense, removal magnitude and pool matrix"
        if self.removal == "threshold" and self.pool != "network":
            return "removal by threshold is over the whole network: pool must be network"
        if self.removal == "magnitude-sparing-dense" and self.pool != "matrix":
            return "removal that spares dense matrices is per matrix: pool must be matrix"
        if self.growth == "gradient" and self.signal == "momentum":
            return "growth by gradient does not go with parts that go by momentum; use growth momentum"
        return None

    @property
    def rewires(self) -> bool:
        """Whether weights are removed and as many grown."""
        return self.removal is not None and self.growth is not None

    @property
    def prunes(self) -> bool:
        """Whether weights are removed for good, until the sparsity is reached."""
        return self.removal in REMOVALS and self.growth is None

    @property
    def signal(self) -> str | None:
        """What a rewiring goes by besides the weights: ``"gradient"``, ``"momentum"`` or nothing.

        It is that of the whole matrix, also of weights that do not exist.
        """
        if not self.rewires or self.growth is None:
            return None
        if {self.removal, self.redistribution, self.growth} & set(NEED_MOMENTUM):
            return "momentum"
        return GROWTHS[self.growth].signal

    @property
    def sparse_backward(self) -> bool:
        """Whether nothing is ever computed or stored for weights that do not exist."""
        return self.allocation != "dense" and self.signal is None

    def replace(self, **parts: str | None) -> Method:
        """A copy with some parts replaced."""
        return dataclasses.replace(self, **parts)  # type: ignore[arg-type]


SELFISH = Method(
    name="selfish",
    reference="Liu, Mocanu, Pei, Pechenizkiy: Selfish Sparse RNN Training, ICML 2021",
    removal="magnitude",
    redistribution="gates-equal",
    own_optimizer=True,
)
SET = Method(
    name="set",
    reference="Mocanu et al.: Scalable training of artificial neural networks with adaptive sparse connectivity, "
    "Nature Communications 2018; per gate as in Liu et al. 2019",
    allocation="er",
    removal="magnitude",
    pool="gate",
    redistribution="gate",
)
DSR = Method(
    name="dsr",
    reference="Mostafa, Wang: Parameter efficient training of deep convolutional neural networks by dynamic sparse "
    "reparameterization, ICML 2019",
    removal="threshold",
    pool="network",
    redistribution="layers-by-survivors",
    growth="random-elsewhere",
)
SNFS = Method(
    name="snfs",
    reference="Dettmers, Zettlemoyer: Sparse networks from scratch, 2019",
    removal="magnitude-sparing-dense",
    redistribution="layers-by-momentum",
    growth="momentum",
)
RIGL = Method(
    name="rigl",
    reference="Evci, Gale, Menick, Castro, Elsen: Rigging the lottery, ICML 2020",
    allocation="erk",
    removal="magnitude",
    growth="gradient",
)
GMP = Method(
    name="gmp",
    reference="Zhu, Gupta: To prune, or not to prune, 2017",
    allocation="dense",
    removal="magnitude",
    growth=None,
)
ISS = Method(
    name="iss",
    reference="Wen et al.: Learning intrinsic sparse structures within long short-term memory, ICLR 2018",
    allocation="dense",
    removal=GROUP_LASSO,
    growth=None,
)
STATIC = Method(
    name="static",
    reference="Mocanu et al.: A topological insight into restricted Boltzmann machines, Machine Learning 2016",
)
STATIC_ER = STATIC.replace(name="static-er", allocation="er")
DENSE = Method(
    name="dense",
    reference="the network itself",
    allocation="dense",
)
SMALL_DENSE = DENSE.replace(
    name="small-dense", reference="a dense network of the same kind with as many weights as the sparse one"
)

METHODS: dict[str, Method] = {
    method.name: method for method in (SELFISH, SET, DSR, SNFS, RIGL, GMP, ISS, STATIC, STATIC_ER, DENSE, SMALL_DENSE)
}
"""The method table."""
