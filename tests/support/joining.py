"""Adds machines to a cluster as the guide to hosts describes: its commands are run, and nothing else gives an
identity.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
from pathlib import Path

import yaml

from tests.support.controlplane import tool_or_skip

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "hosts.md"
_HOST = "mac-studio"
"""The name of the host in the guide."""
_STEP = re.compile(r"### Make the identity by hand\n(?P<text>.*?)### ", re.DOTALL)
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def identity(host: str, administrator: Path, folder: Path) -> Path:
    """Give a host's agent its identity and return its kubeconfig, which is in `folder` with token and certificate.

    `administrator` is the kubeconfig that kubectl uses.
    """
    kubectl = tool_or_skip("kubectl")
    folder.mkdir()
    path = f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(administrator)}
    for block in _blocks():
        # The test keeps the files in its folder and does not write to /etc.
        lines = [line for line in block.splitlines() if not line.startswith("sudo ")]
        script = "\n".join(lines).replace(_HOST, host)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return folder / "kubeconfig"


def with_files(kubeconfig: Path, to: Path) -> Path:
    """Write a kubeconfig that refers to certificate files, as minikube's does. kind's contains their text."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    to.mkdir(mode=0o700)
    entries = [*(each["cluster"] for each in config["clusters"]), *(each["user"] for each in config["users"])]
    for entry in entries:
        for name in [name for name in entry if name.endswith("-data")]:
            file = to / name.removesuffix("-data")
            file.write_bytes(base64.b64decode(entry.pop(name)))
            entry[file.name] = str(file)
    written = to / "config"
    written.write_text(yaml.safe_dump(config), encoding="utf-8")
    return written


def _blocks() -> list[str]:
    found = _STEP.search(GUIDE.read_text(encoding="utf-8"))
    assert found is not None, f"{GUIDE} has no step that gives the agent an identity"
    return _BLOCK.findall(found["text"])
