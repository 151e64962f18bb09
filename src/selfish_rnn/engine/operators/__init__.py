"""The kernels as operators of torch: ``torch.ops.selfish_rnn``."""

from selfish_rnn.engine.operators.products import cross_entropy, linear, linear_backward, lookup

__all__ = ["cross_entropy", "linear", "linear_backward", "lookup"]
