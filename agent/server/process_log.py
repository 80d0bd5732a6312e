"""Keeps the output of one process: rotated in place, its last lines quotable.

Called by `agent.server.worker`. The process holds the file open for appending, across the agent's own restarts, so
rotation copies and truncates instead of renaming.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MAX_BYTES = 16 * 1024 * 1024
KEPT = 3


def rotate(log: Path, *, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> bool:
    """Move what is in a file over `max_bytes` to `<log>.1`, older ones up to `<log>.<kept>`; tell whether it did."""
    try:
        if log.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    for number in range(kept, 1, -1):
        older = log.with_name(f"{log.name}.{number - 1}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number}"))
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)
    return True


def last_lines(log: Path, *, since_byte: int = 0, lines: int = 5, max_bytes: int = 2000) -> str:
    """Quote the last lines written after `since_byte`, at most `max_bytes`; empty when there are none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # After a truncation the file is shorter than the byte that was remembered.
            start = since_byte if since_byte <= size else 0
            file.seek(max(start, size - max_bytes))
            text = file.read(max_bytes).decode("utf-8", "replace")
    except OSError:
        return ""
    written = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(written[-lines:])


def size_of(log: Path) -> int:
    """Give the file's size in bytes; 0 when it is not there."""
    try:
        return log.stat().st_size
    except OSError:
        return 0
