"""The machine a process runs on: its memory, its processor, its time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_KEPT = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_MAX: 0}
_GIVEN_BACK = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65536}
"""Settings of glibc's malloc; the latter are those it starts with."""
_MIB = 2**20
_STATISTICS = Path("/proc/stat")


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed tensors for the next ones.

    By default glibc gives every large block back to the system, and the next update pays a page fault for each of
    its pages again, which a network with a large vocabulary feels. The setting is the process's, so it is for a
    program that trains, not for a library; elsewhere it does nothing.
    """
    _Freed.kept = True
    _set_malloc(_KEPT)


class _Freed:
    """What the process does with freed memory: whether it keeps it, and whether it does so only at other times."""

    kept = False
    given_back = False


def _set_malloc(settings: dict[int, int]) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            for name, value in settings.items():
                mallopt(name, value)


@contextlib.contextmanager
def giving_back_freed_memory() -> Iterator[None]:
    """Inside this block, or a function that it decorates, nothing is kept, whatever :func:`keep_freed_memory` said.

    For what is done seldom, as rewiring or saving: its blocks are of sizes that no update asks for, and kept ones would
    add up to what the process takes at most. What was freed before stays the C library's, and is used first: see
    :func:`give_back_reused_memory`.
    """
    if not _Freed.kept or _Freed.given_back:
        yield
        return
    _Freed.given_back = True
    _set_malloc(_GIVEN_BACK)
    give_back_freed_memory()
    try:
        yield
    finally:
        give_back_freed_memory()
        _set_malloc(_KEPT)
        _Freed.given_back = False


def give_back_reused_memory() -> None:
    """Between two matrices, in a block of :func:`giving_back_freed_memory`; elsewhere nothing happens."""
    if _Freed.given_back:
        give_back_freed_memory()


def give_back_freed_memory() -> None:
    """Give the memory of freed tensors back to the system; for moments after which less is needed, or other sizes.

    Where freed memory is kept, blocks of another size than the next ones ask for would only add to what the process
    takes. Elsewhere than on Linux with glibc it does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def peak_memory() -> float | None:
    """The most memory, in MiB, that the process has had resident at a time; nothing where the system does not tell.

    The mark is that of its own address space (``VmHWM``) where the system has one. ``ru_maxrss`` would not do on
    Linux: a process started by a large one begins with the mark of the large one.
    """
    peak = _told("/proc/self/status", r"^VmHWM:\s+(\d+) kB")
    if peak is not None:
        return int(peak) * 1024 / _MIB
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / _MIB


def available_memory() -> int | None:
    """How many bytes the process can still take: the system's, or less if a limit says so; nothing if it is not told.

    The limits are those of a control group (as containers have) and of the address space (``ulimit -v``).
    """
    free = [amount for amount in (_system_memory(), _group_memory(), _address_space()) if amount is not None]
    return max(min(free), 0) if free else None


def _system_memory() -> int | None:
    available = _told("/proc/meminfo", r"^MemAvailable:\s+(\d+) kB")
    return None if available is None else int(available) * 1024


def _group_memory() -> int | None:
    with contextlib.suppress(OSError, ValueError):  # a limit of "max" is none
        group = Path("/sys/fs/cgroup")
        inactive = _told(group / "memory.stat", r"^inactive_file (\d+)")
        used = int((group / "memory.current").read_text()) - int(inactive or 0)
        return int((group / "memory.max").read_text()) - used
    return None


def _address_space() -> int | None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            return limit - pages * resource.getpagesize()
    return None


def machine() -> dict[str, Any]:
    """The processor, its cores, the share of them that others use, and the software below."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "busy": busy(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def busy(seconds: float = 0.5) -> float | None:
    """The share of the machine's cores that is at work while this process sleeps; nothing where that is not told."""
    if not _STATISTICS.exists():
        return None
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    passed = after[0] - before[0]
    return round(1 - (after[1] - before[1]) / passed, 2) if passed else 0.0


def _ticks() -> tuple[int, int]:
    """Of all cores since the system was started: all ticks, and those without work."""
    ticks = [int(number) for number in _STATISTICS.read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def processor() -> str:
    """The name its maker gave it, where the system tells."""
    name = _told("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or ""
    return name.strip() or platform.processor() or platform.machine()


def _told(path: str | Path, pattern: str) -> str | None:
    """What a line of a file of the system says, where there is one."""
    with contextlib.suppress(OSError):
        match = re.search(pattern, Path(path).read_text(), re.MULTILINE)
        return match.group(1) if match else None
    return None
