"""Loading the kernels."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from packed_cases import needs_kernels

from selfish_rnn.engine import native

MAPS = Path("/proc/self/maps")


def test_without_the_library_the_engine_is_not_available(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "_kernels.so")
    assert not native.available()
    with pytest.raises(RuntimeError, match=r"takes a C\+\+ compiler .* reinstall, or use the masked engine"):
        native.library.__wrapped__()


@needs_kernels
def test_kernels_of_every_kind_of_processor() -> None:
    before = native.target()
    assert native.targets()[0] == "portable"
    assert before == native.targets()[-1]
    for name in native.targets():
        native.use_target(name)
        assert native.target() == name
    native.use_target(before)
    with pytest.raises(ValueError, match=r"this processor runs kernels for portable.*, not for 'abacus'"):
        native.use_target("abacus")


@needs_kernels
@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc")
def test_the_process_has_one_openmp_runtime() -> None:
    native.library()
    runtimes = set(re.findall(r"\S*/lib(?:gomp|omp|iomp5)\b\S*", MAPS.read_text()))
    assert len(runtimes) == 1


def test_structures_are_plain_eight_byte_fields() -> None:
    """As in layer.hpp and packed.hpp, where nothing is padded."""
    for structure in (native.LayerForward, native.LayerBackward, native.IndexHeader):
        size = 8 * sum(ctypes.sizeof(kind) // 8 for _, kind in structure._fields_)
        assert ctypes.sizeof(structure) == size
