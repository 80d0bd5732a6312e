"""LoRAAdapters of LLMInferenceServices: real control plane and loop, and servers with the endpoints of the engines.

The tests write the kubelet's status of the pods. Other dialects and all refusals are tested by
`tests/unit/automation/test_adapter_controller.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.server.host_facts import own_address
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.adapter import FOLDER
from program.dialects.llmkube.parse.adapter import adapter_of
from tests.support import dialects
from tests.support.adapter_engines import AdapterEngine, EngineServer
from tests.support.kubelet import write_ready_status
from tests.support.loop import LoopProcess, eventually, find, loop_process

WAIT_S = 90.0


@pytest.fixture(scope="module")
def loop(
    client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    """A loop over all namespaces, on a cluster with KServe's CRDs."""
    dialects.install(client, "kserve")
    with loop_process(loop_kubeconfig, tmp_path_factory.mktemp("loop")) as running:
        yield running
    dialects.uninstall(client, "kserve")


def adapter(client: KubeClient, namespace: str, name: str) -> Json:
    return find(client, kinds.LORA_ADAPTERS, namespace, name) or {}


def is_loaded(client: KubeClient, namespace: str, name: str) -> bool:
    return (adapter(client, namespace, name).get("status") or {}).get("phase") == "Loaded"


def create_adapter(client: KubeClient, namespace: str, name: str, **where: Any) -> None:
    spec = {"inferenceServiceRef": {"kind": "LLMInferenceService", "name": "chat"}, "name": name, **where}
    document = {"apiVersion": kinds.LORA_ADAPTERS.api_version, "kind": "LoRAAdapter", "metadata": {"name": name}}
    client.create(kinds.LORA_ADAPTERS, namespace, {**document, "spec": spec})


def create_service(client: KubeClient, namespace: str, port: int, **engine: Any) -> None:
    """Create the LLMInferenceService `chat`, whose engine listens at a port."""
    probe = {"httpGet": {"path": "/health", "port": port, "scheme": "HTTP"}}
    main = {"name": "main", "ports": [{"name": "http", "containerPort": port}], **engine}
    main |= dict.fromkeys(("readinessProbe", "livenessProbe", "startupProbe"), probe)
    spec = {"model": {"uri": "hf://acme/tiny"}, "template": {"containers": [main]}}
    document = {"apiVersion": kinds.LLM_SERVICES.api_version, "kind": "LLMInferenceService"}
    client.create(kinds.LLM_SERVICES, namespace, {**document, "metadata": {"name": "chat"}, "spec": spec})


def pods_of(client: KubeClient, namespace: str) -> list[Json]:
    """The pods of the LLMInferenceService `chat`."""
    selector = "app.kubernetes.io/part-of=llminferenceservice,app.kubernetes.io/name=chat"
    return list(client.list(kinds.PODS, namespace, label_selector=selector)["items"])


def template_of(client: KubeClient, namespace: str) -> Json:
    return dict(client.get(kinds.DEPLOYMENTS, namespace, "chat-kserve")["spec"]["template"])


@pytest.mark.usefixtures("loop")
def test_the_pod_of_an_llm_inference_service_loads_and_unloads_an_adapter(client: KubeClient, namespace: str) -> None:
    for name, where in (("law", {"path": "/adapters/law"}), ("sql", {"source": "hf://org/sql"})):
        create_adapter(client, namespace, name, **where)
        eventually(lambda: adapter(client, namespace, name).get("status"), what="the loop to know the adapter")  # noqa: B023
    file = adapter_of(adapter(client, namespace, "sql")).file
    assert file is not None
    with EngineServer(AdapterEngine(), address=own_address()) as engine:
        create_service(client, namespace, engine.port, image="vllm/vllm-openai:v0.11.0", command=["vllm", "serve"])
        [pod] = eventually(lambda: pods_of(client, namespace), what="the pod", timeout_s=WAIT_S)
        [download] = [each for each in pod["spec"]["initContainers"] if each["name"] == file.container]
        [served_by] = pod["spec"]["containers"]
        assert FOLDER in {each["mountPath"] for each in download["volumeMounts"]}
        assert {"name": "lora-adapters", "mountPath": FOLDER, "readOnly": True} in served_by["volumeMounts"]
        write_ready_status(client, pod, address=own_address())
        for name in ("law", "sql"):
            eventually(lambda: is_loaded(client, namespace, name), what=f"the adapter {name}", timeout_s=WAIT_S)  # noqa: B023
        status = adapter(client, namespace, "sql")["status"]
        assert (status["runtime"], status["pods"]) == ("vllm", [{"name": pod["metadata"]["name"], "loaded": True}])
        assert engine.engine.adapters == {"law": "/adapters/law", "sql": file.pod_path}
        client.delete(kinds.LORA_ADAPTERS, namespace, "law")
        eventually(lambda: not adapter(client, namespace, "law"), what="the adapter to go", timeout_s=WAIT_S)
        assert engine.engine.adapters == {"sql": file.pod_path}


