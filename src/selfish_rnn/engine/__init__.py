"""The packed engine: store and multiply only the weights that exist, on a CPU.

::

    lstm = PackedLSTM.from_dense(lstm)          # the non-zeros of a torch.nn.LSTM
    decoder = PackedLinear.from_dense(decoder)
    loss = linear_cross_entropy(lstm(inputs)[0], decoder.weight, decoder.bias, targets)
"""

import torch

from selfish_rnn.engine import parameters as _parameters
from selfish_rnn.engine.averaging import AveragedModel, blend_
from selfish_rnn.engine.functional import linear_cross_entropy, output_loss
from selfish_rnn.engine.int8.quantization import quantize
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.library import available
from selfish_rnn.engine.modules.basic import PackedEmbedding, PackedLinear
from selfish_rnn.engine.modules.cells import PackedGRUCell, PackedLSTMCell, PackedRNNCell
from selfish_rnn.engine.modules.recurrent import PackedGRU, PackedLSTM, PackedRNN
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.packing import pack, unpack
from selfish_rnn.engine.parameters import is_matrix
from selfish_rnn.engine.registry import register_packed
from selfish_rnn.engine.saving import load_packed, save_packed
from selfish_rnn.topology import GateLayout

__all__ = [
    "AveragedModel", "PackedEmbedding", "PackedGRU", "PackedGRUCell", "PackedLSTM", "PackedLSTMCell", "PackedLinear",
    "PackedRNN", "PackedRNNCell", "PackedWeight", "QuantizedWeight", "available", "blend_", "is_matrix",
    "linear_cross_entropy", "load_packed", "output_loss", "pack", "quantize", "register_packed", "save_packed",
    "unpack",
]  # fmt: skip

# With these a packed or int8 model that was saved whole opens with torch.load(..., weights_only=True).
torch.serialization.add_safe_globals([GateLayout, PackedWeight, QuantizedWeight])

del _parameters  # imported for its optimizer hook
