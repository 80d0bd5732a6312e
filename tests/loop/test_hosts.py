"""From an InferenceService to a llama-server process on this machine, by a real loop and a real agent."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.contract import LABEL_HOST
from agent.server.host_facts import own_address
from automation.cli.main import invoke
from automation.hosts.registration import LABEL_MANAGED_BY
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.agents import REACHED, agent
from tests.support.loop import (
    LoopProcess,
    await_condition,
    deployed,
    edit,
    eventually,
    find,
    http_folder,
    model,
    service,
    status,
)
from tests.support.supervising import DAEMONS, free_port
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.usefixtures("loop", "host")
HOST = "loop-tests"
OTHER_HOST = "loop-tests-2"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a tiny model, and the URL under which it is served."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny_model(folder / "tiny.gguf")
    with http_folder(folder) as url:
        yield folder, url


@pytest.fixture(scope="module")
def host(
    client: KubeClient, control_plane: LocalCluster, llama_server: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """An agent on this machine, whose `ollama` on PATH is a fake with one model in its library."""
    store = tmp_path_factory.mktemp("store")
    arguments = [
        *("--kubeconfig", str(control_plane.kubeconfig), "--allowed-remote-hosts", "127.0.0.0/8"),
        *REACHED,
        # Metal's arguments do no harm where there is no such GPU.
        *("--label", "herdsman.dev/accelerator=metal"),
    ]
    with pytest.MonkeyPatch.context() as patch, agent(store, *arguments, host=HOST) as running:
        patch.setenv("PATH", f"{DAEMONS}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("OLLAMA_HOST", f"{own_address()}:{free_port()}")
        patch.setenv("OLLAMA_MODELS", str(store / "ollama"))
        patch.setenv("FAKE_OLLAMA_LIBRARY", "tiny:latest=4000")
        running.start()
        yield


def served(client: KubeClient, namespace: str, name: str = "svc") -> dict[str, Any]:
    """Wait until the service is Ready; return the status of its HostProcess."""
    await_condition(client, namespace, name, "Ready", "True", timeout_s=60)
    report: dict[str, Any] = client.get(kinds.HOST_PROCESSES, namespace, name)["status"]
    return report


def ask(report: dict[str, Any], model: str = "any") -> dict[str, Any]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
    request = urllib.request.Request(f"http://{own_address()}:{report['port']}/v1/chat/completions", body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        completion: dict[str, Any] = json.load(answer)
    return completion


def command_line(report: dict[str, Any]) -> str:
    return " ".join(psutil.Process(report["pid"]).cmdline())


def test_a_pinned_service_is_downloaded_started_and_answers(
    client: KubeClient, namespace: str, models: tuple[Path, str]
) -> None:
    model(client, namespace, source=f"{models[1]}/tiny.gguf")
    service(client, namespace, annotations={"herdsman.dev/host": HOST}, contextSize=256)
    report = served(client, namespace)
    assert ask(report)["usage"]["completion_tokens"] >= 1
    assert "--ctx-size 256" in command_line(report)
    written = status(client, namespace)
    assert written["phase"] == "Ready"
    assert written["readyReplicas"] == 1
    assert written["endpoint"] == f"http://svc.{namespace}.svc.cluster.local:8080/v1/chat/completions"
    slices = client.list(kinds.ENDPOINT_SLICES, namespace)["items"]
    assert [s["endpoints"][0]["conditions"]["ready"] for s in slices] == [True]
    assert client.get(kinds.SERVICES, namespace, "svc")["spec"]["ports"][0]["port"] == 8080
    assert find(client, kinds.DEPLOYMENTS, namespace, "svc") is None
    assert client.list(kinds.CLAIMS, namespace)["items"] == []


def test_the_everyday_commands_deploy_chat_and_delete(
    client: KubeClient,
    control_plane: LocalCluster,
    namespace: str,
    models: tuple[Path, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = ("-n", namespace, "--kubeconfig", str(control_plane.kubeconfig))
    source = ("--source", f"{models[1]}/tiny.gguf")
    assert invoke(["deploy", "talk", *source, "--host", HOST, "--context", "256", "--wait", *there]) == 0
    told = capsys.readouterr()
    assert "herdsman chat talk" in told.out
    assert f"curl http://{own_address()}:" in told.out
    assert f"{namespace}/talk is ready" in told.err
    assert invoke(["chat", "talk", "-p", "Hi", "--max-tokens", "8", "--stats", *there]) == 0
    told = capsys.readouterr()
    assert told.out.strip()
    assert "tokens, first after" in told.err
    assert invoke(["bench", "talk", "--clients", "1,2", "--requests", "1", "--max-tokens", "4", *there]) == 0
    capsys.readouterr()
    assert invoke(["list", "-o", "json", *there]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["name"], row["state"], row["contextSize"]) == ("talk", "ready", 256)
    assert row["runsOn"].startswith(f"host {HOST}")
    assert invoke(["delete", "talk", "--yes", *there]) == 0
    assert find(client, kinds.MODELS, namespace, "talk") is None


@pytest.mark.soak
def test_a_model_of_ollama_is_pulled_loaded_and_gone_with_its_service(client: KubeClient, namespace: str) -> None:
    model(client, namespace, source="library/tiny")
    service(client, namespace, annotations={"herdsman.dev/host": HOST}, runtime="ollama")
    report = served(client, namespace)
    assert ask(report, "tiny")["model"] == "tiny"
    assert status(client, namespace)["phase"] == "Ready"
    with urllib.request.urlopen(f"http://{own_address()}:{report['port']}/api/ps", timeout=5) as answer:
        assert [each["name"] for each in json.load(answer)["models"]] == ["tiny:latest"]
    client.delete(kinds.INFERENCE_SERVICES, namespace, "svc")
    eventually(lambda: not psutil.pid_exists(report["pid"]), what="Ollama to be stopped", timeout_s=60)


def test_a_daemon_of_a_host_is_refused_in_pods(client: KubeClient, namespace: str) -> None:
    model(client, namespace, source="mlx-community/tiny")
    service(client, namespace, runtime="omlx")
    await_condition(client, namespace, "svc", "Ready", "False", saying="herdsman.dev/host-selector")


def test_a_metal_model_goes_to_a_live_host(client: KubeClient, namespace: str, models: tuple[Path, str]) -> None:
    model(client, namespace, source=f"{models[1]}/tiny.gguf", hardware={"accelerator": "metal"})
    # This machine has no GPU of Metal: a context of 128 keeps the memory small that Metal's defaults would reserve.
    service(client, namespace, contextSize=128, extraArgs=["--flash-attn", "off"])
    report = served(client, namespace)
    assert client.get(kinds.HOST_PROCESSES, namespace, "svc")["spec"]["host"] == HOST
    assert "--n-gpu-layers 99" in command_line(report)


def test_a_changed_spec_replaces_the_process_and_a_deletion_stops_it(
    client: KubeClient, namespace: str, models: tuple[Path, str]
) -> None:
    model(client, namespace, source=f"{models[1]}/tiny.gguf")
    service(client, namespace, annotations={"herdsman.dev/host": HOST}, contextSize=256)
    first = served(client, namespace)
    edit(client, namespace, contextSize=512)

    def replaced() -> dict[str, Any] | None:
        report = client.get(kinds.HOST_PROCESSES, namespace, "svc").get("status") or {}
        return report if report.get("ready") and report.get("pid") not in (None, first["pid"]) else None

    second = eventually(replaced, what="another process", timeout_s=60)
    assert second is not None
    assert "--ctx-size 512" in command_line(second)
    assert not psutil.pid_exists(first["pid"])
    client.delete(kinds.INFERENCE_SERVICES, namespace, "svc")
    eventually(lambda: not psutil.pid_exists(second["pid"]), what="the process to end", timeout_s=60)
    eventually(lambda: find(client, kinds.SERVICES, namespace, "svc") is None, what="the Service to go", timeout_s=60)


def test_a_wrong_checksum_is_named_and_nothing_runs(
    client: KubeClient, namespace: str, models: tuple[Path, str]
) -> None:
    model(client, namespace, source=f"{models[1]}/tiny.gguf", sha256="0" * 64)
    service(client, namespace, annotations={"herdsman.dev/host": HOST})

    def told() -> bool:
        conditions = (client.get(kinds.MODELS, namespace, "base").get("status") or {}).get("conditions") or ()
        return any(c["reason"] == "IntegrityCheckFailed" and "0" * 64 in c["message"] for c in conditions)

    eventually(told, what="the wrong checksum to be named on the Model")
    await_condition(client, namespace, "svc", "Ready", "False")
    assert find(client, kinds.HOST_PROCESSES, namespace, "svc") is None


@pytest.mark.soak
def test_a_model_that_vanished_is_told_by_the_host(
    client: KubeClient, namespace: str, models: tuple[Path, str]
) -> None:
    source = models[0] / "gone.gguf"
    write_tiny_model(source)
    model(client, namespace, source=f"{models[1]}/gone.gguf")
    eventually(lambda: _phase(client, namespace) == "Ready", what="the Model to be Ready", timeout_s=60)
    source.unlink()
    service(client, namespace, annotations={"herdsman.dev/host": HOST})

    def told() -> str:
        message = str(condition_message(client, namespace))
        return message if "404" in message or "NotFound" in message else ""

    assert HOST in eventually(told, what="the cause in the service's condition", timeout_s=60)


def _phase(client: KubeClient, namespace: str) -> str:
    return str((client.get(kinds.MODELS, namespace, "base").get("status") or {}).get("phase"))


def condition_message(client: KubeClient, namespace: str) -> str:
    conditions = status(client, namespace).get("conditions") or ()
    return next((str(c["message"]) for c in conditions if c["type"] == "Ready"), "")


def test_a_service_for_a_host_that_is_away_waits_and_says_so(
    client: KubeClient, namespace: str, models: tuple[Path, str], loop: LoopProcess
) -> None:
    model(client, namespace, source=f"{models[1]}/tiny.gguf")
    service(client, namespace, annotations={"herdsman.dev/host": "nowhere"})
    waiting = await_condition(client, namespace, "svc", "Ready", "False", timeout_s=30)
    eventually(lambda: status(client, namespace).get("schedulingStatus") == "WaitingForMetalAgent", what="the reason")
    assert waiting["reason"]
    assert loop.poll() is None


@pytest.mark.soak
def test_a_service_sleeps_behind_its_endpoint_and_wakes_for_a_request(
    client: KubeClient, namespace: str, models: tuple[Path, str]
) -> None:
    model(client, namespace, source=f"{models[1]}/tiny.gguf")
    annotations = {"herdsman.dev/host": HOST, "herdsman.dev/idle-timeout": "2s"}
    service(client, namespace, annotations=annotations, contextSize=256)
    port = served(client, namespace)["port"]
    await_condition(client, namespace, "svc", "Ready", "True", saying="the next request starts them")
    asleep = client.get(kinds.HOST_PROCESSES, namespace, "svc")["status"]
    assert (asleep["phase"], asleep.get("pid"), asleep["port"]) == ("Asleep", None, port)
    written = status(client, namespace)
    assert (written["phase"], written["readyReplicas"]) == ("Ready", 0)
    (endpoints,) = client.list(kinds.ENDPOINT_SLICES, namespace)["items"]
    assert endpoints["endpoints"][0]["conditions"]["ready"] is True
    assert endpoints["ports"][0]["port"] == port
    assert ask(asleep)["usage"]["completion_tokens"] >= 1
    reasons = {"Asleep", "Woken"}
    eventually(
        lambda: reasons <= {e["reason"] for e in client.list(kinds.EVENTS, namespace)["items"]}, what="both Events"
    )


@pytest.mark.soak
def test_replicas_run_on_two_hosts_and_a_drained_host_hands_its_own_over(
    client: KubeClient, namespace: str, models: tuple[Path, str], control_plane: LocalCluster, tmp_path: Path
) -> None:
    model(client, namespace, source=f"{models[1]}/tiny.gguf", hardware={"accelerator": "metal"})
    arguments = ("--kubeconfig", str(control_plane.kubeconfig), "--allowed-remote-hosts", "127.0.0.0/8", *REACHED)
    label = ("--label", "herdsman.dev/accelerator=metal")
    with agent(tmp_path / "other-store", *arguments, *label, host=OTHER_HOST) as other:
        other.start()
        service(client, namespace, replicas=2, contextSize=128, extraArgs=["--flash-attn", "off"])
        first = served(client, namespace)
        second_name = naming.host_process_name("svc", 1)
        second = client.get(kinds.HOST_PROCESSES, namespace, second_name)
        hosts = {client.get(kinds.HOST_PROCESSES, namespace, "svc")["spec"]["host"], second["spec"]["host"]}
        assert hosts == {HOST, OTHER_HOST}
        assert status(client, namespace)["readyReplicas"] == 2
        assert ready_slices(client, namespace) == {"svc", naming.endpoint_slice_name("svc", 1)}
        assert all(ask(report)["usage"]["completion_tokens"] >= 1 for report in (first, second["status"]))

        edit(client, namespace, replicas=1)
        eventually(lambda: not psutil.pid_exists(second["status"]["pid"]), what="the second process to end")
        eventually(lambda: ready_slices(client, namespace) == {"svc"}, what="one EndpointSlice")
        await_condition(client, namespace, "svc", "Ready", "True", saying="1 of 1")
        stays = client.get(kinds.HOST_PROCESSES, namespace, "svc")
        here, there = stays["spec"]["host"], (hosts - {stays["spec"]["host"]}).pop()
        try:
            client.patch(kinds.HOSTS, None, here, {"spec": {"drain": True}})

            def moved() -> dict[str, Any] | None:
                found = client.get(kinds.HOST_PROCESSES, namespace, "svc")
                report = found.get("status") or {}
                ready = report.get("ready") and report["pid"] != first["pid"]
                return found if found["spec"]["host"] == there and ready else None

            found = eventually(moved, what=f"the replica to serve on {there}", timeout_s=60)
            assert found is not None
            assert found["metadata"]["uid"] == stays["metadata"]["uid"]
            eventually(lambda: not psutil.pid_exists(first["pid"]), what="the first process to end")
            assert ask(found["status"])["usage"]["completion_tokens"] >= 1
            await_condition(client, namespace, "svc", "Ready", "True", saying="1 of 1")
            assert ready_slices(client, namespace) == {"svc"}

            def told() -> list[str]:
                events = client.list(kinds.EVENTS, namespace)["items"]
                return [event["message"] for event in events if event["reason"] == "Moved"]

            eventually(told, what="an Event of the move")
            (message,) = told()
            assert here in message and there in message
        finally:
            client.patch(kinds.HOSTS, None, here, {"spec": {"drain": False}})
            client.delete(kinds.INFERENCE_SERVICES, namespace, "svc")


@pytest.mark.soak
def test_a_service_that_goes_from_its_host_to_pods_and_back_keeps_its_address(
    client: KubeClient, namespace: str, models: tuple[Path, str]
) -> None:
    model(client, namespace, source=f"{models[1]}/tiny.gguf")
    service(client, namespace, annotations={"herdsman.dev/host": HOST}, contextSize=256)
    report = served(client, namespace)
    before = client.get(kinds.SERVICES, namespace, "svc")
    patch = {"metadata": {"annotations": {"herdsman.dev/host": None}}}
    client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", patch)
    deployment = deployed(client, namespace)
    eventually(lambda: not psutil.pid_exists(report["pid"]), what="the process to end", timeout_s=60)

    def handed_over() -> bool:
        labels = client.get(kinds.SERVICES, namespace, "svc")["metadata"].get("labels") or {}
        return not labels.keys() & {LABEL_HOST, LABEL_MANAGED_BY}

    eventually(handed_over, what="the host's labels to be gone from the Service")
    after = client.get(kinds.SERVICES, namespace, "svc")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["clusterIP"] == before["spec"]["clusterIP"]
    assert after["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (port,) = after["spec"]["ports"]
    (container, *_) = deployment["spec"]["template"]["spec"]["containers"]
    assert port["targetPort"] == container["ports"][0]["containerPort"]
    slices = client.list(kinds.ENDPOINT_SLICES, namespace, label_selector=LABEL_HOST)["items"]
    assert slices == [], "the host's slice is gone"

    again = {"metadata": {"annotations": {"herdsman.dev/host": HOST}}}
    client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", again)
    eventually(lambda: find(client, kinds.DEPLOYMENTS, namespace, "svc") is None, what="the pods to go")
    assert ask(served(client, namespace))["usage"]["completion_tokens"] >= 1
    back = client.get(kinds.SERVICES, namespace, "svc")
    assert back["spec"]["clusterIP"] == before["spec"]["clusterIP"]
    assert "selector" not in back["spec"]
    assert ready_slices(client, namespace) == {"svc"}


def ready_slices(client: KubeClient, namespace: str) -> set[str]:
    slices = client.list(kinds.ENDPOINT_SLICES, namespace)["items"]
    return {s["metadata"]["name"] for s in slices if any(e["conditions"]["ready"] for e in s.get("endpoints") or ())}
