"""Topologies and the methods that change them: pure functions on tensors.

A :class:`Topology` is the set of existing positions of one matrix. A :class:`GateLayout` divides its rows into gates. A
:class:`Method` is composed of parts: allocation, removal, redistribution and growth. :func:`rewire` applies a method to
all matrices of a network.
"""

from selfish_rnn.topology.allocation import ALLOCATIONS, Allocation, budget
from selfish_rnn.topology.gates import GateLayout
from selfish_rnn.topology.growth import GROWTHS, Growth
from selfish_rnn.topology.methods import (
    DENSE,
    DSR,
    GMP,
    METHODS,
    RIGL,
    SELFISH,
    SET,
    SNFS,
    STATIC,
    STATIC_ER,
    Method,
    register,
    register_method,
)
from selfish_rnn.topology.newer import CHTS, CHTSS, GRANET, GSE, MEST, SRIGL
from selfish_rnn.topology.redistribution import REDISTRIBUTIONS, Redistribution
from selfish_rnn.topology.removal import POOLS, REMOVALS, Pool, Removal, Signal
from selfish_rnn.topology.rewiring import Rewiring, prune, rewire
from selfish_rnn.topology.schedules import SCHEDULES, Pruning, Schedule
from selfish_rnn.topology.topology import ActiveWeights, LayerTopology, Topology
from selfish_rnn.topology.views import View, parse_granularity

__all__ = [
    "ALLOCATIONS", "CHTS", "CHTSS", "DENSE", "DSR", "GMP", "GRANET", "GROWTHS", "GSE", "MEST", "METHODS", "POOLS",
    "REDISTRIBUTIONS", "REMOVALS", "RIGL", "SCHEDULES", "SELFISH", "SET", "SNFS", "SRIGL", "STATIC", "STATIC_ER",
    "ActiveWeights", "Allocation", "GateLayout", "Growth", "LayerTopology", "Method", "Pool", "Pruning",
    "Redistribution", "Removal", "Rewiring", "Schedule", "Signal", "Topology", "View", "budget", "parse_granularity",
    "prune", "register", "register_method", "rewire",
]  # fmt: skip
