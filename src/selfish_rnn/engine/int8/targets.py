"""Choice of the int8 kernels. Whole numbers are the same on every processor, so results do not depend on it."""

from __future__ import annotations

from selfish_rnn.engine.library import INT8

int8_target, int8_targets, use_int8_target = INT8.current, INT8.runnable, INT8.use

in_use = INT8.number
"""Return the number of the kernels in use, which read only matrices that were laid out for them."""
