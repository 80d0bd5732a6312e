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


def adapter(client: KubeClient, namespace: str) -> Json:
    return find(client, kinds.LORA_ADAPTERS, namespace, "sql") or {}


@pytest.mark.usefixtures("loop")
def test_the_pod_of_an_llm_inference_service_loads_and_unloads_an_adapter(client: KubeClient, namespace: str) -> None:
    reference = {"kind": "LLMInferenceService", "name": "chat"}
    spec: Json = {"inferenceServiceRef": reference, "name": "sql", "path": "/adapters/sql"}
    document = {"apiVersion": kinds.LORA_ADAPTERS.api_version, "kind": "LoRAAdapter", "metadata": {"name": "sql"}}
    client.create(kinds.LORA_ADAPTERS, namespace, {**document, "spec": spec})
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
        write_ready_status(client, pod, address=own_address())
        eventually(
            lambda: (adapter(client, namespace).get("status") or {}).get("phase") == "Loaded",
            what="the adapter",
            timeout_s=WAIT_S,
        )
        status = adapter(client, namespace)["status"]
        assert (status["runtime"], status["pods"]) == ("vllm", [{"name": pod["metadata"]["name"], "loaded": True}])
        assert engine.engine.adapters == {"sql": "/adapters/sql"}
        client.delete(kinds.LORA_ADAPTERS, namespace, "sql")
        eventually(lambda: not adapter(client, namespace), what="the adapter to go", timeout_s=WAIT_S)
        assert engine.engine.adapters == {}
