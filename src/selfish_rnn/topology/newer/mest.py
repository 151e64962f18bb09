"""MEST: removal by magnitude and gradient, growth at random.

Yuan et al.: *MEST: Accurate and fast memory-economic sparse training framework on the edge*, NeurIPS 2021. It is the
variant with a hard bound of memory, "EM". The variant that grows before it removes exceeds the budget in between, and
is not offered. The publication lowers the rate in steps: ``schedule="steps"``.
"""

from __future__ import annotations

from torch import Tensor

from selfish_rnn.topology.methods import Method, register_method
from selfish_rnn.topology.removal import Removal, by_magnitude


def by_weight_and_gradient(values: Tensor, rate: float, gradients: Tensor, strength: float = 0.1) -> Tensor:
    """Mark the ``round(rate * n)`` weights with the smallest ``|weight| + strength |gradient|``.

    A small weight with a large gradient will soon be large, so it stays. The publication chooses ``strength`` for each
    data set, between 0.01 and 1.
    """
    return by_magnitude(values.abs() + strength * gradients.abs(), rate)


MEST = register_method(
    Method(
        name="mest",
        reference="Yuan et al.: MEST, accurate and fast memory-economic sparse training framework on the edge, "
        "NeurIPS 2021",
        removal=Removal("magnitude-and-gradient", by_weight_and_gradient, gradients=True),
    )
)
