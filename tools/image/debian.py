"""Downloads Debian's packages for an image and unpacks them, for any architecture, without running any of them.

mmdebstrap resolves, downloads and verifies the packages; `dpkg-deb` reads them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools import commands
from tools.commands import Workbench
from tools.image import contents

_MERGED = ("bin/", "sbin/", "lib/", "lib64/")
"""Folders that are below /usr in the image. Some packages of this release name them without /usr."""
_STATUS = "var/lib/dpkg/status.d"
"""Vulnerability scanners read this folder in images without dpkg."""
_STATUS_FIELDS = ("Package", "Source", "Version", "Architecture", "Maintainer", "Description")


@dataclass(frozen=True)
class DebianPackage:
    """One downloaded package."""

    file: Path
    fields: Mapping[str, str]

    @property
    def name(self) -> str:
        """The package's name."""
        return self.fields["Package"]

    @property
    def version(self) -> str:
        """The package's version."""
        return self.fields["Version"]

    @property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(architecture: str, folder: Path, *, mirrors: Sequence[str], workbench: Workbench) -> None:
    """Download the packages of an architecture into a folder, and replace its content.

    Raises:
        BuildFailed: a mirror cannot be reached, or lacks a package.
    """
    staging = folder.with_name(f".fetching-{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    commands.run(
        [
            "mmdebstrap",
            "--variant=extract",
            "--format=tar",
            f"--architectures={architecture}",
            f"--include={','.join(contents.DEBIAN_PACKAGES)}",
            # Into the working directory of mmdebstrap, because it would split a path with a space.
            "--extract-hook=copy-out /var/cache/apt/archives .",
            contents.SUITE,
            os.devnull,
            *mirrors,
        ],
        workbench,
        directory=staging,
        environment={**os.environ, "LC_ALL": "C"},
    )
    shutil.rmtree(folder, ignore_errors=True)
    (staging / "archives").rename(folder)
    shutil.rmtree(staging)


def packages(folder: Path) -> list[DebianPackage]:
    """Return the downloaded packages that the image contains, by name; empty if nothing was downloaded."""
    found = [DebianPackage(file, _fields(file)) for file in sorted(folder.glob("*.deb"))]
    return sorted(
        (one for one in found if one.name not in contents.LEFT_OUT_DEBIAN and not one.name.startswith("gcc-")),
        key=lambda package: package.name,
    )


def unpack(found: Sequence[DebianPackage], root: Path) -> None:
    """Extract the image's files of the packages into a folder, with the changes that Debian's own scripts would make.

    Raises:
        OSError: a package cannot be read.
    """
    authorities: dict[str, bytes] = {}
    for package in found:
        with _content(package.file) as tar:
            for member in tar:
                path = _placed(member.name)
                if path.startswith("usr/share/ca-certificates/mozilla/"):
                    opened = tar.extractfile(member)
                    authorities[path] = opened.read() if opened else b""
                elif not member.isdir() and contents.keeps(path):
                    _extract(tar, member, root / path, root=root)
        status = root / _STATUS / package.name
        status.parent.mkdir(parents=True, exist_ok=True)
        status.write_text(
            "".join(f"{name}: {package.fields[name]}\n" for name in _STATUS_FIELDS if name in package.fields)
        )
    bundle = root / contents.CERTIFICATES
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(b"".join(text.rstrip(b"\n") + b"\n" for _, text in sorted(authorities.items()) if text))


def listed(root: Path) -> dict[str, str]:
    """Return the versions of the packages in a folder that `unpack` filled, by name."""
    found = {}
    for file in sorted((root / _STATUS).glob("*")):
        fields = dict(line.split(": ", 1) for line in file.read_text(encoding="utf-8").splitlines())
        found[fields["Package"]] = fields["Version"]
    return found


@contextmanager
def _content(file: Path) -> Iterator[tarfile.TarFile]:
    """Give the files of a package as a tar stream."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            yield tar


def _placed(name: str) -> str:
    path = name.removeprefix("./").rstrip("/")
    return f"usr/{path}" if path.startswith(_MERGED) else path


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, *, root: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        shutil.copy2(root / _placed(member.linkname), target)
    elif member.isreg():
        source = tar.extractfile(member)
        assert source is not None
        with target.open("wb") as out:
            shutil.copyfileobj(source, out)
        target.chmod(0o755 if member.mode & 0o111 else 0o644)


def _fields(file: Path) -> dict[str, str]:
    text = subprocess.run(["dpkg-deb", "--field", str(file)], capture_output=True, text=True, check=True).stdout
    pairs = (line.partition(": ") for line in text.splitlines() if line[:1].strip())
    return {name: value.strip() for name, _, value in pairs}
