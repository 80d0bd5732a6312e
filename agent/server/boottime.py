"""A clock that continues while the machine sleeps and that no one sets. Used where other hosts rely on the time passed.

`time.monotonic` stops while a laptop is closed: on Linux it is CLOCK_MONOTONIC, on macOS mach_absolute_time. With it,
an agent that wakes up would still trust its expired Lease.
"""

from __future__ import annotations

import sys
import time


def boottime_s() -> float:
    """Return seconds since an arbitrary time, including sleep."""
    if sys.platform == "darwin":
        # Darwin's CLOCK_MONOTONIC continues during sleep (clock_gettime(3)).
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
