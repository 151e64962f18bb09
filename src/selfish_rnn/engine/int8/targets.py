"""Which int8 kernels are in use. Whole numbers are the same on every processor, so results do not depend on it."""

from __future__ import annotations

from selfish_rnn.engine import library

TARGETS = ("portable", "avx2", "avx-vnni", "avx512-vnni", "avx512-vbmi")
"""The kinds of processors there are int8 kernels for, from the slowest on."""

_in_use: int | None = None


def int8_target() -> str:
    """Which of :data:`TARGETS` the int8 kernels in use are for."""
    return TARGETS[library.kernels().selfish_int8_target()]


def int8_targets() -> tuple[str, ...]:
    """Those this processor can run."""
    runs = library.kernels().selfish_int8_target_runs
    return tuple(name for number, name in enumerate(TARGETS) if runs(number))


def use_int8_target(name: str) -> None:
    """Use the int8 kernels for another kind of processor, for instance to compare them."""
    global _in_use
    if name not in int8_targets():
        raise ValueError(f"this processor runs int8 kernels for {', '.join(int8_targets())}, not for {name!r}")
    _in_use = TARGETS.index(name)
    library.kernels().selfish_int8_use_target(_in_use)


def in_use() -> int:
    """The number of the kernels in use, which follow matrices that were laid out for them and no others."""
    global _in_use
    if _in_use is None:
        _in_use = int(library.kernels().selfish_int8_target())
    return _in_use
