"""Reads a host's total and available memory from /proc/meminfo and control groups, or from macOS's tools.

Called by `agent.server.memory.machine`. The parsers have no I/O; `read` does the I/O. Available memory can be allocated
without displacing memory in use: MemAvailable on Linux, and the free, inactive, speculative and purgeable pages on
macOS.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agent.contract import MemoryPressure

MEMINFO = Path("/proc/meminfo")
COMMAND_TIMEOUT_S = 10.0
_MIB = 1 << 20
_UNLIMITED = 1 << 60
"""Control groups of version 1 represent "no limit" by a number near 2^63."""
_PAGES = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")
_LEVELS = {1: MemoryPressure.NORMAL, 2: MemoryPressure.WARNING, 4: MemoryPressure.CRITICAL}


class Unreadable(Exception):
    """The system does not provide its memory numbers."""


@dataclass(frozen=True)
class Memory:
    """The current memory of a host."""

    total_bytes: int
    available_bytes: int
    kernel: MemoryPressure | None = None
    """macOS: the pressure level of the kernel."""
    limited: bool = False
    """These are the numbers of a control group, whose limit is below the machine's memory."""
    kernel_share: float | None = None
    """macOS: the free share from the kernel, 0 to 1, if it provides no level."""

    @property
    def share(self) -> float:
        """The available share of the memory, 0 to 1."""
        return self.available_bytes / self.total_bytes if self.total_bytes else 1.0

    @property
    def used_bytes(self) -> int:
        return max(0, self.total_bytes - self.available_bytes)


@dataclass(frozen=True)
class Group:
    """The memory of a control group."""

    limit_bytes: int
    used_bytes: int
    """Without the page cache that the kernel would drop first."""


# --- Linux ------------------------------------------------------------------------------------------------------------


def parse_meminfo(text: str) -> Memory:
    """Parse /proc/meminfo. Raises Unreadable if total or available memory is missing."""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+)(?: kB)?\s*$", text, re.MULTILINE)}
    try:
        return Memory(found["MemTotal"], found["MemAvailable"])
    except KeyError as missing:
        raise Unreadable(f"no line {missing} in the memory's numbers") from None


def parse_group(limit: str, used: str, stat: str) -> Group | None:
    """Parse a control group's limit, use and `memory.stat`. Returns None if it sets no limit."""
    if not limit.strip().isdecimal() or not used.strip().isdecimal() or int(limit) >= _UNLIMITED:
        return None
    numbers = {name: int(count) for name, count in re.findall(r"^(\w+) (\d+)$", stat, re.MULTILINE)}
    droppable = numbers.get("total_inactive_file", numbers.get("inactive_file", 0))
    return Group(int(limit), max(0, int(used) - droppable))


def group_folders(membership: str, root: Path = Path("/sys/fs/cgroup")) -> list[tuple[Path, str]]:
    """Return the folders of this process's memory control group and its parents, with their versions.

    `membership` is the content of /proc/self/cgroup.
    """
    found: list[tuple[Path, str]] = []
    for line in membership.splitlines():
        _, first, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        version = "2" if not controllers else "1" if "memory" in controllers.split(",") else ""
        if not (version and first and second):
            continue
        base = root if version == "2" else root / "memory"
        folder = base / path.lstrip("/")
        while True:
            found.append((folder, version))
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return found


def within(memory: Memory, group: Group | None) -> Memory:
    """Return the memory reduced to the limit of a control group."""
    if group is None or group.limit_bytes >= memory.total_bytes:
        return memory
    left = max(0, group.limit_bytes - group.used_bytes)
    return Memory(group.limit_bytes, min(left, memory.available_bytes), memory.kernel, limited=True)


def _group(folder: Path, version: str) -> Group | None:
    limit, used = (
        ("memory.max", "memory.current") if version == "2" else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    try:
        return parse_group(
            (folder / limit).read_text(), (folder / used).read_text(), (folder / "memory.stat").read_text()
        )
    except OSError:
        return None


def _read_linux(meminfo: Path) -> Memory:
    try:
        memory = parse_meminfo(meminfo.read_text())
    except OSError as error:
        raise Unreadable(f"{meminfo}: {error.strerror or error}") from error
    if meminfo != MEMINFO:
        return memory
    try:
        folders = group_folders(Path("/proc/self/cgroup").read_text())
    except OSError:
        return memory
    for folder, version in folders:
        memory = within(memory, _group(folder, version))
    return memory


# --- macOS ------------------------------------------------------------------------------------------------------------


def parse_vm_stat(text: str, *, total_bytes: int) -> Memory:
    """Parse the output of `vm_stat`. Raises Unreadable for any other text."""
    size = re.search(r"page size of (\d+) bytes", text)
    pages = {name: int(count) for name, count in re.findall(r'^"?([A-Za-z -]+?)"?:\s+(\d+)\.?\s*$', text, re.MULTILINE)}
    if size is None or not all(name in pages for name in _PAGES[:2]):
        raise Unreadable("vm_stat did not print the free and inactive pages")
    available = sum(pages.get(name, 0) for name in _PAGES) * int(size[1])
    return Memory(total_bytes, min(available, total_bytes))


def parse_kernel_level(text: str) -> MemoryPressure | None:
    """Parse `sysctl -n kern.memorystatus_vm_pressure_level`: 1, 2 or 4."""
    return _LEVELS.get(int(text)) if text.strip().isdecimal() else None


def parse_free_share(text: str) -> float | None:
    """Parse `memory_pressure -Q`, which prints a percentage. Returns None for any other text."""
    found = re.search(r"^System-wide memory free percentage:\s*(\d{1,3})%\s*$", text, re.MULTILINE)
    return int(found[1]) / 100 if found else None


def parse_wired_limit(text: str) -> int | None:
    """Parse `sysctl -n iogpu.wired_limit_mb` into bytes. Returns None for 0, which means the default of the system."""
    return int(text) * _MIB if text.strip().isdecimal() and int(text) > 0 else None


def _read_mac() -> Memory:
    total = _output_of("sysctl", "-n", "hw.memsize").strip()
    if not total.isdecimal():
        raise Unreadable("sysctl does not print hw.memsize")
    memory = parse_vm_stat(_output_of("vm_stat"), total_bytes=int(total))
    level = parse_kernel_level(_output_of("sysctl", "-n", "kern.memorystatus_vm_pressure_level"))
    share = parse_free_share(_output_of("memory_pressure", "-Q")) if level is None else None
    return Memory(memory.total_bytes, memory.available_bytes, level, kernel_share=share)


def wired_limit() -> int | None:
    """Return the configured limit of wired GPU memory on macOS, or None."""
    return parse_wired_limit(_output_of("sysctl", "-n", "iogpu.wired_limit_mb")) if sys.platform == "darwin" else None


def _output_of(*command: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMMAND_TIMEOUT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout


def read(meminfo: Path | None = None) -> Memory:
    """Read the current memory. `meminfo` is a file in the format of /proc/meminfo to read instead, on any system.

    Raises Unreadable.
    """
    if sys.platform == "darwin" and meminfo is None:
        return _read_mac()
    return _read_linux(meminfo or MEMINFO)
