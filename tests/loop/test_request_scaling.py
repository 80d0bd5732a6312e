"""Services that the requests at a gateway wake: a real API server, loop and gateway with the rights of an installation.

The control plane has no controllers. The tests write the statuses of Deployments and the endpoints, and are the engine.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from automation.cli.main import invoke
from automation.external_metrics.registration import API_SERVICE
from automation.install.objects import documents
from automation.install.options import InstallOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.loop.test_dialects import conditions, inferring, namespace, playing, put, runtimes
from tests.loop.test_sleep import machine_address
from tests.support import controlplane, dialects, loop
from tests.support.gateway_rights import grant_gateway_rights, grant_secret
from tests.support.gateways import completion, gateway_process
from tests.support.loop import LoopProcess, deployed, eventually
from tools.localcluster import LocalCluster

CONTROLLERS = "kube-controller-manager"
BY_REQUESTS = {
    "herdsman.dev/scale-by": "requests",
    "herdsman.dev/idle-timeout": "1s",
    "herdsman.dev/wake-timeout": "60s",
}


class Engine:
    """An engine at the machine's address. It notes the keys of the requests for completions."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.say({"data": [{"id": "tiny"}]})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.keys.append(self.headers["Authorization"] or "")
                self.say({"choices": []})

            def say(self, answer: Json) -> None:
                text = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with controlplane.running(("etcd", "kube-apiserver")) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[KubeClient]:
    """The administrator."""
    administrator = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    loop.install_crds(administrator)
    dialects.install(administrator, "llmaz")
    dialects.install(administrator, "kserve")
    yield administrator
    administrator.close()


