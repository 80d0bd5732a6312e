"""A backup of a state backend: one file with a manifest, checksums and the state of each stack, as Pulumi exports it.

The file does not contain the passphrase: it shows names and fields of objects, and no secret.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import tarfile
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

FORMAT = "herdsman.dev/state-backup/v1"
_MANIFEST = "manifest.json"
_LARGEST_BYTES = 1 << 30
"""Largest size of one member. A state of 64 services has less than a megabyte."""

Export = dict[str, Any]


class ArchiveBroken(Exception):
    """The file is not a backup, or was changed since it was written."""


def write(path: pathlib.Path, exports: Mapping[str, Export], *, source: str) -> None:
    """Write the backup in one step: a reader finds the whole new file or the earlier one. Raises OSError."""
    members = {f"stacks/{name}.json": json.dumps(export).encode() for name, export in sorted(exports.items())}
    manifest = {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": source,
        "stacks": [
            {
                "name": name,
                "file": f"stacks/{name}.json",
                "sha256": hashlib.sha256(members[f"stacks/{name}.json"]).hexdigest(),
                "resources": len((export.get("deployment") or {}).get("resources") or ()),
            }
            for name, export in sorted(exports.items())
        ],
    }
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                _add(tar, _MANIFEST, json.dumps(manifest, indent=2).encode())
                for name, content in members.items():
                    _add(tar, name, content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: pathlib.Path) -> dict[str, Export]:
    """Read a whole backup and check every part of it before any part is used. Raises ArchiveBroken."""
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            manifest = json.loads(_content(tar, _MANIFEST))
            if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
                raise ArchiveBroken(f"`{path}` is not a backup for this release: its format is not {FORMAT}")
            return {str(entry["name"]): _stack(tar, entry) for entry in manifest["stacks"]}
    except OSError as error:
        raise ArchiveBroken(f"`{path}` cannot be read: {error}") from error
    except (tarfile.TarError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise ArchiveBroken(f"`{path}` is not a complete backup: {error}") from error


def _stack(tar: tarfile.TarFile, entry: dict[str, Any]) -> Export:
    content = _content(tar, str(entry["file"]))
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise ValueError(f"the checksum of stack `{entry['name']}` does not match")
    export = json.loads(content)
    if not isinstance(export, dict):
        raise ValueError(f"stack `{entry['name']}` contains no state")
    return export


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.getmember(name)
    file = tar.extractfile(member) if member.size <= _LARGEST_BYTES else None
    if file is None:
        raise ValueError(f"`{name}` is not a file, or is too large")
    return file.read()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o600
    tar.addfile(member, io.BytesIO(content))
