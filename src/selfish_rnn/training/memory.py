"""How the process handles the memory of large tensors."""

from __future__ import annotations

import contextlib
import ctypes
import sys

_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed tensors for the next ones.

    By default glibc gives every large block back to the system, and the next update pays a page fault for each of
    its pages again, which a network with a large vocabulary feels. The setting is the process's, so it is for a
    program that trains, not for a library; elsewhere it does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_MMAP_MAX, 0)
            mallopt(_TRIM_THRESHOLD, _LARGEST)


def give_back_freed_memory() -> None:
    """Give the memory of freed tensors back to the system; for moments after which less is needed, or other sizes.

    Where freed memory is kept, blocks of another size than the next ones ask for would only add to what the process
    takes. Elsewhere than on Linux with glibc it does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
