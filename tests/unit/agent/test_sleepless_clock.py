"""The clock by which an agent trusts its Lease."""

from __future__ import annotations

import sys
import time

import pytest

from agent.server.boottime import boottime_s


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells apart what slept and what did not")
def test_time_asleep_counts() -> None:
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert uptime_s <= boottime_s() <= uptime_s + 1


def test_it_never_goes_back() -> None:
    times = [boottime_s() for _ in range(1000)]
    assert times == sorted(times)
