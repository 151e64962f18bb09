from selfish_rnn.sparsifier.sparsifier import Sparsifier

__all__ = ["Sparsifier"]
