"""Methods published after the paper, each in a file with the parts that it adds to the tables."""

from selfish_rnn.topology.newer.cannistraci_hebb import CHTS, CHTSS
from selfish_rnn.topology.newer.constant_fan_in import SRIGL
from selfish_rnn.topology.newer.granet import GRANET
from selfish_rnn.topology.newer.mest import MEST
from selfish_rnn.topology.newer.stochastic_exploration import GSE

__all__ = ["CHTS", "CHTSS", "GRANET", "GSE", "MEST", "SRIGL"]
