"""Several processes that train one model together: who they are, and how they divide a batch."""

from selfish_rnn.training.parallel.joining import joined, restartable
from selfish_rnn.training.parallel.parts import BatchPart, BatchParts, refuse_uneven_parts
from selfish_rnn.training.parallel.ranks import ALONE, Ranks

__all__ = ["ALONE", "BatchPart", "BatchParts", "Ranks", "joined", "refuse_uneven_parts", "restartable"]
