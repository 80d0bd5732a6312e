"""Makes container images of files of this machine, for clusters without a registry.

An `Image` is a set of files and a start command. `write` makes a tar archive of it in the format of `docker save`,
which containerd imports. The same files give the same bytes, so that an image keeps its digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CREATED = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class Text:
    """A file with this text."""

    text: str
    mode: int = 0o644


Entry = Path | Text | Link
"""A copy of a file of this machine, a file with a given text, or a link."""


@dataclass(frozen=True)
class Image:
    """The content of an image. Paths inside it are relative to its root."""

    name: str
    files: Mapping[str, Entry]
    entrypoint: tuple[str, ...] = ()
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, int] = field(default_factory=dict)
    """Empty folders and their modes, such as `tmp`."""


def write(image: Image, archive: Path) -> Path:
    """Write the image as an archive and return its path.

    Raises:
        OSError: a file of the image does not exist or cannot be read.
    """
    with tempfile.TemporaryFile(dir=archive.parent) as layer:
        with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            _fill(tar, image)
        layer.seek(0)
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
        configuration = json.dumps(_configuration(image, digest), sort_keys=True).encode()
        configuration_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
        manifest = [{"Config": configuration_name, "RepoTags": [image.name], "Layers": [f"{digest}/layer.tar"]}]
        with tarfile.open(archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
            _add_bytes(tar, configuration_name, configuration)
            _add_bytes(tar, "manifest.json", json.dumps(manifest).encode())
            size = layer.seek(0, io.SEEK_END)
            layer.seek(0)
            tar.addfile(_member(f"{digest}/layer.tar", size=size), layer)
    return archive


def with_libraries(program: Path, *, at: str) -> dict[str, Entry]:
    """Return the program at a path of the image, and all its shared libraries at the paths where it loads them.

    Raises:
        OSError: the program or `ldd` does not exist.
    """
    return {at: program, **{str(library).lstrip("/"): library for library in shared_libraries(program)}}


def shared_libraries(program: Path) -> list[Path]:
    """Return the libraries and the loader of a program; empty for a static program."""
    answer = subprocess.run(["ldd", str(program)], capture_output=True, text=True, timeout=60, check=False)
    # `libc.so.6 => /lib/…/libc.so.6 (0x…)`, and the loader alone: `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    found = re.findall(r"(?:=> |^\s+)(/\S+) \(0x", answer.stdout, flags=re.MULTILINE)
    return [Path(path) for path in dict.fromkeys(found)]


def accounts(users: Iterable[tuple[str, int, int]]) -> dict[str, Entry]:
    """Return the files with the names of root and the users, each with a group of the same name."""
    everybody = [("root", 0, 0), *users]
    return {
        "etc/passwd": Text("".join(f"{name}:x:{uid}:{gid}::/:/bin/sh\n" for name, uid, gid in everybody)),
        "etc/group": Text("".join(f"{name}:x:{gid}:\n" for name, _, gid in everybody)),
    }


def _fill(tar: tarfile.TarFile, image: Image) -> None:
    folders = {str(parent) for path in image.files for parent in Path(path).parents if str(parent) != "."}
    modes = {**dict.fromkeys(folders, 0o755), **image.folders}
    for path, mode in sorted(modes.items()):
        member = _member(path, mode=mode)
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    for path, entry in sorted(image.files.items()):
        match entry:
            case Link(target):
                member = _member(path)
                member.type, member.linkname = tarfile.SYMTYPE, target
                tar.addfile(member)
            case Text(text, mode):
                _add_bytes(tar, path, text.encode(), mode=mode)
            case Path():
                status = entry.stat()
                with entry.open("rb") as source:
                    tar.addfile(_member(path, size=status.st_size, mode=status.st_mode & 0o777), source)


def _configuration(image: Image, digest: str) -> dict[str, object]:
    settings: dict[str, object] = {"Env": [f"{name}={value}" for name, value in _environment(image).items()]}
    if image.entrypoint:
        settings["Entrypoint"] = list(image.entrypoint)
    if image.user:
        settings["User"] = image.user
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": _CREATED,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": _CREATED, "created_by": "herdsman"}],
    }


def _environment(image: Image) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **image.environment}


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    tar.addfile(_member(name, size=len(content), mode=mode), io.BytesIO(content))


def _member(name: str, *, size: int = 0, mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, mode
    return member
