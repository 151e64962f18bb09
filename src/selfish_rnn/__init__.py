"""Train recurrent networks that are sparse from the first step to the last."""

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
    METHODS,
    RIGL,
    SELFISH,
    SET,
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
    "METHODS",
    "NTASGD",
    "RIGL",
    "SELFISH",
    "SET",
    "SNFS",
    "SNTASGD",
    "STATIC",
    "STATIC_ER",
    "GateLayout",
    "IntrinsicSparseStructures",
    "Method",
    "Sparsifier",
    "UserError",
    "load_model",
    "pack",
    "register_cell",
    "shrink",
]
__version__ = "0.1.0"
