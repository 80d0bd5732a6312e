"""The directory of downloaded models: the paths of a file, its lock, and its verification.

Called by `download` and `transfer`. A file gets its final name, by a rename, only when it is complete and verified.
Files with a leading dot beside it are the lock, an unfinished download and its state, and the result of the last
verification, so that a 40 GB file is hashed once and not at each start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.contract import FilePlan
from agent.sources.errors import Cancelled, ChecksumMismatch, FileError, NoSpace, PlanInvalid, SizeMismatch, StoreFailed

PARTIAL = ".partial"
"""Suffix of the name of an unfinished download."""
LOCK = ".lock"
_HASH_CHUNK = 4 << 20
_LOCK_POLL_S = 0.1
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Slot:
    """The paths of one file in the store."""

    def __init__(self, root: Path, file_name: str) -> None:
        """`root` is the model's directory. The name of a file of a set may contain folders."""
        self.root = root
        self.final = root / file_name
        self.directory = self.final.parent
        name = self.final.name
        self.partial = self.directory / f".{name}{PARTIAL}"
        self.state = self.directory / f".{name}.state.json"
        self.verified = self.directory / f".{name}.verified.json"
        self.lock = root / LOCK

    @classmethod
    def of(cls, store: Path, plan: FilePlan) -> Slot:
        """Return the slot of a plan's file. Raises PlanInvalid if it would be outside of the model's directory."""
        for part in (plan.cache_key, *plan.file_name.split("/")):
            if not part or part.startswith(".") or "/" in part or "\0" in part or len(os.fsencode(part)) > 220:
                raise PlanInvalid(f"`{part}` cannot be the name of a file or directory in the store")
        return cls(store / plan.cache_key, plan.file_name)

    def prepare(self) -> None:
        """Create the directory."""
        with storing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self, cancel: threading.Event, waiting: Callable[[], None]) -> Iterator[None]:
        """Lock the model's directory against other threads and processes.

        The kernel releases the lock if the process ends. `waiting` is called repeatedly while another process holds the
        lock. Raises Cancelled.
        """
        while True:
            handle = try_lock(self.root)
            if handle is not None:
                break
            waiting()
            if cancel.wait(_LOCK_POLL_S):
                raise Cancelled(f"stopped waiting for another download of `{self.final}`")
        try:
            # A process that made room may have removed the directory.
            self.prepare()
            yield
        finally:
            os.close(handle)

    def discard_partial(self) -> None:
        """Remove an unfinished download and its state."""
        for path in (self.partial, self.state):
            with storing(path):
                path.unlink(missing_ok=True)

    def publish(self, sha256: str | None) -> None:
        """Rename the complete, verified partial file atomically, and sync it to the disk."""
        with storing(self.final):
            handle = os.open(self.partial, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            self.partial.replace(self.final)
            _sync_directory(self.directory)
        # The file is in place. Failures to update its records are ignored.
        with contextlib.suppress(FileError, OSError):
            self.state.unlink(missing_ok=True)
            if sha256:
                record(self.verified, self.final, sha256)

    def check_space(self, needed_bytes: int) -> None:
        """Raise NoSpace if the disk has less than `needed_bytes` free."""
        with storing(self.directory):
            stats = os.statvfs(self.directory)
        free = stats.f_bavail * stats.f_frsize
        if needed_bytes > free:
            what = f"`{self.final.name}` needs {needed_bytes} more bytes"
            raise NoSpace(
                f"{what} and `{self.directory}` has {free}; free some space", lacking_bytes=needed_bytes - free
            )


def try_lock(directory: Path) -> int | None:
    """Lock a model's directory.

    Returns the handle to close, or None if another process holds the lock. Raises a FileError.
    """
    path = directory / LOCK
    with storing(path):
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The lock of a file that was removed with its directory protects nothing.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
            os.close(handle)
            raise stored(error, path) from None
    os.close(handle)
    return None


def verify(path: Path, remembered: Path, plan: FilePlan, cancel: threading.Event) -> None:
    """Check a file in the store against the plan's size and SHA-256. The hash is stored for the next call.

    Raises SizeMismatch, ChecksumMismatch, StoreFailed, Cancelled.
    """
    with storing(path):
        stat = path.stat()
    if plan.size_bytes is not None and stat.st_size != plan.size_bytes:
        raise SizeMismatch(f"`{path}` has {stat.st_size} bytes instead of {plan.size_bytes}")
    if not plan.sha256:
        return
    actual = recalled(remembered, path) or sha256_of(path, cancel)
    # If the hash cannot be stored, as on a read-only disk, the file is hashed again next time.
    with contextlib.suppress(FileError):
        record(remembered, path, actual)
    check_sha256(actual, plan.sha256, str(path))


def check_sha256(actual: str, expected: str, what: str) -> None:
    """Raise ChecksumMismatch unless both digests are equal."""
    if actual != expected.lower():
        raise ChecksumMismatch(f"the SHA-256 of `{what}` is {actual} instead of {expected.lower()}", actual=actual)


def sha256_of(path: Path, cancel: threading.Event | None = None) -> str:
    """Return the SHA-256 of a file. Raises StoreFailed, Cancelled."""
    digest = hashlib.sha256()
    with storing(path), path.open("rb", buffering=0) as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
            if cancel is not None and cancel.is_set():
                raise Cancelled(f"stopped checking `{path}`")
    return digest.hexdigest()


def recalled(remembered: Path, path: Path) -> str | None:
    """Return the stored SHA-256 if the file has not changed since, else None."""
    try:
        entry = json.loads(remembered.read_bytes())
        same = entry["identity"] == _identity(path)
        return str(entry["sha256"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record(remembered: Path, path: Path, sha256: str) -> None:
    """Store a file's SHA-256 with the file's size, time of change and inode."""
    with storing(remembered):
        remembered.parent.mkdir(parents=True, exist_ok=True)
    write_whole(remembered, {"sha256": sha256, "identity": _identity(path)})


def write_whole(path: Path, value: object) -> None:
    """Write a small JSON file atomically."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with storing(path):
        try:
            beside.write_text(json.dumps(value))
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Convert the operating system's errors on `path` to FileErrors."""
    try:
        yield
    except OSError as error:
        raise stored(error, path) from None


def stored(error: OSError, path: Path) -> FileError:
    """Return the FileError for an operating system error on `path`."""
    why = error.strerror or str(error)
    if error.errno in _NO_SPACE:
        return NoSpace(f"`{path}` cannot be written: {why}; free some space")
    return StoreFailed(f"`{path}`: {why}")


def _identity(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
