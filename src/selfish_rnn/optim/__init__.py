"""SNT-ASGD and NT-ASGD as ordinary torch optimizers, and averages of the iterates of any optimizer."""

from selfish_rnn.optim.averaged import NTASGD, SNTASGD, AveragedSGD
from selfish_rnn.optim.iterate_average import IterateAverage
from selfish_rnn.optim.triggers import EpochTrigger, NonMonotoneTrigger, Trigger

__all__ = ["NTASGD", "SNTASGD", "AveragedSGD", "EpochTrigger", "IterateAverage", "NonMonotoneTrigger", "Trigger"]
