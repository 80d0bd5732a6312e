"""An OCI layout to which umoci adds layers and from which skopeo copies images. Both are Debian's programs.

The layout in the cache is the cache of layers: each state of an image has a tag, made from its inputs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools import commands
from tools.commands import Workbench
from tools.image import contents

_REFERENCE = "org.opencontainers.image.ref.name"


class Layout:
    """The layout in one folder. Every method raises BuildFailed if a program fails."""

    def __init__(self, folder: Path, workbench: Workbench) -> None:
        self._folder = folder
        self._workbench = workbench
        if not (folder / "index.json").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._umoci("init", "--layout", str(folder))

    def tags(self) -> list[str]:
        """Return all tags."""
        return [found["annotations"][_REFERENCE] for found in self._manifests()]

    def start(self, tag: str, architecture: str, *, time_s: int) -> None:
        """Make an image without layers."""
        self._umoci("new", "--image", self._at(tag))
        when = _moment(time_s)
        settings = ["--architecture", architecture, "--os", "linux", "--created", when, "--no-history"]
        self._umoci("config", "--image", self._at(tag), *settings)

    def add(self, base: str, tag: str, archive: Path, *, said: str, time_s: int) -> None:
        """Make tag `tag`: the image of tag `base` with one more layer."""
        history = [f"--history.created={_moment(time_s)}", "--history.created_by=herdsman", f"--history.comment={said}"]
        self._umoci("raw", "add-layer", "--image", self._at(base), "--tag", tag, *history, str(archive))

    def configure(self, base: str, tag: str, *, labels: Mapping[str, str], time_s: int) -> None:
        """Make tag `tag`: the image of tag `base` with the settings of its start."""
        settings = [f"--config.user={contents.USER}:{contents.USER}", f"--config.workingdir={contents.WORKING_FOLDER}"]
        settings += [f"--config.entrypoint={word}" for word in contents.ENTRYPOINT]
        settings += [f"--config.cmd={word}" for word in contents.COMMAND]
        settings += [f"--config.env={name}={value}" for name, value in contents.ENVIRONMENT.items()]
        settings += [f"--config.label={name}={value}" for name, value in sorted(labels.items())]
        settings += [f"--config.exposedports={contents.PORT}/tcp", f"--created={_moment(time_s)}", "--no-history"]
        self._umoci("config", "--image", self._at(base), "--tag", tag, *settings)

    def keep_only(self, kept: Sequence[str]) -> None:
        """Remove all other tags, and the layers that only they had."""
        for tag in set(self.tags()) - set(kept):
            self._umoci("rm", "--image", self._at(tag))
        self._umoci("gc", "--layout", str(self._folder))

    def manifest(self, tag: str) -> tuple[str, dict[str, Any]]:
        """Return the digest and the manifest of an image."""
        [digest] = [found["digest"] for found in self._manifests() if found["annotations"][_REFERENCE] == tag]
        return digest, _read(self._blob(digest))

    def copy(self, tag: str, target: str) -> None:
        """Copy an image to a target in skopeo's notation, such as `docker-archive:FILE:NAME`."""
        self._run(["skopeo", "--insecure-policy", "copy", "--quiet", f"oci:{self._at(tag)}", target])

    def _manifests(self) -> list[dict[str, Any]]:
        # umoci writes null for an empty list.
        return _read(self._folder / "index.json")["manifests"] or []

    def _blob(self, digest: str) -> Path:
        algorithm, _, name = digest.partition(":")
        return self._folder / "blobs" / algorithm / name

    def _at(self, tag: str) -> str:
        return f"{self._folder}:{tag}"

    def _umoci(self, *arguments: str) -> None:
        self._run(["umoci", *arguments])

    def _run(self, argv: list[str]) -> None:
        commands.run(argv, self._workbench, directory=self._folder.parent, environment=dict(os.environ))


def _moment(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read(file: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return read
