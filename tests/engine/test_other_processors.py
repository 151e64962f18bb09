"""The kernels for other processors and by other compilers, against plain loops; what cannot be built says why."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "src" / "selfish_rnn" / "engine" / "kernels"
PROGRAM = Path(__file__).with_name("plain_loops.cpp")
FLAGS = ("-std=c++17", "-O2", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi", "-Wno-unknown-pragmas")


def need(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def compare(tmp_path: Path, compile_with: list[str], run_with: list[str]) -> tuple[int, float, str]:
    """The number of cases, the largest difference, and how many threads there are."""
    sources = [PROGRAM, *sorted(source for source in KERNELS.glob("*.cpp") if "avx" not in source.name)]
    program = tmp_path / "plain_loops"
    command = [*compile_with, *FLAGS, f"-I{KERNELS}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True, timeout=600)
    done = subprocess.run([*run_with, str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"(\d+) cases, largest difference (\S+), (.*)", done.stdout)
    assert match is not None
    print(done.stdout)
    return int(match[1]), float(match[2]), match[3]


@pytest.mark.slow
def test_the_kernels_for_aarch64_compute_what_plain_loops_do(tmp_path: Path) -> None:
    need("aarch64-linux-gnu-g++", "qemu-aarch64")
    cases, difference, threads = compare(
        tmp_path, ["aarch64-linux-gnu-g++", "-static", "-fopenmp"], ["qemu-aarch64", "-E", "OMP_NUM_THREADS=2"]
    )
    assert cases > 150
    assert difference < 2e-5
    assert threads == "several threads"


@pytest.mark.slow
def test_clang_builds_the_kernels_without_threads(tmp_path: Path) -> None:
    need("clang++")
    cases, difference, threads = compare(tmp_path, ["clang++"], [])
    assert cases > 150
    assert difference < 2e-5
    assert threads == "one thread"


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
