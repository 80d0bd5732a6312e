"""Notices that somebody changed or deleted the unit of a process that runs. No I/O.

`processes` reports each unit that it wrote or found in order, and passes each observation, which has the checksum of
the unit's file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.client.ssh.observed import ObservedProcess

MayRepair = Callable[[str, str, bool], bool]
"""Called with the key, what happened to its unit, and whether that is news; returns whether to restore the unit."""


@dataclass(frozen=True)
class UnitChange:
    """What somebody did to a unit."""

    words: str = ""
    """Empty: the unit was not compared yet."""
    restarted: bool = False
    """The process was started again since, perhaps by the changed unit."""
    is_news: bool = True


class UnitWatch:
    """The units of one host's processes that were found in order."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        """By key the checksum that the unit must have, and the last start of the process while it had it."""
        self._reported: dict[str, str] = {}

    def in_order(self, key: str, unit: str, start: str = "") -> None:
        """Note the checksum that the unit has now. `start`: of the process, unless it is being started anew."""
        self._known[key] = (unit, start)
        self._reported.pop(key, None)

    def change(self, key: str, seen: ObservedProcess) -> UnitChange | None:
        """Compare a unit that was in order with its checksum now; None: it did not change."""
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
        """Drop all that is known, after a new connection."""
        self._known.clear()
        self._reported.clear()


def checksum(content: bytes) -> str:
    """Compute what cksum(1) prints of a file: POSIX' CRC, and the size."""
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
