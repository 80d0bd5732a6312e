"""Services with a real llama-server in a real pod: completions, downloads, rolling updates, faults and sleep."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.pods import read_log
from tests.support import node as real
from tests.support.controlplane import Api
from tests.support.loop import (
    await_condition,
    condition,
    edit,
    eventually,
    find,
    model,
    service,
    status,
)
from tests.support.model_server import File, FileServer
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.node.node import Node
from tools.tiny_model import write_tiny_model

pytestmark = [pytest.mark.usefixtures("loop"), pytest.mark.soak]

_HEALTH = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1}
ENGINE: dict[str, Any] = {
    "image": LLAMA_SERVER_IMAGE,
    "contextSize": 512,
    # Without a CPU request an engine gets only the idle time of a busy machine, and its threads block each other.
    "resources": {"cpu": "250m"},
    "extraArgs": ["--threads", "1"],
    "probeOverrides": {"startup": {**_HEALTH, "failureThreshold": 60}, "readiness": _HEALTH},
}
STARTED_S = 60.0
"""The maximum time until a pod is Ready, with its download, on a busy machine."""
SLOW_S = 20.0
"""The minimum duration of a download whose progress is tested: the downloader reports every five seconds."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two models of the same shape with different completions."""
    folder = tmp_path_factory.mktemp("weights")
    first, second = (write_tiny_model(folder / f"{seed}.gguf", seed=seed).read_bytes() for seed in (1, 2))
    return first, second


@pytest.fixture(scope="module")
def place(node_api: Api) -> Iterator[str]:
    """A namespace for this module."""
    with node_api.namespace("pods") as name:
        yield name


def downloads(files: FileServer, path: str) -> int:
    """Return how often pods have downloaded a file: the bytes sent to them, divided by its size.

    The loop's reads of the header do not count.
    """
    with files.lock:
        sent = sum(
            request.bytes_sent[0]
            for request in files.requests
            if request.path == path and request.headers.get("User-Agent", "").startswith("curl")
        )
    return round(sent / len(files.files[path].content))


