"""Which weights exist, and how that changes: pure functions on tensors.

A :class:`Topology` is the set of existing positions of one matrix, its rows divided into gates by a
:class:`GateLayout`. A :class:`Method` names the parts that make a topology and change it: allocation, removal,
redistribution and growth; :func:`rewire` puts them together.
"""

from selfish_rnn.topology.allocation import ALLOCATIONS, budget
from selfish_rnn.topology.gates import GateLayout
from selfish_rnn.topology.methods import (
    DENSE,
    DSR,
    GMP,
    ISS,
    METHODS,
    RIGL,
    SELFISH,
    SET,
    SMALL_DENSE,
    SNFS,
    STATIC,
    STATIC_ER,
    Method,
)
from selfish_rnn.topology.rewiring import ActiveWeights, Rewiring, prune, rewire
from selfish_rnn.topology.schedules import SCHEDULES
from selfish_rnn.topology.topology import Topology

__all__ = [
    "ALLOCATIONS",
    "DENSE",
    "DSR",
    "GMP",
    "ISS",
    "METHODS",
    "RIGL",
    "SCHEDULES",
    "SELFISH",
    "SET",
    "SMALL_DENSE",
    "SNFS",
    "STATIC",
    "STATIC_ER",
    "ActiveWeights",
    "GateLayout",
    "Method",
    "Rewiring",
    "Topology",
    "budget",
    "prune",
    "rewire",
]
