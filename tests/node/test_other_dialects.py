"""A Playground of llmaz and an LLMInferenceService of KServe, each with a real llama-server in a real pod."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.kinds import Kind
from tests.support import dialects
from tests.support import node as real
from tests.support.controlplane import Api
from tests.support.held_file import held
from tests.support.loop import eventually, find
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.node.node import Node
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

STARTED_S = 90.0
_NOBODY = 65532
_HEALTH = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1, "failureThreshold": 60}
_LOADING_S = 20.0
"""How long an engine loads, in seconds. A replica that fails is deleted within 15 s of its first response."""
_FEW = ["--ctx-size", "512", "--threads", "1"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a folder of the node, which any user may read."""
    path = write_tiny_model(tmp_path_factory.mktemp("weights") / "tiny.gguf")
    path.chmod(0o644)
    for folder in path.parents[:3]:
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    return path


@pytest.fixture(scope="module")
def place(client: KubeClient, node_api: Api) -> Iterator[str]:
    """A namespace for this module, on a cluster with the CRDs of both dialects."""
    for family in ("kserve", "llmaz"):
        dialects.install(client, family)
    with node_api.namespace("dialects") as name:
        yield name


@pytest.fixture(scope="module")
def services(client: KubeClient, place: str, weights: Path, request: pytest.FixtureRequest) -> str:
    """The namespace of one service of each dialect. Both start at the same time."""
    request.getfixturevalue("loop")
    put_playground(client, place, "play", weights, startupProbe=_HEALTH, readinessProbe=_HEALTH)

    volume = {"name": "weights", "hostPath": {"path": str(weights.parent)}}
    engine = {
        "name": "main",
        "image": LLAMA_SERVER_IMAGE,
        "command": ["/app/llama-server"],
        "args": ["-m", f"/weights/{weights.name}", "--alias", "inferred", "--host", "0.0.0.0", "--port", "8000", *_FEW],
        "resources": {"requests": {"cpu": "250m"}},
        "securityContext": {"runAsUser": _NOBODY},
        "volumeMounts": [{"name": "weights", "mountPath": "/weights", "readOnly": True}],
        # The hook of the preset waits for 15 seconds, which only a gateway needs.
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/true"]}}},
    }
    spec = {
        "model": {"uri": "hf://acme/tiny", "name": "inferred"},
        "storageInitializer": {"enabled": False},
        "template": {"containers": [engine], "volumes": [volume]},
    }
    put(client, kinds.LLM_SERVICES, place, "infer", spec)
    return place


def put_playground(client: KubeClient, place: str, name: str, weights: Path, **probes: Any) -> None:
    """Create a Playground, its OpenModel, and a BackendRuntime that runs llama-server."""
    image, _, version = LLAMA_SERVER_IMAGE.rpartition(":")
    runtime = {
        "image": image,
        "version": version,
        "command": ["/app/llama-server"],
        "recommendedConfigs": [
            {
                "name": "default",
                "args": ["-m", "{{ .ModelPath }}", "--alias", "{{ .ModelName }}", "--host", "0.0.0.0", *_FEW],
                "resources": {"requests": {"cpu": "250m"}},
            }
        ],
        **probes,
    }
    put(client, kinds.BACKEND_RUNTIMES, None, f"runtime-{name}", runtime)
    source = {"uri": f"host://{weights}"}
    put(client, kinds.OPEN_MODELS, None, weights.stem, {"familyName": "tiny", "source": source})
    claim = {"modelClaim": {"modelName": weights.stem}, "backendRuntimeConfig": {"backendName": f"runtime-{name}"}}
    put(client, kinds.PLAYGROUNDS, place, name, claim)


def put(client: KubeClient, kind: Kind, namespace: str | None, name: str, spec: dict[str, Any]) -> None:
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    client.apply(kind, namespace, body, field_manager="tests", force=True)


def condition(client: KubeClient, kind: Kind, namespace: str, name: str, type_: str) -> str:
    status = client.get(kind, namespace, name).get("status") or {}
    return next((str(one["status"]) for one in status.get("conditions", ()) if one["type"] == type_), "")


@pytest.mark.parametrize(
    ("kind", "name", "service", "type_", "label"),
    [
        (kinds.PLAYGROUNDS, "play", "play-lb", "Available", "herdsman.dev/playground=play"),
        (kinds.LLM_SERVICES, "infer", "infer-kserve-workload-svc", "Ready", "app.kubernetes.io/name=infer"),
    ],
    ids=["llmaz", "kserve"],
)
def test_a_service_of_another_dialect_answers(
    kind: Kind, name: str, service: str, type_: str, label: str, client: KubeClient, node: Node, services: str
) -> None:
    def is_ready() -> bool:
        return condition(client, kind, services, name, type_) == "True"

    try:
        eventually(is_ready, what=f"{name} to be {type_}", timeout_s=STARTED_S)
    except AssertionError as error:
        seen = [real.container_states(pod) for pod in real.pods(client, services, label)]
        status = client.get(kind, services, name).get("status")
        raise AssertionError(f"{error}; pods {seen}; status {status}") from None
    assert find(client, kinds.SERVICES, services, service)
    address = real.cluster_address(client, node, services, service)
    # kube-proxy sends requests to a new pod only a moment after the pod became ready.
    eventually(lambda: real.chat(address, tokens=1).status == 200, what="an answer by the Service")
    answer = real.chat(address)
    assert real.said(answer) == real.said(real.chat(address)) != ""
    assert answer.json["model"] == {"play": "tiny", "infer": "inferred"}[name]

    (pod,) = real.pods(client, services, label)
    proved = [one for one in pod["status"]["conditions"] if one["type"] == naming.CONDITION_COMPLETED]
    assert [one["status"] for one in proved] == ["True"], "each engine answered the completion check"
    real.kill_program(pod, "llama-server")
    eventually(lambda: not is_ready(), what=f"{name} not to be {type_}")
    eventually(is_ready, what=f"{name} to be {type_} again", timeout_s=STARTED_S)
    eventually(lambda: real.chat(address, tokens=1).status == 200, what="an answer again")


def test_a_pod_without_probes_is_kept_while_its_engine_loads(
    client: KubeClient, place: str, weights: Path, services: str
) -> None:
    """Such a pod is Ready from its start. llama-server answers with status 503 until the model is loaded."""
    model = Path(shutil.copy(weights, weights.with_name("slow.gguf")))

    def found() -> list[tuple[str, int]]:
        """Return UID and restarts of each running pod."""
        pods = real.pods(client, place, "herdsman.dev/playground=slow")
        states = ((pod, one) for pod in pods for one in pod["status"].get("containerStatuses", ()) if one["ready"])
        return [(pod["metadata"]["uid"], one["restartCount"]) for pod, one in states]

    def available() -> str:
        return condition(client, kinds.PLAYGROUNDS, place, "slow", "Available")

    with held(model):
        put_playground(client, place, "slow", model)
        first = eventually(found, what="a running pod", timeout_s=STARTED_S)
        started = time.monotonic()
        while time.monotonic() < started + _LOADING_S:
            assert found() == first, "the pod is neither deleted nor restarted"
            assert available() != "True"
            time.sleep(0.5)
    eventually(lambda: available() == "True", what="slow to be Available", timeout_s=STARTED_S)
    assert found() == first and len(first) == 1 and first[0][1] == 0
