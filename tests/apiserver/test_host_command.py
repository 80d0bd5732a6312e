"""`herdsman host` on a real API server: the objects that it writes, its refusals, and its waits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from automation.cli.main import invoke
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_HOST, LABEL_DIALECT
from program.dialects.crds.definitions import crd_documents
from tests.support.controlplane import Api
from tests.support.definitions import established, install_crds
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


def placed(client: KubeClient, namespace: str, name: str, spec: Json, **metadata: Any) -> None:
    """Create a HostProcess."""
    plan = {"service": name, "argv": ["llama-server"], "serviceName": name, **spec}
    process = {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": plan}
    kind = kinds.HOST_PROCESSES
    client.create(kind, namespace, {"apiVersion": kind.api_version, "kind": kind.kind, **process})


def test_a_drain_waits_for_services_of_other_dialects(herdsman, api: Api, client: KubeClient, namespace: str) -> None:
    host = f"h-{namespace}"
    assert herdsman("add", host).returncode == 0
    with established(api, crd_documents("llmaz")):
        playground = {
            "apiVersion": kinds.PLAYGROUNDS.api_version,
            "kind": "Playground",
            "metadata": {"name": "chat", "namespace": namespace},
            "spec": {"modelClaim": {"modelName": "tiny"}},
        }
        made = client.create(kinds.PLAYGROUNDS, namespace, playground)
        owner = {"controller": True, **{key: made[key] for key in ("apiVersion", "kind")}}
        owner |= {key: made["metadata"][key] for key in ("name", "uid")}
        labels = {naming.LABEL_SERVICE: "chat", LABEL_DIALECT: "llmaz"}
        for replica in (0, 1):
            spec = {"host": host, "service": "llmaz-chat", **({"replica": replica} if replica else {})}
            name = naming.host_process_name("chat", replica, "llmaz")
            placed(client, namespace, name, spec, labels=labels, ownerReferences=[owner])
        stuck = herdsman("drain", host, "--timeout", "1")
        assert stuck.returncode == 1, stuck.stdout
        assert f"Playground {namespace}/chat is still on the host" in stuck.stderr
        assert f"Playground {namespace}/chat (replica 1) is still on the host" in stuck.stderr
        assert (
            f"Playground {namespace}/chat, Playground {namespace}/chat (replica 1)" in herdsman("remove", host).stderr
        )
        pin = {"metadata": {"annotations": {ANNOTATION_HOST: host}}}
        client.patch(kinds.PLAYGROUNDS, namespace, "chat", pin)
        drained = herdsman("drain", host)
        assert drained.returncode == 0, drained.stderr
        assert f"Playground {namespace}/chat stays: annotation herdsman.dev/host pins it here" in drained.stdout


def test_a_drain_leaves_the_processes_of_static_fleets(herdsman, client: KubeClient, namespace: str) -> None:
    host = f"h-{namespace}"
    assert herdsman("add", host).returncode == 0
    placed(client, namespace, "chat", {"host": host}, annotations={naming.ANNOTATION_FLEET: "models/prod"})
    placed(client, namespace, "code", {"host": host}, annotations={naming.ANNOTATION_FLEET: naming.FLEET_TO_COME})
    drained = herdsman("drain", host, "--timeout", "1")
    assert drained.returncode == 0, drained.stderr
    what_to_do = "change annotation herdsman.dev/host in the fleet's files and run `pulumi up`"
    assert f"{namespace}/chat stays: static fleet `models/prod` places it; {what_to_do}" in drained.stdout
    assert f"{namespace}/code stays: a static fleet places it; {what_to_do}" in drained.stdout


def test_a_host_is_one_thing_or_the_other(herdsman, client: KubeClient) -> None:
    assert herdsman("add", "Mac Studio").returncode == 64
    assert herdsman("add", "mac", "--ssh-user", "ops").returncode == 64
    shown = herdsman("add", "mac", "--memory-fraction", "0.5", "--dry-run")
    assert json.loads(shown.stdout)["spec"] == {"transport": "agent", "memoryFraction": 0.5}
    with pytest.raises(NotFound):
        client.get(kinds.HOSTS, None, "mac")


def test_options_that_are_not_given_leave_a_host_over_ssh_as_it_is(
    herdsman, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    name = f"h-{namespace}"
    keys = tmp_path / "known_hosts"
    keys.write_text("[10.9.9.9]:2222 ssh-ed25519 AAAAC3\n[10.9.9.9]:2223 ssh-ed25519 AAAAC4\n10.9.9.1 ssh-rsa AAAAB3\n")
    known = ("--known-hosts", str(keys))

    def changed(*arguments: str) -> Json:
        done = herdsman("add", name, *arguments)
        assert done.returncode == 0, done.stderr
        assert "agent install" not in done.stdout
        spec: Json = client.get(kinds.HOSTS, None, name)["spec"]
        return spec

    over_ssh = ("--address", "10.9.9.9", "--ssh-user", "ops", "--identity-file", "/keys/id")
    spec = changed(*over_ssh, "--ssh-port", "2222", "--sudo", "--bastion", "jump@10.9.9.1", *known)
    ssh = spec["ssh"]
    assert (ssh["port"], ssh["sudo"], ssh["knownHosts"]) == (2222, True, ["ssh-ed25519 AAAAC3"])
    assert changed("--memory-budget", "96Gi") == {**spec, "memoryBudget": "96Gi"}
    assert changed("--ssh-user", "llm", *known)["ssh"] == {**ssh, "user": "llm"}
    ssh = {**ssh, "user": "llm", "identitySecret": {"name": "key"}}
    del ssh["identityFile"]
    assert changed("--identity-secret", "key")["ssh"] == ssh
    assert changed("--no-sudo", "--ssh-port", "2223", *known)["ssh"] == {
        **ssh,
        "sudo": False,
        "port": 2223,
        "knownHosts": ["ssh-ed25519 AAAAC4"],
    }
    ssh = changed("--identity-file", "/keys/new", "--bastion", "10.9.9.1", *known)["ssh"]
    assert (ssh["identityFile"], "identitySecret" in ssh) == ("/keys/new", False)
    assert ssh["bastion"] == {"address": "10.9.9.1", "port": 22, "knownHosts": ["ssh-rsa AAAAB3"]}


def test_a_host_turns_to_an_agent_and_back_only_when_asked(
    herdsman, client: KubeClient, namespace: str, tmp_path: Path
) -> None:
    name = f"h-{namespace}"
    keys = tmp_path / "known_hosts"
    keys.write_text("10.9.9.9 ssh-ed25519 AAAAC3\n")
    install = f"On the machine itself: herdsman agent install --host {name}"
    assert install in herdsman("add", name, "--address", "10.9.9.9").stdout
    assert install not in herdsman("add", name, "--memory-budget", "8Gi").stdout
    over_ssh = ("--ssh-user", "ops", "--known-hosts", str(keys))
    without_key = herdsman("add", name, *over_ssh)
    assert (without_key.returncode, "give one of --identity-file and" in without_key.stderr) == (64, True)
    lone = herdsman("add", name, "--ssh-port", "2222")
    assert (lone.returncode, "--ssh-port needs --ssh-user" in lone.stderr) == (64, True)
    turned = herdsman("add", name, *over_ssh, "--identity-file", "/keys/id")
    assert turned.returncode == 0, turned.stderr
    spec = client.get(kinds.HOSTS, None, name)["spec"]
    assert (spec["transport"], spec["address"], spec["ssh"]["port"]) == ("ssh", "10.9.9.9", 22)

    both = herdsman("add", name, "--agent", "--ssh-user", "ops")
    assert (both.returncode, "--agent" in both.stderr) == (64, True)
    back = herdsman("add", name, "--agent")
    assert install in back.stdout
    spec = client.get(kinds.HOSTS, None, name)["spec"]
    assert (spec["transport"], "ssh" in spec, spec["memoryBudget"]) == ("agent", False, "8Gi")
    again = herdsman("add", name, "--agent")
    assert "has these values already" in again.stdout and install not in again.stdout


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
