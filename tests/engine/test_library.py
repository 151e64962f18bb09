"""Loading the kernels."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from packed_cases import needs_kernels

from selfish_rnn.engine import library

MAPS = Path("/proc/self/maps")


def test_without_the_library_the_engine_is_not_available(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "_kernels.so")
    assert not library.available()
    with pytest.raises(RuntimeError, match=r"takes a C\+\+ compiler .* reinstall, or use the masked engine"):
        library.kernels.__wrapped__()


@needs_kernels
def test_kernels_of_every_kind_of_processor() -> None:
    before = library.target()
    assert library.targets()[0] == "portable"
    assert before == library.targets()[-1]
    for name in library.targets():
        library.use_target(name)
        assert library.target() == name
    library.use_target(before)
    with pytest.raises(ValueError, match=r"this processor runs kernels for portable.*, not for 'abacus'"):
        library.use_target("abacus")


@needs_kernels
@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc")
def test_the_process_has_one_openmp_runtime() -> None:
    library.kernels()
    runtimes = set(re.findall(r"\S*/lib(?:gomp|omp|iomp5)\b\S*", MAPS.read_text()))
    assert len(runtimes) == 1


def test_structures_are_plain_eight_byte_fields() -> None:
    """As in layer.hpp and packed.hpp, where nothing is padded."""
    for structure in (library.LayerForward, library.LayerBackward, library.IndexHeader):
        size = 8 * sum(ctypes.sizeof(kind) // 8 for _, kind in structure._fields_)
        assert ctypes.sizeof(structure) == size
