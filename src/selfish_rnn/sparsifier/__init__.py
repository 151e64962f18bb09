from selfish_rnn.sparsifier.base import SparseTraining
from selfish_rnn.sparsifier.sparsifier import Sparsifier

__all__ = ["SparseTraining", "Sparsifier"]
