"""The summary of a test run without a tool: the number of skipped tests of each layer, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_layer_without_its_tool_is_skipped_with_the_reason_and_counted() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/apiserver/test_local_cluster.py"]
    run = subprocess.run(
        [*command, "-m", "apiserver", "-k", "all_components or second_up or command_line"],
        cwd=ROOT,
        env={**os.environ, "HERDSMAN_ETCD": "/nowhere/etcd"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "3 skipped" in run.stdout
    assert "skipped in layer apiserver: 3" in run.stdout
    assert "  3: `etcd` is not at /nowhere/etcd: HERDSMAN_ETCD names this path; correct or unset it" in run.stdout
