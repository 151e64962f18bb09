"""The machine a process runs on."""

from __future__ import annotations

import subprocess
import sys

from selfish_rnn.system import busy, machine, processor

PROGRAM = """
from selfish_rnn.system import give_back_freed_memory, peak_memory
before = peak_memory()
large = bytes([1]) * 2**26
raised = peak_memory()
del large
give_back_freed_memory()
print(before, raised, peak_memory())
"""


def test_the_peak_counts_what_was_touched_and_stays_when_it_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, raised, after = map(float, done.stdout.split())
    assert 60 <= raised - before <= 80
    assert after >= raised - 1  # the system counts in batches


def test_the_machine_is_named() -> None:
    found = machine()
    assert found["processor"] == processor() != ""
    assert found["cores"] >= 1
    share = busy(0.01)
    assert share is None or 0 <= share <= 1
