"""Opens directories for root by descriptors, from `/` on, and follows no link that another user could have made.

Used by `local`. A user controls the paths below the user's own directory: a link there could redirect root's `chown`
and writes. Over SSH, `scripts/enter.sh` of `agent.client.ssh` does the same.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agent.steps.machine import MachineError

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


@contextmanager
def opened(path: str, *, make: bool = False) -> Iterator[int]:
    """Open a directory and return its descriptor. With `make`, missing directories are created first (0755).

    A symbolic link is followed only if root made it and no other user can replace it, such as `/var` on macOS. Raises
    MachineError for any other link, OSError for errors of the system.
    """
    handle = _walk(path, make=make)
    try:
        yield handle
    finally:
        os.close(handle)


def _walk(path: str, *, make: bool) -> int:
    rest = deque(part for part in path.split("/") if part not in ("", "."))
    handle, links, at = os.open("/", _FLAGS), 0, ""
    try:
        while rest:
            name = rest.popleft()
            try:
                found = _step(handle, name, make=make)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
                    raise
                target, links = _target(handle, name, f"{at}/{name}"), links + 1
                if links > _MOST_LINKS:
                    raise
                rest.extendleft(reversed([part for part in target.split("/") if part not in ("", ".")]))
                found, name = (os.open("/", _FLAGS), "") if target.startswith("/") else (os.dup(handle), "")
                at = "" if target.startswith("/") else at
            os.close(handle)
            handle, at = found, f"{at}/{name}" if name else at
    except BaseException:
        os.close(handle)
        raise
    return handle


def _step(handle: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=handle)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=handle)
    return os.open(name, _FLAGS, dir_fd=handle)


def _target(handle: int, name: str, path: str) -> str:
    """Read a link that only root could make. Raises MachineError for other links, OSError if it is not a link."""
    link, directory = os.stat(name, dir_fd=handle, follow_symlinks=False), os.fstat(handle)
    if not stat.S_ISLNK(link.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if link.st_uid != 0 or directory.st_uid != 0 or directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise MachineError(
            f"{path} is a symbolic link that another user than root can change",
            hint="name the target of the link",
        )
    return os.readlink(name, dir_fd=handle)
