"""GraNet: gradual pruning with regrowth.

Liu et al.: *Sparse training via boosting pruning plasticity with neuroregeneration*, NeurIPS 2021, the sparse-to-sparse
variant. After every pruning each matrix loses another fraction of its smallest weights, and as many grow by gradient.
"""

from __future__ import annotations

from selfish_rnn.topology.methods import Method, register_method
from selfish_rnn.topology.schedules import Pruning, gradual_sparsity


def from_half(progress: float, final: float) -> float:
    """Return the sparsity of GraNet: from one half, or ``final`` if less, to ``final`` in the first half of the run."""
    first = min(0.5, final)
    return first + gradual_sparsity(progress, final - first, start=0.0, end=0.5)


GRANET = register_method(
    Method(
        name="granet",
        reference="Liu et al.: Sparse training via boosting pruning plasticity with neuroregeneration, NeurIPS 2021",
        allocation="erk",  # type: ignore[arg-type]
        removal="magnitude",  # type: ignore[arg-type]
        growth="gradient",  # type: ignore[arg-type]
        pruning=Pruning("gradual-from-half", from_half, network=True),
    )
)
