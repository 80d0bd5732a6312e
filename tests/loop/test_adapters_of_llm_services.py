"""A LoRAAdapter of an LLMInferenceService: real control plane and loop, and a server with vLLM's endpoints as engine.

The test writes the kubelet's status of the pod. Other dialects and all refusals are tested by
`tests/unit/automation/test_adapter_controller.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.usefixtures("loop")
def test_the_pod_of_an_llm_inference_service_loads_and_unloads_an_adapter(client: KubeClient, namespace: str) -> None:
    reference = {"kind": "LLMInferenceService", "name": "chat"}
    document: Json = {"apiVersion": kinds.LORA_ADAPTERS.api_version, "kind": "LoRAAdapter"}
    for name, where in (("law", {"path": "/adapters/law"}), ("sql", {"source": "hf://org/sql"})):
        spec = {"inferenceServiceRef": reference, "name": name, **where}
        client.create(kinds.LORA_ADAPTERS, namespace, {**document, "metadata": {"name": name}, "spec": spec})
    file = adapter_of(adapter(client, namespace, "sql")).file
    assert file is not None
    with EngineServer(AdapterEngine(), address=own_address()) as engine:
        port = {"name": "http", "containerPort": engine.port}
        probe = {"httpGet": {"path": "/health", "port": engine.port, "scheme": "HTTP"}}
        main = {"name": "main", "image": "vllm/vllm-openai:v0.11.0", "command": ["vllm", "serve"], "ports": [port]}
        main |= dict.fromkeys(("readinessProbe", "livenessProbe", "startupProbe"), probe)
        served = {"model": {"uri": "hf://acme/tiny"}, "template": {"containers": [main]}}
        service = {"apiVersion": kinds.LLM_SERVICES.api_version, "kind": "LLMInferenceService"}
        client.create(kinds.LLM_SERVICES, namespace, {**service, "metadata": {"name": "chat"}, "spec": served})
        selector = "app.kubernetes.io/part-of=llminferenceservice,app.kubernetes.io/name=chat"
        [pod] = eventually(
            lambda: client.list(kinds.PODS, namespace, label_selector=selector)["items"],
            what="the pod",
            timeout_s=WAIT_S,
        )
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