@dataclass(frozen=True)
class Served:
    """A Ready service, with functions that observe it."""

    client: KubeClient
    files: FileServer
    namespace: str
    node: Node
    address: real.Address

    @property
    def pod(self) -> dict[str, Any]:
        """The newest pod of the service."""
        return max(self.pods_of("svc"), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pods_of(self, name: str) -> list[dict[str, Any]]:
        """Return the pods of a service in the namespace."""
        return real.pods(self.client, self.namespace, f"{naming.LABEL_SERVICE}={name}")

    def says(self) -> str:
        # kube-proxy sends requests to a new pod only a moment after the pod became ready.
        eventually(lambda: real.chat(self.address, tokens=1).status == 200, what="an answer by the Service")
        return real.said(real.chat(self.address))

    def would_say(self) -> str:
        """Return the answer as `says` does, but an empty text if a terminating pod dropped the request."""
        answer = real.chat(self.address, timeout_s=2)
        return real.said(answer) if answer.status == 200 else ""

    def downloads(self, path: str) -> int:
        return downloads(self.files, path)

    def is_ready(self) -> bool:
        return condition(self.client, self.namespace, "svc", "Ready").get("status") == "True"


@pytest.fixture(scope="module")
def served(client: KubeClient, node: Node, place: str, files: FileServer, weights: tuple[bytes, bytes]) -> Served:
    """A Ready service with the first model. The tests of this module share it and run in order."""
    model(client, place, source=files.serve("/first.gguf", File(weights[0])))
    service(client, place, **ENGINE)
    await_condition(client, place, "svc", "Ready", "True", timeout_s=STARTED_S)
    return Served(client, files, place, node, real.cluster_address(client, node, place))


def test_a_service_answers_through_its_cluster_address(served: Served) -> None:
    assert served.says() == served.says() != ""
    assert served.downloads("/first.gguf") == 1
    assert status(served.client, served.namespace)["endpoint"].startswith(f"http://svc.{served.namespace}.svc")
    name = str(served.pod["metadata"]["name"])
    read = read_log(served.client, served.namespace, name, "llama-server", tail=3, follow=True)
    seen = b""
    while seen.count(b"\n") < 3:  # the existing lines of a followed log arrive in one piece or in several
        seen += next(read)
    assert seen.count(b"\n") == 3
    read.close()


def test_a_new_pod_takes_its_weights_from_the_cache(served: Served) -> None:
    said, old = served.says(), served.pod["metadata"]["uid"]
    served.client.delete(kinds.PODS, served.namespace, served.pod["metadata"]["name"])
    eventually(lambda: served.pod["metadata"]["uid"] != old, what="another pod", timeout_s=STARTED_S)
    real.pod_ready(served.client, served.namespace, served.pod["metadata"]["name"], timeout_s=STARTED_S)
    await_condition(served.client, served.namespace, "svc", "Ready", "True", timeout_s=STARTED_S)
    assert served.says() == said
    assert served.downloads("/first.gguf") == 1


def test_a_killed_engine_is_not_ready_until_it_serves_again(served: Served) -> None:
    before = served.pod
    real.kill_program(before, "llama-server")
    eventually(lambda: not served.is_ready(), what="the service not to be Ready")
    await_condition(served.client, served.namespace, "svc", "Ready", "True", timeout_s=STARTED_S)
    assert served.says()
    after = served.pod
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "the container restarts, not the pod"
    assert after["status"]["containerStatuses"][0]["restartCount"] == 1


def test_a_changed_source_never_serves_the_old_weights(served: Served, weights: tuple[bytes, bytes]) -> None:
    before, old = served.says(), served.pod["metadata"]["uid"]
    source = served.files.serve("/second.gguf", File(weights[1]))
    served.client.patch(kinds.MODELS, served.namespace, "base", {"spec": {"source": source}})
    eventually(lambda: served.pod["metadata"]["uid"] != old, what="a pod of the new source", timeout_s=STARTED_S)
    await_condition(served.client, served.namespace, "svc", "Ready", "True", timeout_s=STARTED_S)
    eventually(lambda: served.would_say() not in ("", before), what="the new weights to be served")
    (engine,) = real.processes_of(served.pod, "llama-server")
    path = engine.cmdline()[engine.cmdline().index("--model") + 1]
    assert Path(f"/proc/{engine.pid}/root{path}").read_bytes() == weights[1]
    # Back to the first model. Both models are in the cache, so pods download neither again.
    client, namespace = served.client, served.namespace
    model(client, namespace, "first-again", source=served.files.url("/first.gguf"))
    edit(client, namespace, modelRef="first-again")
    eventually(lambda: served.would_say() == before, what="the first weights again", timeout_s=STARTED_S)
    assert served.downloads("/first.gguf") == served.downloads("/second.gguf") == 1


def test_a_rolling_update_loses_no_request(served: Served) -> None:
    """Two clients send one request after another, each over a new connection, while one pod replaces the other."""
    client, namespace = served.client, served.namespace
    service(client, namespace, "busy", **ENGINE, rolloutPolicy={"waitForIdle": True, "idleTimeoutSeconds": 5})
    await_condition(client, namespace, "busy", "Ready", "True", timeout_s=STARTED_S)
    address = real.cluster_address(client, served.node, namespace, "busy")
    # kube-proxy routes a new Service only a moment after its pod is Ready.
    eventually(lambda: real.chat(address, tokens=1).status == 200, what="kube-proxy to route the Service")
    (old,) = served.pods_of("busy")
    answers: list[real.Answer] = []
    done = threading.Event()

    def load() -> None:
        while not done.is_set():
            answers.append(real.chat(address, tokens=100))

    def replaced() -> bool:
        left = [pod["metadata"]["uid"] for pod in served.pods_of("busy")]
        return len(left) == 1 and left != [old["metadata"]["uid"]]

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(load) for _ in range(2)]
        try:
            edit(client, namespace, "busy", contextSize=1024)
            eventually(replaced, what="the old pod to be gone", timeout_s=STARTED_S)
            after = len(answers)
            eventually(lambda: len(answers) > after + 5, what="answers of the new pod")
        finally:
            done.set()
        for one in clients:
            one.result()
    lost = [answer for answer in answers if answer.status != 200]
    assert not lost, f"{len(lost)} of {len(answers)} requests were lost: {lost[:3]}"
    assert after > 10


@pytest.fixture(scope="module")
def troubled(
    node_api: Api,
    client: KubeClient,
    files: FileServer,
    weights: tuple[bytes, bytes],
) -> Iterator[str]:
    """A namespace of services, each with another fault. All start at the same time."""
    with node_api.namespace("troubled") as namespace:
        limits = {"type": "Container", "default": {"memory": "24Mi"}, "defaultRequest": {"memory": "1Mi"}}
        client.create(
            client.mapping("v1", "LimitRange"),
            namespace,
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "tight"}, "spec": {"limits": [limits]}},
        )
        model(client, namespace, source=files.serve("/kept.gguf", File(weights[0])))
        model(client, namespace, "gone", source=files.serve("/gone.gguf", File(weights[0])))
        eventually(
            lambda: client.get(kinds.MODELS, namespace, "gone").get("status", {}).get("phase") == "Ready",
            what="Model gone to be Ready",
        )
        del files.files["/gone.gguf"]
        slow = File(weights[0], bytes_per_s=len(weights[0]) / SLOW_S)
        model(client, namespace, "slow", source=files.serve("/slow.gguf", slow))
        service(client, namespace, "slow", **ENGINE, modelRef="slow", replicas=2)
        no_engine = {**ENGINE, "resources": {"cpu": "20m"}, "skipModelInit": True}
        service(client, namespace, "no-image", **{**no_engine, "image": "registry.herdsman.test/none:1"})
        liar = {**no_engine, "image": real.LIAR_IMAGE}
        service(client, namespace, "liar", **liar, env=[{"name": "LIES", "value": "always"}])
        service(client, namespace, "turncoat", **liar)
        service(client, namespace, "no-file", **ENGINE, modelRef="gone")
        service(client, namespace, "no-memory", **{**ENGINE, "contextSize": 262144})
        yield namespace


