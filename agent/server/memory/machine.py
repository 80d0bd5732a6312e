"""Measures the memory of a host, its limits, and the devices that llama-server uses.

Called by `agent.server.memory.host_memory`. The measurement is repeated from time to time, because limits change and
engines are installed. The first call of a GPU's driver may take seconds, so the first start of a process waits for it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import structlog

from agent.contract import Accelerator
from agent.server.accelerators import accelerators_of
from agent.server.memory import meminfo
from agent.server.memory.budget import Capacity
from agent.server.memory.meminfo import Memory

MEASURE_S = 300.0
"""How often the capacity is measured again."""
FIRST_S = 45.0
"""Longest wait of a start for the first measurement."""

_log = structlog.get_logger(__name__)


class Machine:
    """One host's capacity. One thread calls `measure` and `read_memory`; any thread may use the rest."""

    def __init__(
        self,
        find_binary: Callable[[str], str | None],
        *,
        meminfo_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`meminfo_file` is a file in the format of /proc/meminfo to read instead of the system's numbers."""
        self._find_binary = find_binary
        self._meminfo = meminfo_file
        self._clock = clock
        self._measured = threading.Event()
        self._measured_at = 0.0
        self._unreadable = ""
        self.capacity = Capacity(psutil.virtual_memory().total, sys.platform)
        """Before the first measurement it contains only the memory."""
        self.accelerators: tuple[Accelerator, ...] = ()

    @property
    def discrete_gpus(self) -> bool:
        """Whether models may use GPU memory that is separate from the machine's."""
        return self.capacity.gpu_bytes is not None

    def wait(self) -> None:
        """Wait for the first measurement, with a timeout."""
        self._measured.wait(FIRST_S)

    def measure(self) -> bool:
        """Measure the capacity if it is due. Returns True the first time."""
        first = not self._measured.is_set()
        if not first and self._clock() - self._measured_at < MEASURE_S:
            return False
        accelerators = accelerators_of(self._find_binary("llama-server"))
        discrete = [each for each in accelerators if each.type != "metal"]
        metal = [each.memory_bytes for each in accelerators if each.type == "metal" and each.memory_bytes]
        with contextlib.suppress(meminfo.Unreadable):
            memory = meminfo.read(self._meminfo)
            self.capacity = Capacity(
                total_bytes=memory.total_bytes,
                system=sys.platform,
                limited=memory.limited,
                wired_limit_bytes=meminfo.wired_limit(),
                working_set_bytes=metal[0] if metal else None,
                gpu_bytes=sum(each.memory_bytes or 0 for each in discrete) if discrete else None,
                gpu_count=sum(each.count for each in discrete),
            )
        self.accelerators = accelerators
        self._measured_at = self._clock()
        self._measured.set()
        return first

    def read_memory(self) -> Memory | None:
        """Read the current memory. Returns None if that fails, which is logged once."""
        try:
            memory = meminfo.read(self._meminfo)
        except meminfo.Unreadable as error:
            if str(error) != self._unreadable:
                _log.warning("Failed to measure the memory", error=str(error))
            self._unreadable = str(error)
            return None
        self._unreadable = ""
        return memory
