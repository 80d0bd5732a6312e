"""Words for amounts of memory, the same in every message. Pure."""

from __future__ import annotations


def amount(size_bytes: float) -> str:
    """Write bytes as people compare them: `512 MiB`, `5.2 GiB`."""
    mib = size_bytes / (1 << 20)
    if abs(mib) < 1024:
        return f"{mib:.0f} MiB"
    gib = mib / 1024
    return f"{gib:.0f} GiB" if gib == int(gib) else f"{gib:.1f} GiB"


def percent(share: float) -> str:
    """Write a share of 1 as `9.5 %`."""
    return f"{share * 100:.1f} %".replace(".0 %", " %")
