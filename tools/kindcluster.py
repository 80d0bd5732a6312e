"""A local cluster by kind, on machines with Docker. Called by `herdsman cluster`.

The directory holds the kubeconfig and the name of the kind cluster, so that later commands find the cluster.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster import ClusterError, default_directory
from tools.localcluster.layout import write_private
from tools.toolchain import locate

_CREATE_TIMEOUT_S = 600.0


def docker_runs() -> bool:
    """Return whether a Docker daemon answers."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        return subprocess.run([docker, "info"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@dataclass(frozen=True)
class KindCluster:
    """One kind cluster, with its files in one directory."""

    directory: Path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, readable by its owner only."""
        return self.directory / "kubeconfig"

    @property
    def name(self) -> str:
        """The cluster's name in kind and Docker, which depends on the directory."""
        resolved = self.directory.expanduser().resolve()
        if resolved == default_directory():
            return "herdsman"
        return f"herdsman-{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"

    @property
    def exists_here(self) -> bool:
        """Whether the directory belongs to a kind cluster."""
        return self._marker.is_file()

    @property
    def _marker(self) -> Path:
        return self.directory / "kind.json"

    def up(self, configuration: Path | None = None) -> bool:
        """Create the cluster unless it exists; return whether it was created.

        `configuration` is a file in kind's format. An existing cluster does not change.

        Raises:
            ToolMissing: kind is not on this machine.
            ClusterError: kind or Docker failed, or kind refused the configuration.
        """
        created = not self.runs()
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._marker, json.dumps({"name": self.name}) + "\n")
        if created:
            chosen = ["--config", str(configuration)] if configuration else []
            where = ["--name", self.name, "--kubeconfig", str(self.kubeconfig)]
            self._kind("create", "cluster", *where, "--wait", "120s", *chosen)
        elif not self.kubeconfig.is_file():
            write_private(self.kubeconfig, self._kind("get", "kubeconfig", "--name", self.name))
        return created

    def load(self, archive: Path) -> None:
        """Load the images of an archive, from `docker save` or `herdsman image build`, into every node.

        Raises:
            ToolMissing, ClusterError: as `up`.
        """
        self._kind("load", "image-archive", str(archive), "--name", self.name)

    def down(self) -> bool:
        """Delete the cluster with its data; return whether it existed.

        Raises:
            ToolMissing, ClusterError: as `up`.
        """
        existed = self.runs()
        if existed:
            self._kind("delete", "cluster", "--name", self.name, "--kubeconfig", str(self.kubeconfig))
        self._marker.unlink(missing_ok=True)
        self.kubeconfig.unlink(missing_ok=True)
        return existed

    def runs(self) -> bool:
        """Return whether kind lists the cluster.

        Raises:
            ToolMissing, ClusterError: as `up`.
        """
        return self.name in self._kind("get", "clusters").split()

    def _kind(self, *arguments: str) -> str:
        argv: Sequence[str] = [str(locate("kind")), *arguments]
        try:
            answer = subprocess.run(
                argv, capture_output=True, text=True, timeout=_CREATE_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"`kind {' '.join(arguments[:2])}` took more than {_CREATE_TIMEOUT_S:.0f} s") from error
        if answer.returncode != 0:
            raise ClusterError(f"`kind {' '.join(arguments[:2])}` failed: {answer.stderr.strip()}")
        return answer.stdout
