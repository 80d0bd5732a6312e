"""Keeps a process of many mostly sleeping threads small. Agent and loop call it before any thread starts."""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8
"""From glibc's <malloc.h>."""


def share_one_heap() -> None:
    """Have all threads allocate from one heap: glibc gives each its own, and what is freed there stays with it."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        return  # another C library, which has no such habit
