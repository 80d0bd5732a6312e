"""Makes a layer of a folder: a tar archive whose bytes depend only on paths, contents and the given time."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.image.contents import STICKY_FOLDERS


@dataclass(frozen=True)
class Counted:
    """The size of a layer."""

    files: int
    size_bytes: int


def write(root: Path, archive: Path, *, time_s: int) -> Counted:
    """Write all files below the folder, owned by root, not writable by others, with one modification time.

    Raises:
        OSError: a file cannot be read.
    """
    files = size_bytes = 0
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in _sorted(root):
            member = tarfile.TarInfo(str(path.relative_to(root)))
            member.mtime = time_s
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
                member.mode = 0o777
                tar.addfile(member)
            elif path.is_dir():
                member.type = tarfile.DIRTYPE
                member.mode = 0o1777 if member.name in STICKY_FOLDERS else 0o755
                tar.addfile(member)
            else:
                status = path.stat()
                member.size = status.st_size
                member.mode = 0o755 if status.st_mode & 0o111 else 0o644
                files, size_bytes = files + 1, size_bytes + member.size
                with path.open("rb") as source:
                    tar.addfile(member, source)
    return Counted(files, size_bytes)


def _sorted(root: Path) -> Iterable[Path]:
    return sorted(root.rglob("*"), key=lambda path: path.parts)
