"""Which int8 kernels are in use. Whole numbers are the same on every processor, so results do not depend on it."""

from __future__ import annotations

from selfish_rnn.engine import library

TARGETS = ("portable", "avx2", "avx-vnni", "avx512-vnni", "avx512-vbmi")
"""The kinds of processors there are int8 kernels for, from the slowest on."""

_changes = 0


def int8_target() -> str:
    """Which of :data:`TARGETS` the int8 kernels in use are for."""
    return TARGETS[library.kernels().selfish_int8_target()]


def int8_targets() -> tuple[str, ...]:
    """Those this processor can run."""
    runs = library.kernels().selfish_int8_target_runs
    return tuple(name for number, name in enumerate(TARGETS) if runs(number))


def use_int8_target(name: str) -> None:
    """Use the int8 kernels for another kind of processor, for instance to compare them."""
    global _changes
    if name not in int8_targets():
        raise ValueError(f"this processor runs int8 kernels for {', '.join(int8_targets())}, not for {name!r}")
    library.kernels().selfish_int8_use_target(TARGETS.index(name))
    _changes += 1


def changes() -> int:
    """How often :func:`use_int8_target` was called: a matrix that was laid out before is laid out again."""
    return _changes
