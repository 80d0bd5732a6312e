"""Detects that another program changed or deleted the unit of a running process. Without I/O.

`processes` calls `in_order` for each unit that it wrote or found correct, and passes each observation, which contains
the checksum of the unit's file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.client.ssh.observed import ObservedProcess

MayRepair = Callable[[str, str, bool], bool]
"""Called with the key, a description of the change, and whether it is new. Returns whether to restore the unit."""


@dataclass(frozen=True)
class UnitChange:
    """A change of a unit by another program."""

    words: str = ""
    """Empty: the unit was not compared yet."""
    restarted: bool = False
    """The process was restarted since, perhaps with the changed unit."""
    is_news: bool = True


class UnitWatch:
    """The units of one host's processes that were correct."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        """By key, the expected checksum of the unit, and the last start of the process with it."""
        self._reported: dict[str, str] = {}

    def in_order(self, key: str, unit: str, start: str = "") -> None:
        """Record the current checksum of a unit. `start` is the process's start, empty if it is being restarted."""
        self._known[key] = (unit, start)
        self._reported.pop(key, None)

    def change(self, key: str, seen: ObservedProcess) -> UnitChange | None:
        """Compare the unit with its expected checksum. Returns None if it has not changed."""
        if key not in self._known:
            return UnitChange()
        expected, start = self._known[key]
        if expected == seen.unit:
            self._known[key] = (expected, seen.start)
            self._reported.pop(key, None)
            return None
        is_news = self._reported.get(key) != seen.unit
        self._reported[key] = seen.unit
        return UnitChange("was changed" if seen.unit else "was deleted", start not in ("", seen.start), is_news)

    def drop_unit(self, key: str) -> None:
        self._known.pop(key, None)
        self._reported.pop(key, None)

    def drop_units(self) -> None:
        """Remove all records, after a new connection."""
        self._known.clear()
        self._reported.clear()


def checksum(content: bytes) -> str:
    """Return the output of cksum(1) for this content: the POSIX CRC and the size."""
    size = len(content)
    crc = 0
    for byte in content + size.to_bytes((size.bit_length() + 7) // 8, "little"):
        crc = ((crc << 8) & 0xFFFFFFFF) ^ _TABLE[(crc >> 24) ^ byte]
    return f"{crc ^ 0xFFFFFFFF} {size}"


def _entry(byte: int) -> int:
    crc = byte << 24
    for _ in range(8):
        crc = (crc << 1) ^ (0x04C11DB7 if crc & 0x80000000 else 0)
    return crc & 0xFFFFFFFF


_TABLE = tuple(_entry(byte) for byte in range(256))
