"""Notices that somebody changed or deleted the unit of a process that runs. Pure but for what it remembers.

Called by `processes`, which tells what it wrote or found in order, and then each look, which has the file's checksum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.client.ssh.observed import ObservedProcess

MayRepair = Callable[[str, str, bool], bool]
"""Is told the key, what happened to its unit, and whether that is news; says whether the unit is to be put back."""


@dataclass(frozen=True)
class UnitChange:
    """What somebody did to a unit."""

    words: str = ""
    """Empty: nobody has looked yet whether it is in order."""
    restarted: bool = False
    """The process was started anew since, maybe by what the unit said then."""
    is_news: bool = True


class UnitWatch:
    """The units of one host's processes that were found in order."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        """By key the checksum that the unit must have, and the last start of the process while it had it."""
        self._told: dict[str, str] = {}

    def in_order(self, key: str, unit: str, start: str = "") -> None:
        """Note the checksum that the unit has now. `start`: of the process, unless it is being started anew."""
        self._known[key] = (unit, start)
        self._told.pop(key, None)

    def change(self, key: str, seen: ObservedProcess) -> UnitChange | None:
        """Compare a unit that was in order with what a look shows; None: it still is."""
        if key not in self._known:
            return UnitChange()
        expected, start = self._known[key]
        if expected == seen.unit:
            self._known[key] = (expected, seen.start)
            self._told.pop(key, None)
            return None
        is_news = self._told.get(key) != seen.unit
        self._told[key] = seen.unit
        return UnitChange("was changed" if seen.unit else "was deleted", start not in ("", seen.start), is_news)

    def forget_unit(self, key: str) -> None:
        self._known.pop(key, None)
        self._told.pop(key, None)

    def forget_all(self) -> None:
        """Trust nothing that was known, as after another connection."""
        self._known.clear()
        self._told.clear()


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
