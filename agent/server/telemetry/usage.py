"""Measures the usage of each process on request: memory, CPU time, tokens, slots. Recent values are reused.

Called by `metrics` at a scrape. The writers of reports and of the Host's status accept values of the last 15 seconds.
Without requests nothing is measured.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from agent.contract import ProcessPlan, ProcessUsage
from agent.processes.engines import metrics_path
from agent.server.processes.identity import runs
from agent.server.store import ProcessRecord
from agent.server.telemetry import engine_metrics
from agent.server.telemetry.engine_metrics import Engine

FRESH_S = 15.0
"""Maximum age of a reused sample."""
_COSTLY_SHARE = 0.0002
"""Maximum share of time for reading unique set sizes, whose cost grows with the mapped memory of a process."""
_SAME_FAMILY_S = 60.0
"""How long the list of a process's descendants is reused."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    """The measured values of one process tree."""

    rss_bytes: int
    footprint_bytes: int | None
    cpu_s: float


@dataclass(frozen=True)
class Sample:
    """All measured values of one process."""

    mark: str
    at: float
    """Monotonic clock."""
    measured: Measured
    tokens: float | None
    """Tokens generated since the start of the process."""
    usage: ProcessUsage
    text: str | None
    """The engine's metrics as received."""


class UsageSampler:
    """Measures the processes of one agent. Thread-safe."""

    def __init__(
        self,
        records: Callable[[], Mapping[str, ProcessRecord]],
        listening: Callable[[ProcessPlan], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`records` returns the running processes, `listening` the address on which a process listens."""
        self._records = records
        self._listening = listening
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: dict[str, Sample] = {}
        self._slots: dict[str, tuple[str, int]] = {}
        """Start mark and number of slots by process. The number does not change while the process runs."""
        self._at: float | None = None
        self._families: dict[int, list[int]] = {}
        self._families_until = 0.0
        self._footprints_from = 0.0
        """Unique set sizes are not read before this time, because they are expensive."""

    def usage(self) -> dict[str, ProcessUsage]:
        """Return the usage of each running process by `namespace/name`, at most 15 seconds old."""
        return {key: sample.usage for key, sample in self.samples().items()}

    def samples(self, *, fresh_s: float = FRESH_S) -> dict[str, Sample]:
        """Return the last samples, or new ones if those are older than `fresh_s`."""
        with self._lock:
            now = self._clock()
            if self._at is None or now - self._at >= fresh_s:
                self._samples = self._take_samples(now)
                self._at = now
            return dict(self._samples)

    def engines(self) -> list[Engine]:
        """Return the processes that serve metrics."""
        return [
            Engine(key, record.plan.service, self._listening(record.plan), record.running.port, path)
            for key, record in sorted(self._records().items())
            if record.running is not None and (path := metrics_path(record.plan)) is not None
        ]

    def _take_samples(self, now: float) -> dict[str, Sample]:
        running = {
            key: (record.plan, record.running)
            for key, record in self._records().items()
            if record.running is not None and runs(record.running.pid, record.running.mark)
        }
        engines = [engine for engine in self.engines() if engine.key in running]
        texts = engine_metrics.fetch_all(engines)
        families = self._known_families({each.pid for _, each in running.values()}, now)
        began, precise = time.perf_counter(), now >= self._footprints_from
        samples = {}
        for key, (plan, process) in running.items():
            before = self._samples.get(key)
            same = before if before is not None and before.mark == process.mark else None
            since_s = now - same.at if same is not None else 0.0
            measured = _measure(families[process.pid], precise=precise)
            if measured is None:
                continue
            if not precise and same is not None:
                measured = Measured(measured.rss_bytes, same.measured.footprint_bytes, measured.cpu_s)
            text = texts.get(key)
            tokens = engine_metrics.total_of(text, engine_metrics.TOKENS) if text else None
            busy = engine_metrics.total_of(text, engine_metrics.BUSY) if text else None
            usage = ProcessUsage(
                rss_bytes=measured.rss_bytes,
                footprint_bytes=measured.footprint_bytes,
                cpu_percent=_rate(same.measured.cpu_s if same else None, measured.cpu_s, since_s, scale=100.0),
                tokens_per_second=_rate(same.tokens if same else None, tokens, since_s),
                slots=self._slots_of(key, process.mark, plan, process.port) if text else None,
                slots_busy=None if busy is None else int(busy),
            )
            samples[key] = Sample(process.mark, now, measured, tokens, usage, text)
        if precise:
            self._footprints_from = now + (time.perf_counter() - began) / _COSTLY_SHARE
        return samples

    def _known_families(self, leaders: set[int], now: float) -> dict[int, list[int]]:
        if leaders != set(self._families) or now >= self._families_until:
            self._families, self._families_until = _families(leaders), now + _SAME_FAMILY_S
        return self._families

    def _slots_of(self, key: str, mark: str, plan: ProcessPlan, port: int) -> int | None:
        known = self._slots.get(key)
        if known is not None and known[0] == mark:
            return known[1]
        if plan.runtime != "llamacpp":
            return None
        count = engine_metrics.count_slots(self._listening(plan), port, deadline=time.monotonic() + 1.0)
        if count is not None:
            self._slots[key] = (mark, count)
        return count


def footprints(pids: Mapping[str, int]) -> dict[str, int]:
    """Return the memory of process trees in bytes: the physical footprint on macOS, elsewhere resident memory."""
    families = _families(set(pids.values()))
    precise = sys.platform == "darwin"
    measured = {key: _measure(families[pid], precise=precise) for key, pid in pids.items()}
    return {key: each.footprint_bytes or each.rss_bytes for key, each in measured.items() if each is not None}


def _rate(before: float | None, after: float | None, since_s: float, *, scale: float = 1.0) -> float | None:
    """Return the growth per second. None without an earlier value or after a counter was reset."""
    if before is None or after is None or since_s <= 0 or after < before:
        return None
    return round(scale * (after - before) / since_s, 2)


def _families(leaders: set[int]) -> dict[int, list[int]]:
    """Return the descendants of each leader, including itself, after one pass over all processes."""
    families = {leader: [leader] for leader in leaders}
    if not leaders:
        return families
    children: dict[int, list[int]] = {}
    for pid in psutil.pids():
        parent = _parent(pid)
        if parent is not None:
            children.setdefault(parent, []).append(pid)
    for family in families.values():
        for member in family:
            family += [child for child in children.get(member, ()) if child not in family]
    return families


def _parent(pid: int) -> int | None:
    if sys.platform == "linux":
        fields = _stat(pid)
        return int(fields[1]) if fields else None
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return None


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/<pid>/stat after the command, which may contain spaces.

    Empty if the process has ended.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return stat[stat.rindex(b")") + 2 :].split()


def _measure(pids: list[int], *, precise: bool) -> Measured | None:
    rss, cpu = 0, 0.0
    footprint: int | None = 0 if precise else None
    alive = False
    for pid in pids:
        one = _measure_linux(pid) if sys.platform == "linux" else _measure_elsewhere(pid)
        if one is None:
            continue
        alive = True
        rss += one[0]
        cpu += one[1]
        if footprint is not None:
            own = _footprint(pid)
            footprint = None if own is None else footprint + own
    return Measured(rss, footprint, cpu) if alive else None


def _measure_linux(pid: int) -> tuple[int, float] | None:
    fields = _stat(pid)
    if not fields:
        return None
    return int(fields[21]) * _PAGE_BYTES, (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _measure_elsewhere(pid: int) -> tuple[int, float] | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return process.memory_info().rss, times.user + times.system
    except psutil.Error:
        return None


def _footprint(pid: int) -> int | None:
    """Return the memory that only this process uses: macOS' physical footprint, elsewhere the unique set size."""
    if sys.platform == "linux":
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return 0  # the process has just ended and was not reaped yet
        except OSError:
            return None
        return sum(
            int(line.split()[1]) << 10 for line in lines if line.startswith((b"Private_Clean:", b"Private_Dirty:"))
        )
    if sys.platform == "darwin":
        return _darwin_footprint(pid)
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return None


def _darwin_footprint(pid: int) -> int | None:
    """Return `ri_phys_footprint` of rusage_info_v0 (<sys/resource.h>), which includes Metal's buffers."""
    try:
        library = ctypes.CDLL("/usr/lib/libproc.dylib")
        # 16 bytes of uuid, then user time, system time, two wake-up counts, page-ins, wired, resident, footprint, …
        info = (ctypes.c_uint64 * 12)()
        told = library.proc_pid_rusage(ctypes.c_int(pid), ctypes.c_int(0), ctypes.byref(info))
    except (OSError, AttributeError):
        return None
    return int(info[9]) if told == 0 else None
