"""Builds the packed engine's kernels; everything else about the package is in pyproject.toml.

The kernels are a plain shared library (no Python or torch headers) that :mod:`selfish_rnn.engine.library` loads. One
source is compiled once for every kind of processor, and the library chooses among them when it is loaded. Where there
is no C++ compiler, or the processor is none the kernels are for, the package installs without the library and serves
with the masked engine.
"""

from __future__ import annotations

import platform
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/selfish_rnn")
X86 = platform.machine().lower() in ("x86_64", "amd64")
FLAGS = ["-std=c++17", "-O3", "-g0", "-fPIC", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi"]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw"]
VBMI = ["-mavx512vnni", "-mavx512vbmi", "-mavx512vbmi2"]
# Whole numbers are the same everywhere; so that what follows them is, too, nothing is fused.
EXACT = "-ffp-contract=off"
TARGETS = {
    "engine/kernels/kernels_portable.cpp": [],
    **({"engine/kernels/kernels_avx2.cpp": AVX2} if X86 else {}),
    **({"engine/kernels/kernels_avx512.cpp": AVX512} if X86 else {}),
    "engine/kernels/packing.cpp": [],
    "engine/kernels/checking.cpp": [],
    "engine/kernels/dispatch.cpp": ["-DSELFISH_X86"] if X86 else [],
    "engine/kernels/bf16_index.cpp": [],
    "engine/kernels/bf16_portable.cpp": [],
    **({"engine/kernels/bf16_avx512.cpp": [*AVX512, "-mavx512bf16"]} if X86 else {}),
    "engine/kernels/bf16_dispatch.cpp": ["-DSELFISH_X86"] if X86 else [],
    "runtime/kernels/int8_portable.cpp": [EXACT],
    **({"runtime/kernels/int8_avx2.cpp": [*AVX2, EXACT]} if X86 else {}),
    **({"runtime/kernels/int8_avx_vnni.cpp": [*AVX2, "-mavxvnni", EXACT]} if X86 else {}),
    **({"runtime/kernels/int8_avx512_vnni.cpp": [*AVX512, "-mavx512vnni", EXACT]} if X86 else {}),
    **({"runtime/kernels/int8_avx512_vbmi.cpp": [*AVX512, *VBMI, EXACT]} if X86 else {}),
    "runtime/kernels/dispatch.cpp": ["-DSELFISH_X86"] if X86 else [],
}

# Clang's OpenMP is another runtime than the GNU one that torch brings. With both in a process, threads of one would ask
# the other who they are.
PROBE = """
#include <omp.h>
#if defined(__clang__)
#error "another OpenMP than torch's"
#endif
"""


def fits_the_processor() -> bool:
    """Whether the kernels are for a processor like this one."""
    return struct.calcsize("P") == 8 and sys.byteorder == "little"


def openmp(compiler: Any) -> list[str]:
    """The flag for threads, if this compiler has torch's."""
    command = getattr(compiler, "compiler_so_cxx", None) or getattr(compiler, "compiler_so", None)
    if not command:
        return []
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.cpp"
        probe.write_text(PROBE)
        try:
            done = subprocess.run([*command, "-fopenmp", "-fsyntax-only", str(probe)], capture_output=True)
        except OSError:
            return []
    return ["-fopenmp"] if done.returncode == 0 else []


class BuildKernels(build_ext):
    """Compiles every source with its own flags, and links them into a library that is no Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        compiler: Any = self.compiler
        threads = openmp(compiler)
        if not threads:
            self.warn("no OpenMP that torch shares (with g++ there is): the packed engine will use one thread")
        objects = []
        for source in ext.sources:
            flags = TARGETS[Path(source).relative_to(NATIVE).as_posix()]
            objects += compiler.compile(
                [source],
                output_dir=self.build_temp,
                extra_postargs=[*FLAGS, *(threads or ["-Wno-unknown-pragmas"]), *flags],
                depends=ext.depends,
            )
        compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name), extra_postargs=threads, target_lang="c++")


class Wheel(bdist_wheel):
    """A wheel for a kind of machine and any Python if the library is in it, and else for any machine."""

    def get_tag(self) -> tuple[str, str, str]:
        built = any(Path(self.bdist_dir).rglob("_kernels.so"))
        return "py3", "none", super().get_tag()[2] if built else "any"


REPOSITORY = "https://github.com/selfish-rnn/selfish-rnn"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<target>[^)]+)(?=\))")
PICTURE = re.compile(r'(?<=src=")(?![a-z]+:)|(?<=srcset=")(?![a-z]+:)')


def description() -> str:
    """Return the README with absolute links, for readers outside the repository."""
    text = LINK.sub(rf"{REPOSITORY}/blob/main/\g<target>", Path("README.md").read_text(encoding="utf-8"))
    return PICTURE.sub(f"{REPOSITORY}/raw/main/", text)


if not fits_the_processor():
    print("warning: the packed engine is for 64-bit little-endian processors; masked serves", file=sys.stderr)

setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "selfish_rnn.engine._kernels",
            sources=[str(NATIVE / name) for name in TARGETS],
            depends=[str(path) for path in sorted(NATIVE.rglob("*.hpp"))],
            language="c++",
            optional=True,
        )
    ]
    if fits_the_processor()
    else [],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
)
