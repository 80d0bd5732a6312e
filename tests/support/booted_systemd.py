"""A real systemd, booted as PID 1 of new namespaces. It starts only the units that a test installs.

It needs root and a kernel that allows a second cgroup2; otherwise `booted` skips the test. Changes to /etc inside are
discarded at the end. All other directories and the network are those of this machine.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import needs

_TARGETS = ("default", "basic", "sysinit", "shutdown", "multi-user", "network-online", "rescue")
_BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/etc /run/work /run/systemd
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work /etc
mount -t tmpfs tmpfs /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
export container=test SYSTEMD_UNIT_PATH=/etc/systemd/system:$1/units SYSTEMD_GENERATOR_PATH=$1/generators
exec /lib/systemd/systemd --system --unit=default.target --log-target=console --show-status=0
"""


@dataclass(frozen=True)
class BootedSystemd:
    """A running systemd. `pid` is its process id on this machine; inside the namespace it is 1."""

    pid: int

    def command(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` inside the namespaces."""
        return ["nsenter", f"--target={self.pid}", "--pid", "--mount", "--uts", "--ipc", "--cgroup", *argv]

    def run(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside the namespaces and wait for its end."""
        return subprocess.run(
            self.command(*argv), capture_output=True, text=True, check=False, env={**os.environ, **environment}
        )


@contextlib.contextmanager
def booted(directory: Path) -> Iterator[BootedSystemd]:
    """Boot a systemd; at the end kill it with every process that it runs."""
    needs.require("systemd")
    units = directory / "units"
    units.mkdir(parents=True)
    (directory / "generators").mkdir()
    for name in _TARGETS:
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\nDefaultDependencies=no\n")
    log = directory / "log"
    with log.open("wb") as output:
        shell = ["bash", "-c", _BOOT, "boot", str(directory)]
        outer = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount", "--uts", "--ipc", "--cgroup", "--mount-proc", *shell],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    first = 0
    try:
        deadline = time.monotonic() + 60
        while True:
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            first = int(children.read_text().split()[0]) if outer.poll() is None and children.read_text() else 0
            made = BootedSystemd(first)
            if first and made.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"):
                break
            if outer.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"systemd does not boot in namespaces here: {log.read_text()[-300:]}")
            time.sleep(0.1)
        yield made
    finally:
        # When PID 1 of a pid namespace ends, the kernel ends every other process in it.
        if first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, 9)
        outer.kill()
        outer.wait()
