"""A Playground of llmaz and an LLMInferenceService of KServe, each with a real llama-server in a real pod."""

from __future__ import annotations

import dataclasses
import hashlib
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
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.support import dialects
from tests.support import node as real
from tests.support.adapter_files import write_adapter
from tests.support.controlplane import Api
from tests.support.held_file import held
from tests.support.loop import eventually, find
from tests.support.model_server import File, FileServer
from tools.node import image_set
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.node.node import Node
from tools.tiny_model import write_tiny_model
from tools.versions import LLAMA_CPP

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
def engine_image(node: Node, llama_server: Path) -> str:
    """The name of an image of llama.cpp that the node has, which contains the llama-server of the tests."""
    name = f"ghcr.io/ggml-org/llama.cpp:server-b{LLAMA_CPP}"
    node.load([dataclasses.replace(image_set.llama_server(llama_server), name=name)])
    return name


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


def put_playground(
    client: KubeClient, place: str, name: str, weights: Path, image_name: str = LLAMA_SERVER_IMAGE, **probes: Any
) -> None:
    """Create a Playground, its OpenModel, and a BackendRuntime that runs llama-server."""
    image, _, version = image_name.rpartition(":")
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


def test_a_playground_serves_a_downloaded_adapter_and_has_it_again_after_restarts(
    client: KubeClient,
    node: Node,
    place: str,
    weights: Path,
    services: str,
    files: FileServer,
    engine_image: str,
    tmp_path: Path,
) -> None:
    put_playground(client, place, "tuned", weights, engine_image, startupProbe=_HEALTH, readinessProbe=_HEALTH)
    eventually(
        lambda: condition(client, kinds.PLAYGROUNDS, place, "tuned", "Available") == "True",
        what="tuned to be Available",
        timeout_s=STARTED_S,
    )
    address = real.cluster_address(client, node, place, "tuned-lb")

    def only_pod() -> Json | None:
        found = [pod for pod in real.pods(client, place, "herdsman.dev/playground=tuned") if not ends(pod)]
        return found[0] if len(found) == 1 else None

    def text(scale: float) -> str:
        lora = [{"id": 0, "scale": scale}]
        body = {"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "seed": 1, "lora": lora}

        def answered() -> real.Answer | None:
            answer = real.ask(address, "/v1/completions", body)
            return answer if answer.status == 200 else None

        # kube-proxy follows a change of the pods only a moment later.
        found = eventually(answered, what="an answer", timeout_s=STARTED_S)
        return str(found.json["choices"][0]["text"])

    def adapter() -> Json:
        return client.get(kinds.LORA_ADAPTERS, place, "sql").get("status") or {}

    def is_loaded_by(pod: Json) -> bool:
        status = adapter()
        named = [(each["name"], each.get("adapterID")) for each in status.get("pods", ())]
        return status.get("phase") == "Loaded" and named == [(pod["metadata"]["name"], 0)]

    plain = text(0.0)
    before = eventually(only_pod, what="one pod")
    assert "initContainers" not in before["spec"], "the model is a folder of the node"

    content = write_adapter(tmp_path / "sql.gguf", seed=1).read_bytes()
    source = files.serve("/sql.gguf", File(content))
    reference = {"kind": "Playground", "name": "tuned"}
    spec = {"inferenceServiceRef": reference, "name": "sql", "source": source, "sha256": "0" * 64}
    put(client, kinds.LORA_ADAPTERS, place, "sql", spec)
    eventually(lambda: "DownloadFailed" in str(adapter()), what="the wrong checksum", timeout_s=STARTED_S)
    kept = client.get(kinds.PODS, place, before["metadata"]["name"])
    assert not ends(kept) and kept["metadata"]["uid"] == before["metadata"]["uid"]
    assert text(0.0) == plain, "a wrong source stops nothing that runs"

    put(client, kinds.LORA_ADAPTERS, place, "sql", {**spec, "sha256": hashlib.sha256(content).hexdigest()})
    eventually(lambda: (pod := only_pod()) and is_loaded_by(pod), what="the adapter to be loaded", timeout_s=STARTED_S)
    eventually(lambda: text(1.0) != plain, what="an answer with the adapter", timeout_s=STARTED_S)
    tuned, pod = text(1.0), eventually(only_pod, what="one pod")
    assert text(0.0) == plain, "requests for the model itself do not get the adapter"

    real.kill_program(pod, "llama-server")
    eventually(lambda: restarts(client, place, pod) == 1, what="the container to restart", timeout_s=STARTED_S)
    eventually(lambda: text(1.0) == tuned, what="the adapter in the restarted container", timeout_s=STARTED_S)
    client.delete(kinds.PODS, place, pod["metadata"]["name"])
    eventually(
        lambda: (new := only_pod()) and new["metadata"]["uid"] != pod["metadata"]["uid"] and is_loaded_by(new),
        what="the adapter in another pod",
        timeout_s=STARTED_S,
    )
    eventually(lambda: text(1.0) == tuned, what="an answer of the other pod", timeout_s=STARTED_S)

    client.delete(kinds.LORA_ADAPTERS, place, "sql")
    eventually(
        lambda: (last := only_pod()) and labels_of(last) == labels_of(before),
        what="a pod of the same template as before the adapter",
        timeout_s=STARTED_S,
    )


def labels_of(pod: Json) -> Json:
    """Return the labels of a pod, one of which is the hash of its template."""
    return dict(pod["metadata"]["labels"])


def ends(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def restarts(client: KubeClient, namespace: str, pod: Json) -> int:
    [status] = client.get(kinds.PODS, namespace, pod["metadata"]["name"])["status"]["containerStatuses"]
    return int(status["restartCount"])
