"""Train recurrent networks that are sparse from the first step to the last."""

from selfish_rnn.cells import register_cell
from selfish_rnn.errors import UserError
from selfish_rnn.optim import NTASGD, SNTASGD
from selfish_rnn.sparsifier import Sparsifier
from selfish_rnn.topology import METHODS, SELFISH, STATIC, GateLayout, Method

__all__ = [
    "METHODS",
    "NTASGD",
    "SELFISH",
    "SNTASGD",
    "STATIC",
    "GateLayout",
    "Method",
    "Sparsifier",
    "UserError",
    "register_cell",
]
__version__ = "0.1.0"