@pytest.fixture(scope="module", autouse=True)
def running(
    client: KubeClient, cluster: LocalCluster, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    folder = tmp_path_factory.mktemp("loop")
    kubeconfig = loop.grant_loop_rights(client, cluster, folder / "kubeconfig")
    for document in of_external_metrics():
        if document["kind"] != "APIService":
            apply(client, document)
    with loop.loop_process(kubeconfig, folder, start=False) as process:
        process.environment = {"HERDSMAN_EXTERNAL_METRICS_PORT": "0", "HERDSMAN_API_CHECK_S": "0.5"}
        yield process.start()


def of_external_metrics() -> list[Json]:
    """The objects that an installation with external metrics has besides."""
    without = [each["metadata"] for each in documents(InstallOptions())]
    everything = documents(InstallOptions(external_metrics=True))
    return [each for each in everything if each["metadata"] not in without]


def apply(client: KubeClient, document: Json) -> None:
    kind = client.mapping(document["apiVersion"], document["kind"])
    client.apply(kind, document["metadata"].get("namespace"), document, field_manager="tests", force=True)


@pytest.fixture(scope="module")
def gateway(
    client: KubeClient, cluster: LocalCluster, running: LoopProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    kubeconfig = grant_gateway_rights(client, cluster, folder / "kubeconfig")
    with gateway_process(kubeconfig, folder / "log") as address:
        yield address


def replicas(client: KubeClient, where: str, name: str) -> int:
    return int(deployed(client, where, name)["spec"]["replicas"])


def write_status(client: KubeClient, where: str, name: str, *, ready: int) -> None:
    """Write the status of a Deployment as its controller would."""
    generation = deployed(client, where, name)["metadata"]["generation"]
    counts = {"replicas": ready, "readyReplicas": ready, "updatedReplicas": ready, "availableReplicas": ready}
    body = {"status": {**counts, "observedGeneration": generation}}
    client.patch(kinds.DEPLOYMENTS, where, name, body, subresource="status")


def write_endpoints(client: KubeClient, where: str, front: str, *ports: int) -> None:
    """Write the endpoints of a Service: an engine at each of these ports."""
    (port,) = ports or (1,)
    body = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{front}-x", "labels": {"kubernetes.io/service-name": front}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port}],
        "endpoints": [{"addresses": [machine_address()], "conditions": {"ready": True}}] if ports else [],
    }
    client.apply(kinds.ENDPOINT_SLICES, where, body, field_manager="tests", force=True)


def falls_asleep(client: KubeClient, where: str, name: str) -> None:
    """Let a replica be ready, and wait until the loop stops it because no request comes."""
    assert replicas(client, where, name) == 1
    write_status(client, where, name, ready=1)
    eventually(lambda: replicas(client, where, name) == 0, what="no replica wanted")
    write_status(client, where, name, ready=0)


def knows(gateway: str, service: str) -> bool:
    """Return whether a gateway runs and lists a service."""
    try:
        with urllib.request.urlopen(f"{gateway}/v1/models", timeout=30) as answer:
            return service in {each.get("root") for each in json.load(answer)["data"]}
    except OSError:
        return False


def wakes(client: KubeClient, gateway: str, where: str, name: str, front: str, engine: Engine) -> tuple[int, Json]:
    """Send a request, play the start of the replica that it wakes, and return the answer."""
    eventually(lambda: knows(gateway, f"{where}/{name}"), what="the gateway to know the service")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(completion, gateway, f"{where}/{name}")
        eventually(lambda: replicas(client, where, name) == 1, what="a replica wanted")
        assert not asked.done()
        write_status(client, where, name, ready=1)
        write_endpoints(client, where, front, engine.port)
        return asked.result()


def test_a_request_wakes_the_pods_of_a_playground(client: KubeClient, gateway: str, engine: Engine) -> None:
    where = namespace(client, "playground")
    runtimes(client)
    spec = playing() | {"elasticConfig": {"minReplicas": 1, "maxReplicas": 2, "scaleTrigger": {"hpa": {}}}}
    annotations = BY_REQUESTS | {"herdsman.dev/target-requests": "8"}
    put(client, kinds.PLAYGROUNDS, where, "chat", spec, annotations=annotations)
    deployed(client, where, "chat")
    assert autoscaler(client, where) is None, "the requests scale within its bounds"
    falls_asleep(client, where, "chat")
    eventually(
        lambda: conditions(client, kinds.PLAYGROUNDS, where, "chat").get("Ready", {}).get("reason") == "Asleep",
        what="Asleep",
    )
    assert wakes(client, gateway, where, "chat", "chat-lb", engine) == (200, {"choices": []})


def test_a_request_wakes_the_pods_of_an_llm_inference_service(client: KubeClient, gateway: str) -> None:
    where, deployment = namespace(client, "inferring"), "chat-kserve"

    def reason() -> str:
        return str(conditions(client, kinds.LLM_SERVICES, where, "chat").get("Ready", {}).get("reason"))

    put(client, kinds.LLM_SERVICES, where, "chat", inferring(), annotations=BY_REQUESTS)
    falls_asleep(client, where, deployment)
    eventually(lambda: reason() == "Asleep", what="Asleep")
    eventually(lambda: knows(gateway, f"{where}/chat"), what="the gateway to know the service")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(completion, gateway, f"{where}/chat")
        eventually(lambda: replicas(client, where, deployment) == 1, what="a replica wanted")
        eventually(lambda: reason() == "Waking", what="Waking")
        client.delete(kinds.LLM_SERVICES, where, "chat")
        status, answer = asked.result()
    assert (status, answer["error"]["code"]) == (503, "no_replica")


def test_a_request_wakes_a_llama_server_with_a_key(client: KubeClient, gateway: str, engine: Engine) -> None:
    where = namespace(client, "keyed")
    client.create(kinds.SECRETS, where, {"metadata": {"name": "key"}, "stringData": {"api-key": "sesame"}})
    grant_secret(client, where, "key")
    loop.model(client, where)
    loop.service(client, where, annotations=BY_REQUESTS | {"herdsman.dev/api-key-secret": "key"}, skipModelInit=True)
    deployed(client, where)
    assert loop.condition(client, where, "svc", "SpecHonoured").get("status") != "False"
    falls_asleep(client, where, "svc")
    assert wakes(client, gateway, where, "svc", "svc", engine) == (200, {"choices": []})
    assert engine.keys == ["Bearer sesame"]


def test_replicas_follow_the_requests_without_an_autoscaler(
    client: KubeClient, cluster: LocalCluster, gateway: str, engine: Engine
) -> None:
    where = namespace(client, "scaled")
    loop.model(client, where)
    annotations = {"herdsman.dev/scale-by": "requests", "herdsman.dev/target-requests": "1"}
    scaling = {"minReplicas": 0, "maxReplicas": 2}
    loop.service(client, where, annotations=annotations, autoscaling=scaling, skipModelInit=True)
    assert replicas(client, where, "svc") == 1
    assert not client.list(kinds.AUTOSCALERS, where)["items"]
    eventually(lambda: knows(gateway, f"{where}/svc"), what="the gateway to know the service")
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(completion, gateway, f"{where}/svc") for _ in range(3)]
        eventually(lambda: replicas(client, where, "svc") == 2, what="a replica for each request, at most 2")
        write_status(client, where, "svc", ready=2)
        write_endpoints(client, where, "svc", engine.port)
        assert [each.result()[0] for each in asked] == [200, 200, 200]
    preview = ["preview", "--live", "svc", "-n", where, f"--kubeconfig={cluster.kubeconfig}"]
    assert invoke(preview) == 0, "the number is that of the requests, and not that of the spec"


