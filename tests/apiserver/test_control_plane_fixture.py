"""The control plane of the tests: the next test run removes the clusters of a killed one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import controlplane

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import time
from tests.support import controlplane
with controlplane.running(["etcd", "kube-apiserver"]) as cluster:
    print(cluster.layout.directory, cluster.pid("etcd"), cluster.pid("kube-apiserver"), flush=True)
    time.sleep(120)
"""


def test_clusters_of_a_killed_test_run_are_swept_by_the_next_and_living_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controlplane.tool_or_skip("etcd")
    controlplane.tool_or_skip("kube-apiserver")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        directory, *pids = run.stdout.readline().split()
        taken = psutil.Process.create_time
        with monkeypatch.context() as stepped:
            if sys.platform == "linux":  # a step of the wall clock; elsewhere no start since the boot is known
                stepped.setattr(psutil.Process, "create_time", lambda self: taken(self) + 3600)
            controlplane.sweep()
        assert all(_serves(int(pid), directory) for pid in pids)
        run.kill()
        run.wait()
    assert all(_serves(int(pid), directory) for pid in pids)
    controlplane.sweep()
    assert not Path(directory).exists()
    assert not any(_serves(int(pid), directory) for pid in pids)


def _serves(pid: int, directory: str) -> bool:
    try:
        return any(directory in argument for argument in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
