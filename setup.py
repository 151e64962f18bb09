"""Builds the packed engine's kernels; everything else about the package is in pyproject.toml.

The kernels are a plain shared library (no Python or torch headers) that :mod:`selfish_rnn.engine.library` loads. One
source is compiled once for every kind of processor, and the library chooses among them when it is loaded. Where there
is no C++ compiler the package installs without the library and serves with the masked engine.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/selfish_rnn/engine/kernels")
X86 = platform.machine().lower() in ("x86_64", "amd64")
FLAGS = ["-std=c++17", "-O3", "-g0", "-fPIC", "-fopenmp", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi"]
AVX2 = ["-mavx2", "-mfma"]
TARGETS = {
    "kernels_portable.cpp": [],
    **({"kernels_avx2.cpp": AVX2} if X86 else {}),
    **({"kernels_avx512.cpp": [*AVX2, "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw"]} if X86 else {}),
    "packing.cpp": [],
    "checking.cpp": [],
    "dispatch.cpp": ["-DSELFISH_X86"] if X86 else [],
}


class BuildKernels(build_ext):
    """Compiles every source with its own flags, and links them into a library that is no Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        compiler: Any = self.compiler
        objects = []
        for source in ext.sources:
            objects += compiler.compile(
                [source],
                output_dir=self.build_temp,
                extra_postargs=[*FLAGS, *TARGETS[Path(source).name]],
                depends=ext.depends,
            )
        compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), extra_postargs=["-fopenmp"], target_lang="c++"
        )


setup(
    ext_modules=[
        Extension(
            "selfish_rnn.engine._kernels",
            sources=[str(NATIVE / name) for name in TARGETS],
            depends=[str(path) for path in sorted(NATIVE.glob("*.hpp"))],
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