def test_a_download_tells_how_far_it_is(client: KubeClient, node: Node, troubled: str) -> None:
    def under_way() -> dict[str, Any]:
        return dict(client.get(kinds.MODELS, troubled, "slow").get("status", {}).get("download") or {})

    first = eventually(under_way, what="a download in the Model's status", timeout_s=STARTED_S)
    assert 0 < first["bytes"] <= first["total"] and first["where"].startswith("pod/slow-")
    found = await_condition(client, troubled, "slow", "Ready", "False", saying="fetches the model")
    assert found["reason"] == "ModelDownloading"
    # Without the heartbeat, the other replica would take over the download after a while.
    eventually(lambda: list(node.layout.volumes.glob("*/*/.*.lock/beat")), what="a heartbeat", timeout_s=SLOW_S)


def test_an_image_that_cannot_be_pulled_is_named(client: KubeClient, troubled: str) -> None:
    found = await_condition(client, troubled, "no-image", "Ready", "False", saying="registry.herdsman.test/none:1")
    assert found["reason"] == "ImagePullFailed"


def test_a_download_that_fails_names_its_class(client: KubeClient, troubled: str) -> None:
    found = await_condition(client, troubled, "no-file", "Ready", "False", saying="404")
    assert found["reason"] == "ModelSourceNotFound"


def test_an_engine_killed_for_want_of_memory_is_named(client: KubeClient, troubled: str) -> None:
    found = await_condition(
        client,
        troubled,
        "no-memory",
        "Ready",
        "False",
        saying="killed because it ran out of memory",
        timeout_s=STARTED_S,
    )
    assert found["reason"] == "OutOfMemory"


def test_health_alone_makes_nothing_ready(client: KubeClient, troubled: str) -> None:
    """The health check of the server succeeds from the start, but its completions hang."""
    found = await_condition(
        client, troubled, "liar", "Ready", "False", saying="answers no completion", timeout_s=STARTED_S
    )
    assert found["reason"] == "CompletionFailed"


def test_a_replica_that_stops_answering_is_replaced(client: KubeClient, troubled: str) -> None:
    """The pod passed its completion check and was Ready. Then its metrics stop changing although a request runs, and
    its health check still succeeds.
    """
    await_condition(client, troubled, "turncoat", "Ready", "True", timeout_s=STARTED_S)
    (old,) = real.pods(client, troubled, f"{naming.LABEL_SERVICE}=turncoat")
    real.make_lie(old)
    await_condition(client, troubled, "turncoat", "Ready", "False", timeout_s=STARTED_S)
    await_condition(client, troubled, "turncoat", "Ready", "True", timeout_s=STARTED_S)

    def others() -> list[str]:
        found = real.pods(client, troubled, f"{naming.LABEL_SERVICE}=turncoat")
        return [uid for pod in found if (uid := pod["metadata"]["uid"]) != old["metadata"]["uid"]]

    assert len(others()) == 1
    # The old pod ends, and the new one remains.
    eventually(
        lambda: len(real.pods(client, troubled, f"{naming.LABEL_SERVICE}=turncoat")) == 1,
        what="the pod that stopped answering to be gone",
        timeout_s=STARTED_S,
    )
    assert len(others()) == 1


def test_replicas_share_one_download(client: KubeClient, node: Node, troubled: str, files: FileServer) -> None:
    await_condition(client, troubled, "slow", "Ready", "True", saying="2 of 2 replicas", timeout_s=STARTED_S)
    assert downloads(files, "/slow.gguf") == 1
    eventually(
        lambda: "download" not in client.get(kinds.MODELS, troubled, "slow")["status"],
        what="the download to be over in the Model's status",
    )
    assert real.said(real.chat(real.cluster_address(client, node, troubled, "slow")))


def test_a_service_sleeps_and_a_request_to_its_address_wakes_it(served: Served) -> None:
    client, place = served.client, served.namespace
    service(client, place, "sleepy", annotations={"herdsman.dev/idle-timeout": "4s"}, **ENGINE)
    await_condition(client, place, "sleepy", "Ready", "True", saying="the next request", timeout_s=2 * STARTED_S)
    eventually(lambda: not served.pods_of("sleepy"), what="no pod", timeout_s=STARTED_S)
    address = real.cluster_address(client, served.node, place, "sleepy")
    # kube-proxy routes the request to the loop, which waits for the pod and passes the request and the answer on.
    woken = real.chat(address, timeout_s=2 * STARTED_S)
    assert woken.status == 200
    (pod,) = served.pods_of("sleepy")
    assert real.said(woken) != ""
    eventually(
        lambda: find(client, kinds.ENDPOINT_SLICES, place, "sleepy-herdsman-wake") is None,
        what="the service to lead to its pod alone",
    )
    assert real.chat(address).status == 200
    assert served.pods_of("sleepy")[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    client.delete(kinds.INFERENCE_SERVICES, place, "sleepy")
