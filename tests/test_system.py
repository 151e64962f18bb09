"""The machine a process runs on."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from selfish_rnn.system import busy, machine, processor

PROGRAM = """
from selfish_rnn.system import trim_memory, peak_memory
before = peak_memory()
large = bytes([1]) * 2**26
raised = peak_memory()
del large
trim_memory()
print(before, raised, peak_memory())
"""


def test_the_peak_counts_what_was_touched_and_stays_when_it_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, raised, after = map(float, done.stdout.split())
    assert 60 <= raised - before <= 80
    assert after >= raised - 1  # the system counts in batches


KEEPING = """
from selfish_rnn.system import releasing_memory, retain_freed_memory
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
retain_freed_memory()
def work():
    large, small = bytes([1]) * 2**26, bytes(1000)  # something behind it, so that the end of the heap stays where it is
    del large
    return small
kept = [work(), resident()]
with releasing_memory():
    inside = resident()
    with releasing_memory():
        pass
    more = [work(), resident()]
again = [work(), resident()]
print(kept[1], inside, more[1], again[1])
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="it is glibc that keeps it")
def test_what_is_kept_for_updates_is_given_back_for_a_while() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True, check=True)
    kept, inside, more, again = map(float, done.stdout.split())
    assert kept - inside > 50
    assert abs(more - inside) < 70  # one block at most, reused from what was freed before
    assert again - inside > 50


def test_the_machine_is_named() -> None:
    found = machine()
    assert found["processor"] == processor() != ""
    assert found["cores"] >= 1
    share = busy(0.01)
    assert share is None or 0 <= share <= 1
