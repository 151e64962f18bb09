"""Train recurrent networks that are sparse from the first step to the last."""

from selfish_rnn.analysis.distance import topology_distance
from selfish_rnn.analysis.flops import flops
from selfish_rnn.analysis.gates import gate_densities
from selfish_rnn.engine import pack
from selfish_rnn.errors import UserError
from selfish_rnn.optim import NTASGD, SNTASGD
from selfish_rnn.runs.export import load_model
from selfish_rnn.sparsifier import Sparsifier
from selfish_rnn.sparsifier.intrinsic import IntrinsicSparseStructures, shrink
from selfish_rnn.sparsifier.registry import register_cell
from selfish_rnn.topology import (
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
    GateLayout,
    Method,
)

__all__ = [
    "DENSE",
    "DSR",
    "GMP",
    "ISS",
    "METHODS",
    "NTASGD",
    "RIGL",
    "SELFISH",
    "SET",
    "SMALL_DENSE",
    "SNFS",
    "SNTASGD",
    "STATIC",
    "STATIC_ER",
    "GateLayout",
    "IntrinsicSparseStructures",
    "Method",
    "Sparsifier",
    "UserError",
    "flops",
    "gate_densities",
    "load_model",
    "pack",
    "register_cell",
    "shrink",
    "topology_distance",
]
__version__ = "0.1.0"
