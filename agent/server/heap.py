"""Reduces the memory of a process with many idle threads. Agent and loop call it before any thread starts."""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8
"""From glibc's <malloc.h>."""


def share_one_heap() -> None:
    """Make all threads allocate from one heap.

    By default glibc gives threads separate heaps, which keep freed memory.
    """
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        return  # another C library, without separate heaps
