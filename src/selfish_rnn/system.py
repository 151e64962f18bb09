"""Memory and processor of the machine."""

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
_RETAIN = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_MAX: 0}
_RELEASE = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65536}
"""Settings of glibc's malloc; the latter are its defaults."""
_MIB = 2**20
_STATISTICS = Path("/proc/stat")


class _Malloc:
    """Policy of the process for freed memory."""

    retains = False
    suspended = False


def retain_freed_memory() -> None:
    """Keep the memory of freed tensors in the process, for the next ones.

    By default glibc returns every large block to the system, and the next update takes a page fault for each of its
    pages, which costs time in a network with a large vocabulary. The setting is global, so it is for a program that
    trains, not for a library. It works on Linux with glibc.
    """
    _Malloc.retains = True
    _set_malloc(_RETAIN)


def _set_malloc(settings: dict[int, int]) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            for name, value in settings.items():
                mallopt(name, value)


@contextlib.contextmanager
def releasing_memory() -> Iterator[None]:
    """Suspend :func:`retain_freed_memory` inside a block or a decorated function.

    Use it for rare work such as rewiring or saving. Its blocks have other sizes than those of an update, and retained
    ones would add to the peak of the process. Memory that was freed before is used first: see
    :func:`trim_if_releasing`.
    """
    if not _Malloc.retains or _Malloc.suspended:
        yield
        return
    _Malloc.suspended = True
    _set_malloc(_RELEASE)
    trim_memory()
    try:
        yield
    finally:
        trim_memory()
        _set_malloc(_RETAIN)
        _Malloc.suspended = False


def trim_if_releasing() -> None:
    """Call ``malloc_trim``, only inside :func:`releasing_memory`; for use between two matrices."""
    if _Malloc.suspended:
        trim_memory()


def trim_memory() -> None:
    """Call ``malloc_trim``: return freed memory to the system, before work that needs less or other sizes.

    It works on Linux with glibc.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def peak_memory() -> float | None:
    """Return the peak of resident memory in MiB, or None if the system does not report it.

    On Linux it is ``VmHWM``. There ``ru_maxrss`` of a process starts with the peak of its parent.
    """
    peak = _read("/proc/self/status", r"^VmHWM:\s+(\d+) kB")
    if peak is not None:
        return int(peak) * 1024 / _MIB
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / _MIB


def available_memory() -> int | None:
    """Return the bytes that the process can still allocate, or None if the system does not report them.

    Limits of a control group (as in containers) and of the address space (``ulimit -v``) count.
    """
    free = [amount for amount in (_system_memory(), _group_memory(), _address_space()) if amount is not None]
    return max(min(free), 0) if free else None


def _system_memory() -> int | None:
    available = _read("/proc/meminfo", r"^MemAvailable:\s+(\d+) kB")
    return None if available is None else int(available) * 1024


def _group_memory() -> int | None:
    with contextlib.suppress(OSError, ValueError):  # a limit of "max" is none
        group = Path("/sys/fs/cgroup")
        inactive = _read(group / "memory.stat", r"^inactive_file (\d+)")
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
    """Return the processor, its cores, the share of them in use, and the versions of system and Python."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "busy": busy(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def busy(seconds: float = 0.5) -> float | None:
    """Return the share of the cores that is in use while this process sleeps, or None if it is unknown."""
    if not _STATISTICS.exists():
        return None
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    passed = after[0] - before[0]
    return round(1 - (after[1] - before[1]) / passed, 2) if passed else 0.0


def _ticks() -> tuple[int, int]:
    """Return all ticks of all cores since the system started, and the idle ones."""
    ticks = [int(number) for number in _STATISTICS.read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def processor() -> str:
    """Return the name of the processor."""
    name = _read("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or ""
    return name.strip() or platform.processor() or platform.machine()


def _read(path: str | Path, pattern: str) -> str | None:
    """Return the first match of a pattern in a file of the system, or None."""
    with contextlib.suppress(OSError):
        match = re.search(pattern, Path(path).read_text(), re.MULTILINE)
        return match.group(1) if match else None
    return None
