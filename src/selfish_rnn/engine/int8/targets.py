"""Choice of the int8 kernels. Whole numbers are the same on every processor, so results do not depend on it."""

from __future__ import annotations

from selfish_rnn.engine import library

TARGETS = ("portable", "avx2", "avx-vnni", "avx512-vnni", "avx512-vbmi")
"""Targets of int8 kernels, from the slowest on."""

_in_use: int | None = None


def int8_target() -> str:
    """Return the target of the int8 kernels in use."""
    return TARGETS[library.kernels().selfish_int8_target()]


def int8_targets() -> tuple[str, ...]:
    """Return the targets that this processor can run."""
    runs = library.kernels().selfish_int8_target_runs
    return tuple(name for number, name in enumerate(TARGETS) if runs(number))


def use_int8_target(name: str) -> None:
    """Use the int8 kernels of another target, for instance to compare them."""
    global _in_use
    if name not in int8_targets():
        raise ValueError(f"this processor runs int8 kernels for {', '.join(int8_targets())}, not for {name!r}")
    _in_use = TARGETS.index(name)
    library.kernels().selfish_int8_use_target(_in_use)


def in_use() -> int:
    """Return the number of the kernels in use; they read only matrices that were laid out for them."""
    global _in_use
    if _in_use is None:
        _in_use = int(library.kernels().selfish_int8_target())
    return _in_use
