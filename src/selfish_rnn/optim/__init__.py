"""SNT-ASGD and NT-ASGD as ordinary torch optimizers."""

from selfish_rnn.optim.averaged import NTASGD, SNTASGD
from selfish_rnn.optim.trigger import NonMonotoneTrigger

__all__ = ["NTASGD", "SNTASGD", "NonMonotoneTrigger"]
