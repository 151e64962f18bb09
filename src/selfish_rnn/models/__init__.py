"""Language models: the networks of the paper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from selfish_rnn.models.base import Encoded, LanguageModel, State, detach
from selfish_rnn.models.mos import MixtureOfSoftmaxesLSTM
from selfish_rnn.models.on_lstm import OrderedNeuronsLSTM
from selfish_rnn.models.rhn import RecurrentHighwayNetwork
from selfish_rnn.models.stacked import StackedRNN

MODELS: dict[str, Callable[..., LanguageModel]] = {
    "stacked-lstm": partial(StackedRNN, cell="lstm"),
    "stacked-gru": partial(StackedRNN, cell="gru"),
    "stacked-rnn": partial(StackedRNN, cell="rnn"),
    "rhn": RecurrentHighwayNetwork,
    "on-lstm": OrderedNeuronsLSTM,
    "awd-lstm-mos": MixtureOfSoftmaxesLSTM,
}
"""Models by their name in configurations; call one with the vocabulary size and keyword arguments."""

__all__ = [
    "MODELS", "Encoded", "LanguageModel", "MixtureOfSoftmaxesLSTM", "OrderedNeuronsLSTM", "RecurrentHighwayNetwork",
    "StackedRNN", "State", "detach",
]  # fmt: skip
