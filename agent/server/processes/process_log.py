"""The log of one process: its rotation, and reading parts of it.

Called by `worker` and by `herdsman logs`. The process keeps the file open for appending, even while the agent restarts,
so the rotation copies and truncates the file instead of renaming it.
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
"""How long the log of a removed process is kept."""
PIECE_BYTES = 4 * 1024 * 1024
"""Largest number of bytes that one call of `read` returns."""


def rotate(log: Path, *, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> bool:
    """Move the content of a file over `max_bytes` to `<log>.1`, and older copies up to `<log>.<kept>`.

    Returns whether it did.
    """
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
        # The disk is full. Remove the copies: otherwise this log would fill the space that other removals free.
        for number in range(1, kept + 1):
            copy_of(log, number).unlink(missing_ok=True)
        os.truncate(log, 0)
        raise
    os.truncate(log, 0)
    return True


def copy_of(log: Path, number: int) -> Path:
    """Return the path of the nth copy that the rotation keeps; 1 is the newest."""
    return log.with_name(f"{log.name}.{number}")


def remove(log: Path, *, kept: int = KEPT) -> None:
    """Remove a log and its copies."""
    for path in (log, *(copy_of(log, number) for number in range(1, kept + 1))):
        path.unlink(missing_ok=True)


def prune(directory: Path, *, kept: Iterable[Path], older_than_s: float = FORGOTTEN_S) -> None:
    """Remove logs, and their copies, that are not in `kept` and were last written more than `older_than_s` ago."""
    known = set(kept)
    with contextlib.suppress(OSError):
        for log in directory.glob("*.log"):
            if log not in known and time.time() - log.stat().st_mtime > older_than_s:
                remove(log)


def read(
    log: Path, *, tail: int | None = None, offset: int | None = None, max_bytes: int = PIECE_BYTES
) -> LogPiece | None:
    """Read the last `tail` lines, or the text after `offset`, at most `max_bytes`.

    Returns None if the file does not exist. If the file was rotated since `offset` was given, the text starts at the
    beginning of the file.
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
        # The first line may be incomplete.
        data = data.partition(b"\n")[2]
    lines = data.splitlines(keepends=True)
    kept = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
    return LogPiece(text=b"".join(kept).decode("utf-8", "replace"), offset=size)


def last_lines(log: Path, *, since_byte: int = 0, lines: int = 8, max_bytes: int = 2000) -> str:
    """Return the last lines written after `since_byte`, at most `max_bytes`. Empty if there are none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # After a truncation the file is shorter than `since_byte`.
            start = since_byte if since_byte <= size else 0
            file.seek(max(start, size - max_bytes))
            text = file.read(max_bytes).decode("utf-8", "replace")
    except OSError:
        return ""
    written = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(written[-lines:])


def size_of(log: Path) -> int:
    """Return the size of the file in bytes, or 0 if it does not exist."""
    try:
        return log.stat().st_size
    except OSError:
        return 0
