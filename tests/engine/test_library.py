"""Loading the kernels."""

from __future__ import annotations

import ctypes
import itertools
import re
from pathlib import Path

import pytest
from packed_cases import needs_kernels

from selfish_rnn.engine import abi, library

MAPS = Path("/proc/self/maps")
SOURCE = Path(__file__).parents[2] / "src" / "selfish_rnn"
HEADERS = tuple(
    SOURCE / name for name in ("engine/kernels/abi.hpp", "engine/kernels/bf16_abi.hpp", "runtime/kernels/abi.hpp")
)


def test_without_the_library_the_engine_is_not_available(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "_kernels.so")
    assert not library.available()
    with pytest.raises(RuntimeError, match=r"takes a C\+\+ compiler .* reinstall, or use the masked engine"):
        library.kernels.__wrapped__()


def test_a_library_that_the_system_cannot_load_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "_kernels.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library, "LIBRARY", broken)
    assert not library.available()
    assert not library.available()
    assert len([record for record in caplog.records if str(broken) in record.message]) == 1
    with pytest.raises(RuntimeError, match=r"cannot be loaded: .*; use the masked engine"):
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


@needs_kernels
def test_every_structure_is_the_one_of_the_header() -> None:
    """Names, kinds and order of all fields, read from the headers by other means than the library's."""
    names: dict[str, list[str]] = {}
    code = re.sub(r"//.*", "", "".join(header.read_text() for header in HEADERS))
    for structure, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", code, flags=re.DOTALL | re.MULTILINE):
        names[structure] = re.findall(r"(\w+)(?:\[\d+\])?[,;]", body)
    found = library.structures()
    assert len(found) == 18
    assert {name: [field for field, _ in found[name]._fields_] for name in found} == names
    for structure in found.values():
        for offset, (field, kind) in zip(offsets(structure), structure._fields_, strict=True):
            assert getattr(structure, field).offset == offset
            assert kind in (ctypes.c_int64, ctypes.c_double, ctypes.c_void_p, *found.values()) or field == "offset"


def offsets(structure: type[ctypes.Structure]) -> list[int]:
    """Nothing is padded."""
    return list(itertools.accumulate((ctypes.sizeof(kind) for _, kind in structure._fields_[:-1]), initial=0))


@needs_kernels
def test_a_library_of_other_structures_is_refused() -> None:
    description = library._description(library.kernels())
    sizes = [ctypes.sizeof(structure) for structure in library.structures().values()]
    assert list(abi.structures(description, sizes)) == list(library.structures())
    for wrong in (sizes[:-1], [*sizes[:-1], sizes[-1] + 8]):
        with pytest.raises(RuntimeError, match="do not agree: reinstall"):
            abi.structures(description, wrong)


@needs_kernels
def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="LayerForward has no field stepps"):
        library.run("layer_forward", {"steps": 1}, stepps=1)


@needs_kernels
def test_panels_of_a_trace_are_those_of_the_kernels() -> None:
    for columns in range(1, 400):
        assert library._traced_panel_columns(columns) == library.panel_floats(columns, 1) >= columns
        assert library.panel_floats(columns, 7) == 7 * library.panel_floats(columns, 1)
        assert library._traced_step_columns(columns) == library.step_floats(columns, 1) >= columns
