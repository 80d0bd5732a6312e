"""The downloader's script as a process: with the system's shell or with busybox, in a directory of the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from components.downloader import download_script
from tests.support import needs

SHELLS = ("sh", "busybox")
ONE_SHELL = "busybox" if shutil.which("busybox") else "sh"
"""The shell for tests that do not depend on it: the one of the init image, where it is installed."""


@dataclass
class Downloader:
    """Runs the script as the init container does."""

    shell: list[str]
    path: str
    root: Path

    @classmethod
    def with_shell(cls, name: str, directory: Path) -> Downloader:
        """Prepare to run with this shell and its tools; skip the test where it is not installed."""
        needs.require("curl")
        curl = shutil.which("curl") or "curl"
        path, shell = os.environ["PATH"], ["sh"]
        if name == "busybox":
            needs.require("busybox")
            busybox = shutil.which("busybox") or "busybox"
            tools = directory / "bin"
            tools.mkdir()
            subprocess.run([busybox, "--install", "-s", str(tools)], check=True)
            (tools / "curl").symlink_to(curl)
            path, shell = str(tools), [str(tools / "sh")]
        root = directory / "cache"
        root.mkdir()
        return cls(shell=shell, path=path, root=root)

    @property
    def cache(self) -> Path:
        return self.root / "key"

    @property
    def model(self) -> Path:
        return self.cache / "m.gguf"

    def start(self, source: str, *, sha256: str = "", **env: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": self.path,
            "MODEL_SOURCE": source,
            "CACHE_DIR": str(self.cache),
            "MODEL_PATH": str(self.model),
            "LOCK_POLL_S": "1",
            "LOCK_STALE_S": "3",
            "RETRY_S": "0",
            "STALL_S": "3",
            "RAMP_S": "0",
            "TMPDIR": str(self.root),
            **({"MODEL_SHA256": sha256} if sha256 else {}),
            **env,
        }
        return subprocess.Popen(
            [*self.shell, "-c", download_script()],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, source: str, *, sha256: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(source, sha256=sha256, **env)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def leftovers(self) -> set[str]:
        """The names of the files in the cache, without the model and the record of the source's headers."""
        return {entry.name for entry in self.cache.iterdir()} - {"m.gguf", ".m.gguf.source"}


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    return result.stderr.strip().splitlines()[-1]


def wait_for(happened: Callable[[], bool], *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@contextlib.contextmanager
def small_disk(directory: Path, *, size_bytes: int) -> Iterator[None]:
    """Mount a file system of this size on `directory`; skip the test where that is not allowed."""
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"a small disk needs root and tmpfs: {mount.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
