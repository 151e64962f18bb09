"""How much memory a process took."""

from __future__ import annotations

import subprocess
import sys

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
