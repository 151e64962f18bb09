"""The kernels for other processors and by other compilers, against plain loops; what cannot be built says why."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from selfish_rnn.engine import available
from selfish_rnn.engine.int8.targets import int8_targets

SOURCE = Path(__file__).parents[2] / "src" / "selfish_rnn"
KERNELS, RUNTIME = (SOURCE / package / "kernels" for package in ("engine", "runtime"))
FEWEST_CASES = {"plain_loops.cpp": 200, "plain_int8.cpp": 300}
"""The programs, and how many comparisons each makes at least."""

FLAGS = ("-std=c++17", "-O1", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi", "-Wno-unknown-pragmas")


def need(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def compare(folder: Path, compiler: list[str], run_with: list[str], threads: str) -> str:
    """Both programs with the kernels for any processor: enough cases, no large difference, and these threads.

    Returns what the last one, that of int8, said.
    """
    kernels = {
        source: source.stem
        for folder in (KERNELS, RUNTIME)
        for source in folder.glob("*.cpp")
        if "avx" not in source.name
    }
    programs = {Path(__file__).with_name(name): Path(name).stem for name in FEWEST_CASES}
    for source in [*kernels, *programs]:
        whole_numbers = source.parent == RUNTIME or source.stem == "plain_int8"
        exact = ["-ffp-contract=off"] if whole_numbers else []  # as setup.py has it
        to = folder / f"{source.parent.parent.name}-{source.stem}.o"
        command = [*compiler, *FLAGS, *exact, f"-I{SOURCE}", "-c", str(source), "-o", str(to)]
        subprocess.run(command, check=True, timeout=600)
    library = [str(folder / f"{source.parent.parent.name}-{stem}.o") for source, stem in kernels.items()]
    for source, stem in programs.items():
        program = folder / stem
        subprocess.run([*compiler, str(folder / f"tests-{stem}.o"), *library, "-o", str(program)], check=True)
        done = subprocess.run([*run_with, str(program)], capture_output=True, text=True, timeout=300)
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        match = re.search(r"(\d+) cases, largest difference (\S+), (.*)", done.stdout)
        assert match is not None
        assert int(match[1]) >= FEWEST_CASES[source.name]
        assert float(match[2]) < 2e-5
        assert match[3] == threads
    return done.stdout


@pytest.mark.slow
def test_the_kernels_for_aarch64_compute_what_plain_loops_do(tmp_path: Path) -> None:
    need("aarch64-linux-gnu-g++", "qemu-aarch64")
    run_with = ["qemu-aarch64", "-E", "OMP_NUM_THREADS=2"]
    compare(tmp_path, ["aarch64-linux-gnu-g++", "-static", "-fopenmp"], run_with, "several threads")


@pytest.mark.slow
def test_clang_builds_the_kernels_without_threads(tmp_path: Path) -> None:
    need("clang++")
    compare(tmp_path, ["clang++"], [], "one thread")


@pytest.mark.slow
def test_the_int8_kernels_for_avx_vnni_compute_what_plain_loops_do(tmp_path: Path) -> None:
    need("g++")
    if not (available() and "avx2" in int8_targets()):
        pytest.skip("needs a processor with AVX2, on which the one instruction of AVX-VNNI is emulated")
    emulation = ["-mavx2", "-mfma", "-include", str(Path(__file__).with_name("avx_vnni.hpp"))]
    assert "AVX-VNNI emulated: yes" in compare(tmp_path, ["g++", *emulation], [], "one thread")


@pytest.mark.parametrize(
    ("pretended", "reason"),
    [
        (["-m32"], "for 64-bit processors"),
        (["-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"], "for little-endian processors"),
    ],
)
def test_a_processor_the_kernels_are_not_for_is_refused(pretended: list[str], reason: str) -> None:
    need("g++")
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", *pretended, "-x", "c++", str(KERNELS / "platform.hpp")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"the packed engine is {reason}" in done.stderr
