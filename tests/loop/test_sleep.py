"""Scale to zero in pods: a real control plane and loop; the tests write the kubelet's statuses and serve for the pods.

The engine is a real HTTP server on the machine's address, so that the API server's pod proxy and the loop's proxy reach
it in the same way as a pod.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from automation.serving.wake import slice_name
from components import naming
from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.kubelet import pods_of, write_ready_status
from tests.support.loop import (
    LoopProcess,
    condition,
    deployed,
    edit,
    eventually,
    find,
    loop_process,
    model,
    service,
    status,
)
from tests.support.raw_engine import read_head

IDLE = "herdsman.dev/idle-timeout"


def machine_address() -> str:
    """An IPv4 address of this machine that is not loopback, because an EndpointSlice accepts no loopback addresses."""
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family == socket.AF_INET and not each.address.startswith(("127.", "169.254.")):
                return each.address
    pytest.skip("this machine has no address but loopback")


class Engine:
    """Responds to the loop's requests as llama-server does; `served` counts completions."""

    def __init__(self) -> None:
        self.served = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                metrics = f"llamacpp:n_decode_total {outer.served}\nllamacpp:requests_processing 0\n"
                answers = {"/metrics": metrics, "/slots": '[{"is_processing": false}]', "/health": '{"status":"ok"}'}
                self.say(200, answers.get(self.path, ""))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.served += 1
                choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "length"}
                self.say(200, json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}))

            def say(self, code: int, text: str) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

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
def loop(loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopProcess]:
    """A loop that the cluster reaches at the machine's address."""
    with loop_process(loop_kubeconfig, tmp_path_factory.mktemp("loop"), start=False) as running:
        running.environment["HERDSMAN_PROXY_ADDRESS"] = machine_address()
        yield running.start()


@pytest.fixture(scope="module", autouse=True)
def priorities(client: KubeClient) -> None:
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)


def start_pod(client: KubeClient, namespace: str) -> Json:
    """Make the service's only pod ready, as its kubelet would; return the pod."""
    (pod,) = eventually(lambda: pods_of(client, namespace), what="a pod")
    write_ready_status(client, pod, run=pod["metadata"]["uid"], address=machine_address())
    return dict(pod)


def asleep(client: KubeClient, namespace: str) -> Json:
    """Wait until the service has no replicas and an EndpointSlice of the loop; return the slice."""
    eventually(lambda: replicas(client, namespace) == 0, what="no replicas")
    found = eventually(lambda: find(client, kinds.ENDPOINT_SLICES, namespace, slice_name("svc")), what="our slice")
    assert found is not None
    return found


def replicas(client: KubeClient, namespace: str) -> int:
    return int(deployed(client, namespace)["spec"]["replicas"])


def ask(endpoints: Json) -> socket.socket:
    """Send a completion request to the address in a slice; return the connection."""
    address, port = endpoints["endpoints"][0]["addresses"][0], endpoints["ports"][0]["port"]
    client = socket.create_connection((address, port), timeout=60)
    body = b'{"messages": []}'
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return client


def events(client: KubeClient, namespace: str) -> set[str]:
    return {event["reason"] for event in client.list(kinds.EVENTS, namespace)["items"]}


@pytest.mark.soak
def test_a_service_sleeps_over_a_restart_of_the_loop_and_wakes_for_a_request(
    client: KubeClient, namespace: str, loop: LoopProcess, engine: Engine
) -> None:
    model(client, namespace)
    spec = {"containerPort": engine.port, "skipModelInit": True}
    service(client, namespace, annotations={IDLE: "5s", "herdsman.dev/wake-timeout": "60s"}, **spec)
    deployed(client, namespace)
    start_pod(client, namespace)
    eventually(lambda: condition(client, namespace, "svc", "Ready").get("reason") == "Serving", what="a replica")

    endpoints = asleep(client, namespace)
    labels = endpoints["metadata"]["labels"]
    assert labels["kubernetes.io/service-name"] == "svc"
    assert labels["endpointslice.kubernetes.io/managed-by"] == "herdsman"
    eventually(lambda: condition(client, namespace, "svc", "Ready").get("reason") == "Asleep", what="Asleep")
    eventually(lambda: status(client, namespace).get("readyReplicas") == 0, what="no ready replica")
    assert status(client, namespace)["phase"] == "Ready"
    assert condition(client, namespace, "svc", "Available")["status"] == "True"
    eventually(lambda: "Asleep" in events(client, namespace), what="an Event")

    loop.stop()
    loop.start()
    again = asleep(client, namespace)
    assert again["ports"] == endpoints["ports"]
    served = engine.served
    with eventually(lambda: try_to_ask(again), what="the listener") as client_socket:
        eventually(lambda: replicas(client, namespace) == 1, what="a replica wanted")
        assert engine.served == served
        start_pod(client, namespace)
        head, _ = read_head(client_socket)
        assert b" 200 " in head and engine.served > served
    eventually(
        lambda: not find(client, kinds.ENDPOINT_SLICES, namespace, slice_name("svc")),
        what="no EndpointSlice of the loop",
    )
    eventually(lambda: "Woken" in events(client, namespace), what="an Event")
    eventually(lambda: loop.metric("herdsman_proxy_wake_seconds_count") == 1, what="one wake in the metrics")

    # An edit to 0 replicas stops a service that is asleep: the loop receives no more requests for it.
    asleep(client, namespace)
    edit(client, namespace, replicas=0)
    eventually(lambda: status(client, namespace).get("phase") == "Stopped", what="Stopped")
    eventually(
        lambda: not find(client, kinds.ENDPOINT_SLICES, namespace, slice_name("svc")),
        what="no EndpointSlice of the loop",
    )
    edit(client, namespace, replicas=1)
    eventually(lambda: replicas(client, namespace) == 1, what="a replica wanted")
    assert naming.ANNOTATION_ASLEEP not in deployed(client, namespace)["metadata"]["annotations"]


def try_to_ask(endpoints: Json) -> socket.socket | None:
    try:
        return ask(endpoints)
    except ConnectionRefusedError:
        return None


def test_an_engine_that_cannot_be_asked_never_sleeps_and_the_status_says_so(
    client: KubeClient, namespace: str, loop: LoopProcess
) -> None:
    model(client, namespace)
    service(client, namespace, annotations={IDLE: "1s"}, runtime="generic", image="x", skipModelInit=True)
    found = eventually(
        lambda: (
            condition(client, namespace, "svc", "SpecHonoured").get("status") == "False"
            and condition(client, namespace, "svc", "SpecHonoured")
        ),
        what="SpecHonoured=False",
    )
    assert IDLE in found["message"] and "do not report whether clients use them" in found["message"]
