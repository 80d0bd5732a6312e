"""Blocks the opening of a file, so that an engine loads its model for as long as a test wants."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

LONGEST_S = 45.0
"""The default of `/proc/sys/fs/lease-break-time`: after this time the kernel ends the lease."""


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Make other processes wait in `open` until the block ends. Linux only. The file must not be open."""
    # The kernel sends the holder SIGIO when another process waits. The signal's default action ends the holder.
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)
