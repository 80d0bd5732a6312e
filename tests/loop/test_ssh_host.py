"""From an InferenceService to a llama-server on a machine without an agent, by the whole loop with only its documented
rights.

Covered: a key that the loop may not read, placement by the facts that the host reports, a completion, and a host that
is cut off and returns without a restart of its processes.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.client.ssh.layout import unit_name
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.gateways import completion, gateway_process
from tests.support.loop import LoopProcess, await_condition, condition, eventually, loop_process, model, service, status
from tests.support.model_server import File, FileServer
from tests.support.netns import network
from tests.support.sshd import sshd
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def loop(loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopProcess]:
    """A loop that may read models on the hosts' network."""
    allowed = "--allowed-remote-hosts=127.0.0.0/8,10.87.0.0/16"
    with loop_process(loop_kubeconfig, tmp_path_factory.mktemp("loop"), allowed) as running:
        yield running


def ready_of(client: KubeClient, name: str) -> dict[str, Any]:
    found = (client.get(kinds.HOSTS, None, name).get("status") or {}).get("conditions") or ()
    return next((dict(each) for each in found if each["type"] == "Ready"), {})


def endpoint_ready(client: KubeClient, namespace: str) -> bool:
    slices = client.list(kinds.ENDPOINT_SLICES, namespace)["items"]
    return any(each["conditions"]["ready"] for s in slices for each in s["endpoints"])


def told_of_drift(client: KubeClient, namespace: str, words: str) -> bool:
    events = client.list(kinds.EVENTS, namespace)["items"]
    return any(each["reason"] == "DriftRepaired" and words in each["message"] for each in events)


def test_a_service_runs_on_a_machine_without_an_agent(
    loop: LoopProcess, client: KubeClient, namespace: str, tmp_path: Path, llama_server: Path
) -> None:
    name = f"old-{namespace}"
    write_tiny_model(tmp_path / "tiny.gguf")
    with network() as net, FileServer(address=net.gateway) as files:
        there = net.host("s")
        source = files.serve("/tiny.gguf", File((tmp_path / "tiny.gguf").read_bytes()))
        with sshd(tmp_path / "h", address=there.address, prefix=there.prefix, binaries=[llama_server]) as server:
            way: dict[str, Any] = {
                "user": server.user,
                "allowRoot": server.user == "root",
                "port": server.port,
                "knownHosts": [server.host_key],
                "identitySecret": {"name": "no-right-to-it"},
                "store": str(server.store),
            }
            host = {
                "apiVersion": kinds.HOSTS.api_version,
                "kind": kinds.HOSTS.kind,
                "metadata": {"name": name, "labels": {"room": namespace}},
                "spec": {"transport": "ssh", "address": there.address, "ssh": way},
            }
            client.create(kinds.HOSTS, None, host)
            try:
                told = eventually(lambda: ready_of(client, name) or None, what="a verdict", timeout_s=60)
                assert told is not None and told["reason"] == "IdentityNotReadable"
                assert "secrets-reader.yaml" in told["message"]
                patch = {"spec": {"ssh": {"identitySecret": None, "identityFile": str(server.user_key)}}}
                client.patch(kinds.HOSTS, None, name, patch)

                model(client, namespace, source=source)
                service(
                    client, namespace, annotations={"herdsman.dev/host-selector": f"room={namespace}"}, contextSize=256
                )
                await_condition(client, namespace, "svc", "Ready", "True", timeout_s=90)
                report = client.get(kinds.HOST_PROCESSES, namespace, "svc")["status"]
                assert report["address"] == there.address
                body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode()
                url = f"http://{there.address}:{report['port']}/v1/chat/completions"
                with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
                    assert json.load(answer)["choices"]
                assert status(client, namespace)["readyReplicas"] == 1
                assert (server.store / "models").exists(), "the file was fetched by the host"

                # The unit is changed by hand, and then its plan: both are restored, and the service's status reports
                # it.
                unit = server.directory / "systemd" / "system" / f"{unit_name(f'{namespace}/svc')}.service"
                good = unit.read_text()
                unit.write_text(good.replace("Restart=always", "Restart=no"))
                eventually(lambda: unit.read_text() == good or None, what="the unit as it was", timeout_s=60)
                patch = {"spec": {"service": "other"}}
                client.patch(kinds.HOST_PROCESSES, namespace, "svc", patch, field_manager="kubectl-edit")
                for words in (f"the unit of process svc on host {name} was changed", "HostProcess svc: service"):
                    eventually(lambda: told_of_drift(client, namespace, words) or None, what=words, timeout_s=60)  # noqa: B023
                assert client.get(kinds.HOST_PROCESSES, namespace, "svc")["spec"]["service"] == "svc"

                there.cut()
                eventually(
                    lambda: not endpoint_ready(client, namespace) or None, what="the endpoint to leave", timeout_s=40
                )
                there.heal()
                await_condition(client, namespace, "svc", "Ready", "True", timeout_s=90)
                eventually(lambda: endpoint_ready(client, namespace) or None, what="the endpoint again", timeout_s=60)
                again = client.get(kinds.HOST_PROCESSES, namespace, "svc")["status"]
                assert again["pid"] == report["pid"], "nothing was restarted"
            finally:
                client.delete(kinds.INFERENCE_SERVICES, namespace, "svc")
                client.delete(kinds.HOSTS, None, name)


def test_a_request_at_the_gateway_wakes_a_process_on_a_machine_without_an_agent(
    loop: LoopProcess,
    client: KubeClient,
    control_plane: LocalCluster,
    namespace: str,
    tmp_path: Path,
    llama_server: Path,
) -> None:
    name = f"ssh-{namespace}"
    write_tiny_model(tmp_path / "tiny.gguf")
    with network() as net, FileServer(address=net.gateway) as files:
        there = net.host("s")
        source = files.serve("/tiny.gguf", File((tmp_path / "tiny.gguf").read_bytes()))
        with (
            sshd(tmp_path / "h", address=there.address, prefix=there.prefix, binaries=[llama_server]) as server,
            gateway_process(control_plane.kubeconfig, tmp_path / "gateway.log", "-n", namespace) as gateway,
        ):
            way = {
                "user": server.user,
                "allowRoot": server.user == "root",
                "port": server.port,
                "knownHosts": [server.host_key],
                "identityFile": str(server.user_key),
                "store": str(server.store),
            }
            host = {
                "apiVersion": kinds.HOSTS.api_version,
                "kind": kinds.HOSTS.kind,
                "metadata": {"name": name, "labels": {"room": namespace}},
                "spec": {"transport": "ssh", "address": there.address, "ssh": way},
            }
            client.create(kinds.HOSTS, None, host)
            try:
                model(client, namespace, source=source)
                annotations = {
                    "herdsman.dev/host-selector": f"room={namespace}",
                    "herdsman.dev/scale-by": "requests",
                    "herdsman.dev/idle-timeout": "3s",
                }
                service(client, namespace, annotations=annotations, contextSize=256)
                eventually(
                    lambda: condition(client, namespace, "svc", "Ready").get("reason") == "Asleep",
                    what="Asleep",
                    timeout_s=120,
                )
                assert not client.list(kinds.HOST_PROCESSES, namespace)["items"]
                assert completion(gateway, "svc", timeout_s=120)[0] == 200
                assert condition(client, namespace, "svc", "SpecHonoured").get("status") != "False"
            finally:
                client.delete(kinds.INFERENCE_SERVICES, namespace, "svc")
                client.delete(kinds.HOSTS, None, name)
