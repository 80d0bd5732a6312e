"""Writes and reads the archive of a bundle: a plain tar file that other programs can read, too.

The same contents give the same bytes: sorted names, and one time, owner and mode for all files. Data passes through
in chunks, because models are larger than the memory.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from automation.bundles.contents import LIST_NAME, MOST_LIST_BYTES, BundledFile, BundleError, BundleInvalid, Contents

CHUNK_BYTES = 1 << 20
OnBytes = Callable[[int], None]
"""Receives the number of bytes that were written or read since the last call."""


def write(target: Path, contents: Contents, files: Mapping[str, Path], *, on_bytes: OnBytes, mtime: int = 0) -> str:
    """Write an archive, and return its SHA-256. `files` has the local file of each path in `contents`.

    The archive gets its name when it is complete. Raises BundleError for a file that changed since it was listed, and
    for a disk that cannot hold the archive.
    """
    draft = target.with_name(f".{target.name}.partial")
    listed = contents.dumped()
    try:
        with draft.open("wb") as raw:
            hashing = _HashingWriter(raw)
            # GNU's format keeps sizes beyond 8 GiB in the header itself, without a record whose content may vary.
            with tarfile.open(
                fileobj=cast("IO[bytes]", hashing), mode="w|", format=tarfile.GNU_FORMAT, bufsize=CHUNK_BYTES
            ) as tar:
                _add(tar, LIST_NAME, len(listed), io.BytesIO(listed), mtime)
                for file in contents.files:
                    with _opened(files[file.path]) as opened:
                        checked = _CheckedReader(opened, file, on_bytes)
                        _add(tar, file.path, file.bytes, checked, mtime)
                        checked.check(str(files[file.path]))
            raw.flush()
            os.fsync(raw.fileno())
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise BundleError(
            f"{target} cannot be written: {error.strerror or error}", hint="free some space, or name another --out"
        ) from None
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return hashing.digest.hexdigest()


class Reader:
    """An open archive. Each file can be read once, in the order of the list."""

    def __init__(self, tar: tarfile.TarFile, contents: Contents) -> None:
        self._tar = tar
        self.contents = contents

    def files(self) -> Iterator[tuple[BundledFile, IO[bytes]]]:
        """Yield each file of the list with its open data.

        Raises BundleInvalid for a member that is not in the list, is no plain file, or has another size, and for
        missing members. The content of such a member is not read.
        """
        for expected in self.contents.files:
            member = _next(self._tar)
            if member is None:
                raise BundleInvalid(f"the bundle ends before {expected.path}", hint="copy it again")
            _check(member, expected)
            data = self._tar.extractfile(member)
            assert data is not None
            yield expected, data
        extra = _next(self._tar)
        if extra is not None:
            raise BundleInvalid(f"the bundle has the file {extra.name[:100]!r}, which is not in its list")


@contextmanager
def reading(path: Path) -> Iterator[Reader]:
    """Open an archive and read its list. Raises BundleInvalid, and BundleError for a file that cannot be read."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from None
    with raw:
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", _BoundedReader(raw)), mode="r:") as tar:
                first = _next(tar)
                if first is None or first.name != LIST_NAME or not first.isreg() or first.size > MOST_LIST_BYTES:
                    raise BundleInvalid(f"{path} is not a bundle: it does not begin with {LIST_NAME}")
                data = tar.extractfile(first)
                assert data is not None
                yield Reader(tar, Contents.parsed(data.read(MOST_LIST_BYTES)))
        except tarfile.TarError as error:
            raise BundleInvalid(
                f"{path} is not a bundle, or is not complete: {error}", hint="copy it again, or make it again"
            ) from None


def sha256_of_file(path: Path, on_bytes: OnBytes) -> str:
    """Return the SHA-256 of a file. Raises BundleError."""
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as opened:
            while chunk := opened.read(CHUNK_BYTES):
                digest.update(chunk)
                on_bytes(len(chunk))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}", hint="make the bundle again") from None


def _next(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    member = tar.next()
    # tarfile keeps every header that it has read; a bundle can have thousands.
    tar.members = []  # type: ignore[attr-defined] # an attribute of the class that its stubs lack
    return member


def _check(member: tarfile.TarInfo, expected: BundledFile) -> None:
    if member.name != expected.path:
        raise BundleInvalid(f"the bundle has the file {member.name[:100]!r} in the place of {expected.path}")
    if not member.isreg() or member.issparse():
        raise BundleInvalid(f"{expected.path} is a link, a folder or a device in the bundle, not a plain file")
    if member.size != expected.bytes:
        raise BundleInvalid(f"{expected.path} has {member.size} bytes instead of {expected.bytes}")


def _add(tar: tarfile.TarFile, name: str, size: int, data: object, mtime: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, mtime, 0o644
    # It calls `read` alone.
    tar.addfile(info, cast("IO[bytes]", data))


class _CheckedReader:
    """Reads a file, reports the progress, and compares size and SHA-256 with the list."""

    def __init__(self, opened: IO[bytes], file: BundledFile, on_bytes: OnBytes) -> None:
        self._opened, self._file, self._on_bytes = opened, file, on_bytes
        self._digest, self._done = hashlib.sha256(), 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._opened.read(size)
        if len(data) < size:
            raise BundleError(f"{self._opened.name} became shorter while it was packed", hint="make the bundle again")
        self._digest.update(data)
        self._done += len(data)
        self._on_bytes(len(data))
        return data

    def check(self, path: str) -> None:
        if self._digest.hexdigest() != self._file.sha256 or self._opened.read(1):
            raise BundleError(f"{path} changed while it was packed", hint="make the bundle again")


class _BoundedReader:
    """Refuses to read much at once: tarfile reads names of any length that a header announces into memory."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.seek, self.tell, self.seekable = raw.seek, raw.tell, raw.seekable

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_LIST_BYTES:
            raise tarfile.ReadError("a header is too large")
        return self._raw.read(size)


class _HashingWriter:
    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._raw.write(data)
