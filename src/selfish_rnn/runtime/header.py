"""The kernels for int8 inference as one C++ header, for programs without Python."""

from __future__ import annotations

import re
from pathlib import Path

KERNELS = Path(__file__).with_name("kernels")

_PREFACE = """\
// selfish-rnn: sparse int8 recurrent networks, word by word. One header, C++17, no dependency.
//
// Compile with -O3 -march=native (or any other target: the kernels for it are chosen at compile time) and, to use
// several threads, -fopenmp. With -std=c++17, which leaves multiplications and additions unfused, results are bit-equal
// to those of the Python package. Made by `selfish-rnn header`.
#ifndef SELFISH_RNN_HPP
#define SELFISH_RNN_HPP
#define SELFISH_TARGET native
"""

_END = """
#undef SELFISH_TARGET
#undef SELFISH_UNROLL
#undef SELFISH_INLINE
#undef SELFISH_BITS
#endif
"""


def single_header() -> str:
    """The text of the header: ``model.hpp`` and all it includes, each once."""
    seen: set[Path] = set()

    def text(path: Path) -> str:
        if path in seen:
            return ""
        seen.add(path)
        source = path.read_text(encoding="utf-8").replace("#pragma once\n", "")
        return re.sub(r'^#include "(.+)"\n', lambda found: text((path.parent / found[1]).resolve()), source, flags=re.M)

    return _PREFACE + text((KERNELS / "model.hpp").resolve()) + _END
