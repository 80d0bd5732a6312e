"""The memory into which asyncio reads. The proxy and the gateway call it before their event loops run."""

from __future__ import annotations

READ_BYTES = 256 * 1024
"""asyncio allocates a block of this size for each read, and frees what the read has not filled."""


def keep_for_reads() -> None:
    """Let glibc keep freed blocks of this size for the next read.

    Else it gets each block from the kernel and gives it back: three system calls and two page faults, which take more
    time than the read. It keeps blocks up to the largest size that was freed before, so a larger one is freed here.
    """
    bytearray(4 * READ_BYTES)
