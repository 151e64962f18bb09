"""The C and C++ implementation of the runtime as one header, for programs without Python."""

from __future__ import annotations

import re
from pathlib import Path

KERNELS = Path(__file__).with_name("kernels")

_PREFACE = """\
/* One header, no dependency: C declarations, and the implementation in C++17.
 *
 * Define SRNN_IMPLEMENTATION before you include this file in exactly one C++ file, or compile the file itself:
 *
 *   g++ -std=c++17 -O3 -march=native -DSRNN_IMPLEMENTATION -x c++ -c selfish_rnn.h -o selfish_rnn.o
 *
 * The kernels are those of the processor that is compiled for. With -std=c++17, which leaves multiplications and
 * additions unfused, results are bit-equal to those of the Python package on the same kind of processor, and models
 * whose matrices and activations are int8 are bit-equal on all. -fopenmp lets large models use several threads.
 * Made by `selfish-rnn header`.
 */
#ifndef SELFISH_RNN_H
#define SELFISH_RNN_H
"""

_IMPLEMENTATION = """\
#endif  /* SELFISH_RNN_H */

#if defined(SRNN_IMPLEMENTATION) && !defined(SRNN_IMPLEMENTED)
#define SRNN_IMPLEMENTED
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
    """Return the text of the header: ``api.h``, and ``native.hpp`` with all it includes, each once."""
    declarations = KERNELS / "api.h"
    seen: set[Path] = {declarations}

    def text(path: Path) -> str:
        if path in seen:
            return ""
        seen.add(path)
        source = path.read_text(encoding="utf-8").replace("#pragma once\n", "")
        return re.sub(r'^#include "(.+)"\n', lambda match: text((path.parent / match[1]).resolve()), source, flags=re.M)

    api = declarations.read_text(encoding="utf-8")
    return _PREFACE + api + _IMPLEMENTATION + text((KERNELS / "native.hpp").resolve()) + _END
