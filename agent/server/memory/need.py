"""Amounts of memory that a process needs or has, in the machine's RAM and on discrete GPUs. Without I/O.

If the GPU shares the machine's memory, as on Apple silicon, everything counts in `ram_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def amount(size_bytes: float) -> str:
    """Format bytes for people: `512 MiB`, `5.2 GiB`."""
    mib = size_bytes / (1 << 20)
    if abs(mib) < 1024:
        return f"{mib:.0f} MiB"
    gib = mib / 1024
    return f"{gib:.0f} GiB" if gib == int(gib) else f"{gib:.1f} GiB"


def percent(share: float) -> str:
    """Format a share of 1 as `9.5 %`."""
    return f"{share * 100:.1f} %".replace(".0 %", " %")


@dataclass(frozen=True)
class Need:
    """An amount of memory."""

    ram_bytes: int = 0
    gpu_bytes: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(self.ram_bytes + other.ram_bytes, self.gpu_bytes + other.gpu_bytes)

    def __sub__(self, other: Need) -> Need:
        """Subtract each amount, with 0 as the minimum."""
        return Need(max(0, self.ram_bytes - other.ram_bytes), max(0, self.gpu_bytes - other.gpu_bytes))

    def within(self, room: Need) -> bool:
        """Return whether both amounts fit into `room`."""
        return self.ram_bytes <= room.ram_bytes and self.gpu_bytes <= room.gpu_bytes

    @property
    def total_bytes(self) -> int:
        return self.ram_bytes + self.gpu_bytes

    def __str__(self) -> str:
        if not self.gpu_bytes:
            return amount(self.ram_bytes)
        on_gpu = f"{amount(self.gpu_bytes)} of GPU memory"
        return f"{on_gpu} and {amount(self.ram_bytes)}" if self.ram_bytes else on_gpu


def total(needs: Iterable[Need]) -> Need:
    """Return the sum of the amounts."""
    found = Need()
    for need in needs:
        found += need
    return found
