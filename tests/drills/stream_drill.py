"""Stream files, damaged at random past their checksum: the C loader refuses them or runs inside its memory.

The loader is compiled with AddressSanitizer and UndefinedBehaviorSanitizer; a run it ends has failed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from drill import LONGEST_MESSAGE, Outcome, Patience

from selfish_rnn.engine import QuantizedWeight
from selfish_rnn.runtime.header import single_header
from selfish_rnn.runtime.program import Program
from selfish_rnn.runtime.stored import save_program

PROGRAM = Path(__file__).parents[1] / "runtime" / "fuzz_stream.cpp"
FLAGS = ("-std=c++17", "-O1", "-g", "-w", "-march=native", "-DSRNN_ANY_CHECKSUM")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
BATCH = 500


def small_program(int8: bool) -> Program:
    """Return a program with most kinds of operations."""
    torch.manual_seed(1)
    program = Program()
    kind: Any = "int8" if int8 else "float32"

    def matrix(rows: int, columns: int) -> Any:
        values = torch.randn(rows, columns) * (torch.rand(rows, columns) < 0.4)
        return QuantizedWeight.from_dense(values) if int8 else values

    x, word, h, c = program.input("x", 6), program.token("word", 9), program.state("h", 8), program.state("c", 8)
    features = program.concat([program.frames(x, 3, 2), program.embedding(matrix(9, 5), word)])
    sums = [program.linear(matrix(32, value.size), value, activations=kind) for value in (features, h)]
    h_next, c_next = program.lstm_cell(*sums, c)
    program.set_state(h, h_next)
    program.set_state(c, c_next)
    y = program.glu(program.layer_norm(program.linear(matrix(12, 8), h_next, torch.ones(12)), torch.ones(12), parts=3))
    program.output("y", program.softmax(program.clamp(y, -3.0, 3.0), 2))
    return program


def drill(tries: int, seed: int) -> Outcome:
    """Damage files of an int8 and of a float32 program."""
    outcome, start = Outcome("streams", seed), time.monotonic()
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("this drill needs g++")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "selfish_rnn.h").write_text(single_header())
        command = [compiler, *FLAGS, *SANITIZERS, "-I", str(folder), str(PROGRAM), "-o", "fuzz"]
        subprocess.run(command, cwd=folder, check=True)
        for int8 in (True, False):
            save_program(small_program(int8), folder / f"{int8}.srnn")
        while outcome.tried < tries and not Patience.over():
            count, batch = min(BATCH, tries - outcome.tried), outcome.tried // BATCH
            words = [str(folder / "fuzz"), f"{batch % 2 == 0}.srnn", str(count), str(seed * 1000 + batch)]
            result = subprocess.run(words, cwd=folder, capture_output=True, text=True)
            if result.returncode != 0:
                outcome.fail(f"{' '.join(words[1:])}: {result.stderr[-LONGEST_MESSAGE:]}")
                continue
            refused, _, ran, _ = result.stdout.replace(",", " ,").replace(" ,", "").split()
            for kind, number in (("refused", int(refused)), ("ran", int(ran))):
                outcome.tried += number
                outcome.kinds[kind] += number
    outcome.seconds = time.monotonic() - start
    return outcome
