"""A clock that also runs while the machine sleeps, and that nobody sets. Used where others count on the time passed.

`time.monotonic` stands still while a laptop is closed: on Linux it is CLOCK_MONOTONIC, on macOS mach_absolute_time. An
agent that trusted its Lease by it would speak on waking as if no time had passed.
"""

from __future__ import annotations

import sys
import time


def boottime_s() -> float:
    """Give seconds since some moment, sleep included."""
    if sys.platform == "darwin":
        # Darwin's CLOCK_MONOTONIC goes on during sleep (clock_gettime(3)).
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
