"""SNT-ASGD and NT-ASGD as ordinary torch optimizers."""

from selfish_rnn.optim.averaged import NTASGD, SNTASGD, AveragedSGD, NonMonotoneTrigger

__all__ = ["NTASGD", "SNTASGD", "AveragedSGD", "NonMonotoneTrigger"]
