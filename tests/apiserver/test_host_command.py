"""`herdsman host` on a real API server: the objects that it writes, its refusals, and its waits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from tests.support.controlplane import Api
from tests.support.definitions import install_crds
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def client(control_plane: LocalCluster, api: Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(control_plane.kubeconfig))


@pytest.fixture
def herdsman(control_plane: LocalCluster, client: KubeClient):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "automation.cli",
            "host",
            *arguments,
            "--kubeconfig",
            str(control_plane.kubeconfig),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.soak
def test_a_host_is_made_changed_cordoned_drained_and_removed(
    herdsman, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    name = f"h-{namespace}"
    keys = tmp_path / "known_hosts"
    keys.write_text("10.9.9.9 ssh-ed25519 AAAAC3\n")
    ssh = ("--address", "10.9.9.9", "--ssh-user", "ops", "--identity-file", "/keys/id", "--known-hosts", str(keys))
    made = herdsman("add", name, *ssh, "--label", "room=attic", "--taint", "gpu=big:NoSchedule")
    assert made.returncode == 0, made.stderr
    found = client.get(kinds.HOSTS, None, name)
    assert found["spec"]["ssh"]["knownHosts"] == ["ssh-ed25519 AAAAC3"]
    assert found["spec"]["taints"] == [{"key": "gpu", "value": "big", "effect": "NoSchedule"}]
    assert "has these values already" in herdsman("add", name, *ssh, "--label", "room=attic").stdout
    assert "was changed" in herdsman("add", name, *ssh, "--memory-budget", "24Gi").stdout
    refused = herdsman("add", name, *ssh[:-1], "/dev/null")
    assert refused.returncode == 64
    assert "has no key of 10.9.9.9" in refused.stderr

    wrong = herdsman("add", name, *ssh, "--memory-budget", "much")
    assert wrong.returncode == 1
    assert "memoryBudget" in wrong.stderr

    process = {
        "apiVersion": kinds.HOST_PROCESSES.api_version,
        "kind": "HostProcess",
        "metadata": {"name": "tiny", "namespace": namespace},
        "spec": {"host": name, "service": "tiny", "argv": ["llama-server"], "serviceName": "tiny"},
    }
    client.create(kinds.HOST_PROCESSES, namespace, process)
    service = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {"name": "tiny", "namespace": namespace, "annotations": {"herdsman.dev/host": name}},
        "spec": {"modelRef": "tiny"},
    }
    client.create(kinds.INFERENCE_SERVICES, namespace, service)
    (row,) = [r for r in json.loads(herdsman("list", "-o", "json").stdout) if r["name"] == name]
    assert row["processes"] == "0/1"
    drained = herdsman("drain", name)
    assert drained.returncode == 0, drained.stderr
    assert "pins it here" in drained.stdout
    assert client.get(kinds.HOSTS, None, name)["spec"]["drain"] is True

    client.patch(
        kinds.INFERENCE_SERVICES, namespace, "tiny", {"metadata": {"annotations": {"herdsman.dev/host": None}}}
    )
    stuck = herdsman("drain", name, "--timeout", "1")
    assert stuck.returncode == 1
    assert f"{namespace}/tiny is still on the host" in stuck.stderr
    assert herdsman("uncordon", name).returncode == 0
    assert client.get(kinds.HOSTS, None, name)["spec"]["unschedulable"] is False

    ill = herdsman("doctor", name, "-o", "json")
    assert ill.returncode == 1
    assert {"ready", "heartbeat"} <= {f["check"] for f in json.loads(ill.stdout) if f["state"] == "missing"}

    kept = herdsman("remove", name)
    assert kept.returncode == 1
    assert f"{namespace}/tiny" in kept.stderr
    assert herdsman("remove", name, "--force").returncode == 0
    with pytest.raises(NotFound):
        client.get(kinds.HOSTS, None, name)
    assert herdsman("drain", name).returncode == 1


def test_a_host_is_one_thing_or_the_other(herdsman, client: KubeClient) -> None:
    assert herdsman("add", "Mac Studio").returncode == 64
    assert herdsman("add", "mac", "--ssh-user", "ops").returncode == 64
    shown = herdsman("add", "mac", "--memory-fraction", "0.5", "--dry-run")
    assert json.loads(shown.stdout)["spec"] == {"transport": "agent", "memoryFraction": 0.5}
    with pytest.raises(NotFound):
        client.get(kinds.HOSTS, None, "mac")


def test_the_doctor_checks_the_scopes_of_a_cluster(
    control_plane: LocalCluster, client: KubeClient, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"h-{namespace}"
    host = {"apiVersion": kinds.HOSTS.api_version, "kind": "Host", "metadata": {"name": name}}
    client.create(kinds.HOSTS, None, {**host, "spec": {"transport": "agent"}})

    def findings(*scopes: str) -> list[dict[str, str]]:
        capsys.readouterr()
        assert invoke(["doctor", *scopes, "--kubeconfig", str(control_plane.kubeconfig), "-o", "json"]) == 1
        found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
        return found

    for scopes in (("host", name), ("hosts",), ()):
        found = findings(*scopes)
        ready = next(each for each in found if each["check"] == f"host {name}: ready")
        assert (ready["scope"], ready["state"]) == ("hosts", "missing")
    assert {each["scope"] for each in found} == {"cluster", "loop", "hosts", "gateway", "agent", "local"}
    assert [each["state"] for each in found if each["scope"] == "gateway"] == ["skipped"]
    (missing,) = findings("gateway")
    assert missing["state"] == "missing" and "install --gateway" in missing["hint"]
    (unknown,) = findings("host", "nobody")
    assert "no Host has this name" in unknown["detail"]
