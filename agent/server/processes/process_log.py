"""Keeps the output of one process: rotated in place, its last lines quotable.

Called by `worker`, and read for `herdsman logs`. The process holds the file open for appending, across
the agent's own restarts, so rotation copies and truncates instead of renaming.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from agent.contract import LogPiece

MAX_BYTES = 16 * 1024 * 1024
KEPT = 3
FORGOTTEN_S = 7 * 86400.0
"""How long the log of a removed process may be read."""
PIECE_BYTES = 4 * 1024 * 1024
"""Most that one reading gives."""


def rotate(log: Path, *, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> bool:
    """Move what is in a file over `max_bytes` to `<log>.1`, older ones up to `<log>.<kept>`; tell whether it did."""
    try:
        if log.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    for number in range(kept, 1, -1):
        older = copy_of(log, number - 1)
        if older.exists():
            older.replace(copy_of(log, number))
    newest = copy_of(log, 1)
    try:
        shutil.copyfile(log, newest)
    except OSError:
        # A full disk: the oldest lines make room for the newest, or one log would fill what others free.
        for number in range(1, kept + 1):
            copy_of(log, number).unlink(missing_ok=True)
        os.truncate(log, 0)
        raise
    os.truncate(log, 0)
    return True


def copy_of(log: Path, number: int) -> Path:
    """Name the nth copy that rotation keeps; 1 is the newest."""
    return log.with_name(f"{log.name}.{number}")


def remove(log: Path, *, kept: int = KEPT) -> None:
    """Remove a log and its copies."""
    for path in (log, *(copy_of(log, number) for number in range(1, kept + 1))):
        path.unlink(missing_ok=True)


def prune(directory: Path, *, kept: Iterable[Path], older_than_s: float = FORGOTTEN_S) -> None:
    """Remove logs, with their copies, that belong to nobody any more and that nobody has written to for so long."""
    known = set(kept)
    with contextlib.suppress(OSError):
        for log in directory.glob("*.log"):
            if log not in known and time.time() - log.stat().st_mtime > older_than_s:
                remove(log)


def read(
    log: Path, *, tail: int | None = None, offset: int | None = None, max_bytes: int = PIECE_BYTES
) -> LogPiece | None:
    """Read the last `tail` lines, or what follows `offset`, at most `max_bytes`; None when there is no such file.

    A file that was rotated since is read from its start.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - max_bytes) if offset is None else (offset if offset <= size else 0)
            file.seek(start)
            data = file.read(max_bytes)
    except FileNotFoundError:
        return None
    if offset is not None:
        return LogPiece(text=data.decode("utf-8", "replace"), offset=start + len(data))
    if start > 0:
        # The first line may be torn.
        data = data.partition(b"\n")[2]
    lines = data.splitlines(keepends=True)
    kept = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
    return LogPiece(text=b"".join(kept).decode("utf-8", "replace"), offset=size)


def last_lines(log: Path, *, since_byte: int = 0, lines: int = 8, max_bytes: int = 2000) -> str:
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