def autoscaler(client: KubeClient, where: str) -> Json | None:
    return next(iter(client.list(kinds.AUTOSCALERS, where)["items"]), None)


def desired(client: KubeClient, where: str) -> int:
    return int(client.get(kinds.INFERENCE_SERVICES, where, "svc")["status"]["desiredReplicas"])


def test_an_autoscaler_scales_a_service_that_is_awake_while_external_metrics_are_herdsmans(
    client: KubeClient,
    cluster: LocalCluster,
    gateway: str,
    engine: Engine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = namespace(client, "followed")
    loop.model(client, where)
    annotations = BY_REQUESTS | {"herdsman.dev/idle-timeout": "1h", "herdsman.dev/target-requests": "4"}
    scaling = {"minReplicas": 1, "maxReplicas": 3}
    loop.service(client, where, annotations=annotations, autoscaling=scaling, skipModelInit=True)
    write_status(client, where, "svc", ready=1 if deployed(client, where) else 0)
    [api_service] = [each for each in of_external_metrics() if each["kind"] == "APIService"]
    apply(client, api_service)
    try:
        hpa = eventually(lambda: autoscaler(client, where), what="an autoscaler")
        assert hpa["spec"]["maxReplicas"] == 3 and hpa["spec"]["metrics"][0]["type"] == "External"
        eventually(
            lambda: client.get(kinds.API_SERVICES, None, API_SERVICE)["spec"].get("caBundle"), what="the authority"
        )
        metadata = {"name": "new", "namespace": where, "annotations": annotations}
        spec = {"modelRef": "base", "autoscaling": scaling, "skipModelInit": True}
        document = {
            "apiVersion": loop.MODEL_API,
            "kind": kinds.INFERENCE_SERVICES.kind,
            "metadata": metadata,
            "spec": spec,
        }
        file = tmp_path / "new.json"
        file.write_text(json.dumps(document))
        capsys.readouterr()
        invoke(["preview", "-f", str(file), f"--kubeconfig={cluster.kubeconfig}", "-o", "json"])
        [shown] = json.loads(capsys.readouterr().out)["services"]
        made = {each["kind"]: each["op"] for each in shown["objects"]}
        assert made["HorizontalPodAutoscaler"] == "create", "before the service exists"
        scale = {"spec": {"replicas": 2}}
        client.patch(kinds.DEPLOYMENTS, where, "svc", scale, subresource="scale", field_manager=CONTROLLERS)
        preview = ["preview", "--live", "svc", "-n", where, f"--kubeconfig={cluster.kubeconfig}"]
        assert invoke(preview) == 0, "the number is the autoscaler's"
        idle = {"metadata": {"annotations": {"herdsman.dev/idle-timeout": "1s"}}}
        client.patch(kinds.INFERENCE_SERVICES, where, "svc", idle)
        eventually(lambda: replicas(client, where, "svc") == 0, what="no replica wanted")
        eventually(lambda: autoscaler(client, where) is None, what="no autoscaler of a service that sleeps")
        write_status(client, where, "svc", ready=0)
        client.patch(
            kinds.INFERENCE_SERVICES, where, "svc", {"metadata": {"annotations": {"herdsman.dev/idle-timeout": "1h"}}}
        )
        assert wakes(client, gateway, where, "svc", "svc", engine) == (200, {"choices": []})
        eventually(lambda: autoscaler(client, where), what="the autoscaler again")
        client.patch(kinds.DEPLOYMENTS, where, "svc", scale, subresource="scale", field_manager=CONTROLLERS)
        eventually(lambda: desired(client, where) == 2, what="the loop to see the autoscaler's number")
    finally:
        client.delete(kinds.API_SERVICES, None, API_SERVICE)
    eventually(lambda: autoscaler(client, where) is None, what="the loop to scale itself")
    assert replicas(client, where, "svc") == 2, "the number does not jump"