LLAMA = "ghcr.io/ggml-org/llama.cpp:server-b11434"


@pytest.mark.usefixtures("loop")
def test_the_llama_server_of_an_llm_inference_service_is_started_with_a_downloaded_adapter(
    client: KubeClient, namespace: str
) -> None:
    engine = AdapterEngine("llamacpp")
    with EngineServer(engine, address=own_address()) as server:
        arguments = ["-m", "/mnt/models", "--port", str(server.port)]
        create_service(client, namespace, server.port, image=LLAMA, command=["/app/llama-server"], args=arguments)
        [old] = eventually(lambda: pods_of(client, namespace), what="the pod", timeout_s=WAIT_S)
        write_ready_status(client, old, address=own_address())
        before = template_of(client, namespace)
        create_adapter(client, namespace, "sql", source="https://files.example/sql.gguf", sha256="a" * 64)
        file = adapter_of(adapter(client, namespace, "sql")).file
        assert file is not None

        def new_pods() -> list[Json]:
            return [pod for pod in pods_of(client, namespace) if pod["metadata"]["uid"] != old["metadata"]["uid"]]

        [pod] = eventually(new_pods, what="a pod with the adapter", timeout_s=WAIT_S)
        assert "deletionTimestamp" not in client.get(kinds.PODS, namespace, old["metadata"]["name"])["metadata"]
        [download] = [each for each in pod["spec"]["initContainers"] if each["name"] == file.container]
        assert {"name": "MODEL_SHA256", "value": "a" * 64} in download["env"]
        [main] = pod["spec"]["containers"]
        assert main["args"] == [*arguments, "--lora-scaled", f"{file.pod_path}:0", "--cache-ram", "0"]
        assert {"name": "lora-adapters", "mountPath": FOLDER, "readOnly": True} in main["volumeMounts"]

        engine.scales = {file.pod_path: 0.0}
        write_ready_status(client, pod, address=own_address())
        loaded = [{"name": pod["metadata"]["name"], "loaded": True, "adapterID": 0}]
        eventually(
            lambda: (adapter(client, namespace, "sql").get("status") or {}).get("pods") == loaded,
            what="the adapter to be loaded",
            timeout_s=WAIT_S,
        )
        question = ("GET", "/lora-adapters")
        asked = engine.asked.count(question)
        write_ready_status(client, pod, run="c2", address=own_address())
        eventually(
            lambda: engine.asked.count(question) > asked, what="a question to the restarted container", timeout_s=WAIT_S
        )
        eventually(lambda: is_loaded(client, namespace, "sql"), what="the adapter after the restart", timeout_s=WAIT_S)
        assert "lora-adapters" not in engine.changes(), "its scale is 0 from the start"

        client.delete(kinds.LORA_ADAPTERS, namespace, "sql")
        eventually(lambda: template_of(client, namespace) == before, what="the template as it was", timeout_s=WAIT_S)


@pytest.mark.usefixtures("loop")
def test_a_llama_server_of_an_image_of_the_users_own_is_left_as_it_is(client: KubeClient, namespace: str) -> None:
    with EngineServer(AdapterEngine("llamacpp"), address=own_address()) as server:
        create_service(client, namespace, server.port, image="registry.example/llama:1", command=["llama-server"])
        [pod] = eventually(lambda: pods_of(client, namespace), what="the pod", timeout_s=WAIT_S)
        before = template_of(client, namespace)
        create_adapter(client, namespace, "sql", source="https://files.example/sql.gguf")
        write_ready_status(client, pod, address=own_address())

        def stalled() -> str:
            conditions = (adapter(client, namespace, "sql").get("status") or {}).get("conditions") or ()
            return next((each["message"] for each in conditions if each["reason"] == "SourceNotSupported"), "")

        message = eventually(stalled, what="the condition", timeout_s=WAIT_S)
        assert "image `registry.example/llama:1` is not llama.cpp's own" in message
        assert template_of(client, namespace) == before
        assert [each["metadata"]["uid"] for each in pods_of(client, namespace)] == [pod["metadata"]["uid"]]
