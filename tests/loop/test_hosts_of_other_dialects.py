"""A Playground and an LLMInferenceService run as llama-server processes on this machine, by a real loop and agent."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.server.host_facts import own_address
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.support import dialects
from tests.support.agents import REACHED, agent
from tests.support.gateways import completion, gateway_process
from tests.support.loop import eventually, find, http_folder, loop_process
from tools.localcluster import LocalCluster
from tools.tiny_model import Shape, write_tiny_model

pytestmark = pytest.mark.soak

HOST = "dialect-tests"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A model file, and the URL of a server that serves it as Hugging Face does."""
    folder = tmp_path_factory.mktemp("hub")
    repository = folder / "acme" / "tiny" / "resolve" / "main"
    repository.mkdir(parents=True)
    write_tiny_model(repository / "tiny.gguf", shape=Shape(context=4096))
    with http_folder(folder) as url:
        yield repository / "tiny.gguf", url


@pytest.fixture(scope="module")
def cluster(
    client: KubeClient,
    control_plane: LocalCluster,
    loop_kubeconfig: Path,
    pulumi_cli: Path,
    llama_server: Path,
    hub: tuple[Path, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KubeClient]:
    """A cluster with both dialects, a loop, and this machine as its one host."""
    for family in ("kserve", "llmaz"):
        dialects.install(client, family)
    store = tmp_path_factory.mktemp("store")
    arguments = (
        *("--kubeconfig", str(control_plane.kubeconfig), "--allowed-remote-hosts", "127.0.0.0/8"),
        *REACHED,
        *("--allowed-host-path-roots", str(hub[0].parent)),
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        loop_process(loop_kubeconfig, tmp_path_factory.mktemp("loop"), start=False) as loop,
        agent(store, *arguments, host=HOST) as running,
    ):
        loop.environment["HERDSMAN_HUB_URL"] = hub[1]
        loop.start()
        patch.setenv("HF_ENDPOINT", hub[1])
        running.start()
        yield client
        for kind in (kinds.PLAYGROUNDS, kinds.LLM_SERVICES):
            for each in client.list(kind)["items"]:
                with contextlib.suppress(NotFound):  # the namespaces of the tests are being deleted
                    client.delete(kind, each["metadata"]["namespace"], each["metadata"]["name"])
        eventually(lambda: not client.list(kinds.HOST_PROCESSES)["items"], what="all processes to be gone")
    for family in ("kserve", "llmaz"):
        dialects.uninstall(client, family)


def condition(client: KubeClient, kind: Kind, namespace: str, name: str, wanted: str) -> Json:
    found = (client.get(kind, namespace, name).get("status") or {}).get("conditions") or ()
    return next((each for each in found if each["type"] == wanted), {})


def await_true(client: KubeClient, kind: Kind, namespace: str, name: str, wanted: str) -> None:
    def look() -> bool:
        return condition(client, kind, namespace, name, wanted).get("status") == "True"

    try:
        eventually(look, what=f"{kind.kind} {name} to be {wanted}", timeout_s=60)
    except AssertionError as error:
        raise AssertionError(f"{error}: {json.dumps(client.get(kind, namespace, name).get('status'))}") from None


def answers(report: Json) -> Json:
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
    request = urllib.request.Request(f"http://{own_address()}:{report['port']}/v1/chat/completions", body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        completion: Json = json.load(answer)
    return completion


def process(client: KubeClient, namespace: str, name: str) -> tuple[Json, str]:
    """Return the status of a HostProcess, and the command line of its process."""
    report: Json = client.get(kinds.HOST_PROCESSES, namespace, name)["status"]
    return report, " ".join(psutil.Process(report["pid"]).cmdline())


def placed(name: str, namespace: str, **annotations: str) -> Json:
    notes = {
        "herdsman.dev/host": HOST,
        **{f"herdsman.dev/{key.replace('_', '-')}": v for key, v in annotations.items()},
    }
    return {"name": name, "namespace": namespace, "annotations": notes}


def test_both_dialects_serve_from_one_host_under_one_name(
    cluster: KubeClient, hub: tuple[Path, str], namespace: str
) -> None:
    client = cluster
    client.create(
        kinds.OPEN_MODELS,
        None,
        {
            "apiVersion": kinds.OPEN_MODELS.api_version,
            "kind": "OpenModel",
            "metadata": {"name": f"tiny-{namespace}"},
            "spec": {"familyName": "tiny", "source": {"uri": f"host://{hub[0]}"}},
        },
    )
    client.create(
        kinds.PLAYGROUNDS,
        namespace,
        {
            "apiVersion": kinds.PLAYGROUNDS.api_version,
            "kind": "Playground",
            "metadata": placed("chat", namespace),
            "spec": {
                "modelClaim": {"modelName": f"tiny-{namespace}"},
                "backendRuntimeConfig": {"backendName": "llamacpp", "args": ["-c", "256"]},
            },
        },
    )
    client.create(
        kinds.LLM_SERVICES,
        namespace,
        {
            "apiVersion": kinds.LLM_SERVICES.api_version,
            "kind": "LLMInferenceService",
            "metadata": placed("chat", namespace, model_file="tiny.gguf"),
            "spec": {
                "model": {"uri": "hf://acme/tiny", "name": "tiny"},
                "router": {"route": {}, "scheduler": {}},
                "template": {
                    "containers": [
                        {"name": "main", "command": ["/app/llama-server"], "args": ["--ctx-size", "512", "--seed", "7"]}
                    ]
                },
            },
        },
    )
    await_true(client, kinds.PLAYGROUNDS, namespace, "chat", "Available")
    await_true(client, kinds.LLM_SERVICES, namespace, "chat", "Ready")

    report, command = process(client, namespace, "llmaz-chat")
    assert "--ctx-size 256" in command
    assert answers(report)["usage"]["completion_tokens"] >= 1
    other, command = process(client, namespace, "kserve-chat")
    assert "--ctx-size 512" in command
    assert "--seed 7" in command
    assert answers(other)["usage"]["completion_tokens"] >= 1
    assert report["pid"] != other["pid"]

    for name, port in (("chat-lb", 8080), ("chat-kserve-workload-svc", 8000)):
        assert client.get(kinds.SERVICES, namespace, name)["spec"]["ports"][0]["port"] == port
        ready = client.get(kinds.ENDPOINT_SLICES, namespace, name)["endpoints"][0]["conditions"]["ready"]
        assert ready is True
    for kind in (kinds.DEPLOYMENTS, kinds.CONFIG_MAPS):
        made = client.list(kind, namespace)["items"]
        assert [obj["metadata"]["name"] for obj in made if obj["metadata"]["name"] != "kube-root-ca.crt"] == []
    lost = condition(client, kinds.LLM_SERVICES, namespace, "chat", "SpecHonoured")
    assert lost["status"] == "False"
    assert "spec.router has no effect on a host" in lost["message"]
    assert client.get(kinds.PLAYGROUNDS, namespace, "chat")["status"]["replicas"] == 1

    client.delete(kinds.LLM_SERVICES, namespace, "chat")
    eventually(lambda: not psutil.pid_exists(other["pid"]), what="KServe's process to end", timeout_s=60)
    assert psutil.pid_exists(report["pid"]), "llmaz's service of the same name stays"
    client.delete(kinds.PLAYGROUNDS, namespace, "chat")
    eventually(lambda: not psutil.pid_exists(report["pid"]), what="llmaz's process to end", timeout_s=60)


def test_services_of_both_dialects_sleep_and_wake_for_a_request_through_the_gateway(
    cluster: KubeClient, control_plane: LocalCluster, hub: tuple[Path, str], namespace: str, tmp_path: Path
) -> None:
    spec: Json = {"familyName": "tiny", "source": {"uri": f"host://{hub[0]}"}}
    named = {"metadata": {"name": f"sleepy-{namespace}"}, "spec": spec}
    cluster.create(kinds.OPEN_MODELS, None, _object(kinds.OPEN_MODELS, named))
    spec = {
        "modelClaim": {"modelName": f"sleepy-{namespace}"},
        "backendRuntimeConfig": {"backendName": "llamacpp", "args": ["-c", "256"]},
    }
    metadata = placed("sleepy-llmaz", namespace, idle_timeout="2s")
    cluster.create(kinds.PLAYGROUNDS, namespace, _object(kinds.PLAYGROUNDS, {"metadata": metadata, "spec": spec}))
    container = {"name": "main", "command": ["/app/llama-server"], "args": ["--ctx-size", "256"]}
    spec = {"model": {"uri": "hf://acme/tiny", "name": "tiny"}, "template": {"containers": [container]}}
    metadata = placed("sleepy-kserve", namespace, model_file="tiny.gguf", idle_timeout="2s")
    cluster.create(kinds.LLM_SERVICES, namespace, _object(kinds.LLM_SERVICES, {"metadata": metadata, "spec": spec}))
    processes = {"sleepy-llmaz": "llmaz-sleepy-llmaz", "sleepy-kserve": "kserve-sleepy-kserve"}

    def phase(name: str) -> str:
        found = find(cluster, kinds.HOST_PROCESSES, namespace, processes[name]) or {}
        return str((found.get("status") or {}).get("phase"))

    log = tmp_path / "gateway.log"
    with gateway_process(control_plane.kubeconfig, log, "--namespace", namespace) as address:
        for name in processes:
            eventually(lambda name=name: phase(name) == "Asleep", what=f"{name} to sleep", timeout_s=60)  # type: ignore[misc]
        for name in processes:

            def answered(name: str = name) -> Json | None:
                """The answer; None while the gateway does not know the sleeping process."""
                status, answer = completion(address, name)
                return answer if status == 200 else None

            answer = eventually(answered, what=f"an answer of {name}")
            assert answer is not None and answer["usage"]["completion_tokens"] >= 1


def test_a_service_without_a_context_gets_the_one_of_its_header(cluster: KubeClient, namespace: str) -> None:
    spec: Json = {"model": {"uri": "hf://acme/tiny", "name": "tiny"}}
    metadata = placed("fitted", namespace, model_file="tiny.gguf")
    cluster.create(kinds.LLM_SERVICES, namespace, _object(kinds.LLM_SERVICES, {"metadata": metadata, "spec": spec}))

    def context() -> str:
        found = find(cluster, kinds.HOST_PROCESSES, namespace, "kserve-fitted")
        if found is None:
            return ""
        argv = found["spec"]["argv"]
        chosen = (found["metadata"].get("annotations") or {}).get("herdsman.dev/default-context")
        return f"{chosen} {argv[argv.index('--ctx-size') + 1] if '--ctx-size' in argv else ''}"

    eventually(lambda: context() == "4096 4096", what="the context of the header", timeout_s=60)
    await_true(cluster, kinds.LLM_SERVICES, namespace, "fitted", "Ready")
    assert context() == "4096 4096"


def _object(kind: Kind, fields: Json) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **fields}


def test_a_model_that_no_host_can_have_is_said_at_its_field(cluster: KubeClient, namespace: str) -> None:
    cluster.create(
        kinds.LLM_SERVICES,
        namespace,
        {
            "apiVersion": kinds.LLM_SERVICES.api_version,
            "kind": "LLMInferenceService",
            "metadata": placed("claimed", namespace),
            "spec": {"model": {"uri": "pvc://weights/tiny.gguf"}},
        },
    )

    def said() -> bool:
        ready = condition(cluster, kinds.LLM_SERVICES, namespace, "claimed", "Ready")
        return "PersistentVolumeClaim" in ready.get("message", "") and "spec.model.uri" in ready.get("message", "")

    eventually(said, what="the refusal", timeout_s=60)
