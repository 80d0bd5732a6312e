"""`herdsman top` on a real API server: once into a pipe, and on a terminal of 80 columns until a key is pressed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from agent.contract import ProcessPlan
from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.kinds import Kind
from tests.support.controlplane import Api
from tests.support.definitions import install_crds

GIB = 1 << 30


@pytest.fixture(scope="module")
def client(kubeconfig: Path, api: Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


def make(
    api: Api, kind: Kind, namespace: str | None, name: str, *, spec: dict[str, Any], status: dict[str, Any]
) -> None:
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    api.apply(kind.path(namespace, name), body)
    api.apply(f"{kind.path(namespace, name)}/status", {**body, "status": status})


@pytest.fixture
def fleet(client: KubeClient, api: Api, namespace: str) -> str:
    """Make two services and a host that runs one of them; return the name of the host."""
    host = f"mac-{namespace}"
    plan = ProcessPlan(host=host, service="chat", argv=("llama-server",), service_name="chat")
    spec = plan.model_dump(mode="json", by_alias=True, exclude_none=True)
    report = {"phase": "Ready", "ready": True}
    make(api, kinds.HOST_PROCESSES, namespace, "chat", spec=spec, status=report)
    told = {"name": f"{namespace}/chat", "phase": "Ready", "memory": 2 * GIB, "cpuPercent": 12.5}
    told |= {"tokensPerSecond": 33.5, "slots": 4, "slotsBusy": 3}
    ready = {"type": "Ready", "status": "True", "reason": "AgentReady", "message": ""}
    ready["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    status = {"conditions": [ready], "processes": [told], "memoryPressure": "Normal"}
    make(api, kinds.HOSTS, None, host, spec={}, status={**status, "allocatable": {"memory": 8 * GIB}})
    for name, phase in (("chat", "Ready"), ("pods", "Creating")):
        make(
            api,
            kinds.INFERENCE_SERVICES,
            namespace,
            name,
            spec={"modelRef": "base"},
            status={"phase": phase, "readyReplicas": 1, "desiredReplicas": 1},
        )
    return host


def test_one_look_for_people_and_for_scripts(
    fleet: str, namespace: str, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["-n", namespace, "--kubeconfig", str(kubeconfig)]
    assert invoke(["top", "--once", *options]) == 0
    shown = capsys.readouterr().out.splitlines()
    [host] = [line.split() for line in shown if line.startswith(fleet)]
    assert host == [fleet, "Ready", "1/1", "██░░░░░░", "2.0G/8.0G", "Normal", "33.5"]
    [chat] = [line.split() for line in shown if line.startswith(f"{namespace}/chat")]
    assert chat == [f"{namespace}/chat", "Ready", "1/1", fleet, "2.0G", "12.5", "33.5", "3/4"]
    assert any(line.split()[3:5] == ["1", "pod"] for line in shown if line.startswith(f"{namespace}/pods"))
    assert invoke(["top", "services", "-o", "json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"services"}
    assert told["services"][0]["memoryBytes"] == 2 * GIB


def test_a_terminal_is_drawn_again_until_a_key_ends_it(
    fleet: str, namespace: str, kubeconfig: Path, client: KubeClient, api: Api
) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 80, 0, 0))
    before = termios.tcgetattr(follower)
    command = [sys.executable, "-m", "automation.cli", "top", "-n", namespace, "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=_terminal())
    try:
        assert "2.0G/8.0G" in _read_until(leader, "2.0G/8.0G")
        found = client.get(kinds.HOSTS, None, fleet)
        found["status"]["processes"][0]["memory"] = 5 * GIB
        os.write(leader, b"m")
        _read_until(leader, "sorted by memory")
        assert api.request("PUT", f"{kinds.HOSTS.path(None, fleet)}/status", found)[0] == 200
        _read_until(leader, "5.0G/8.0G")
        os.write(leader, b"q")
        assert process.wait(timeout=60) == 0
        assert termios.tcgetattr(follower)[3] == before[3]  # echo and line mode are back
    finally:
        process.kill()
        process.wait()
        os.close(leader)
        os.close(follower)


def _terminal() -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}, "TERM": "xterm"}


def _read_until(handle: int, wanted: str, timeout_s: float = 60.0) -> str:
    """Read the output until `wanted` appears."""
    text, deadline = "", time.monotonic() + timeout_s
    while wanted not in text:
        assert time.monotonic() < deadline, f"{wanted!r} was not drawn:\n{text[-3000:]}"
        if select.select([handle], [], [], 0.2)[0]:
            text += os.read(handle, 65536).decode("utf-8", "replace")
    return text
