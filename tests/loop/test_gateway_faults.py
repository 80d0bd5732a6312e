"""A gateway with TLS on a real API server, two llama-servers, and what goes wrong between them."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import itertools
import json
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from agent.server.host_facts import own_address
from automation.certificates.files import serving_files
from gateway.engines.backends import Route
from gateway.names import Model, ServiceName
from gateway.server import GatewayServer
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.request_report import REPORTS_NAMESPACE
from tests.support import loop
from tests.support.gateway_rights import grant_gateway_rights
from tests.support.gateways import CHAT, Front, completion, gateway_process
from tests.support.loop import eventually
from tests.support.relay import Relay
from tests.support.supervising import free_port
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

PAGE = "https://chat.example.org"
NAMESPACE = "gateway-faults"
MODEL = "pair"
IDLE = 2000
LISTED = 1000


_NUMBERS = itertools.count()


class Gateway(NamedTuple):
    """A gateway, whose connections to the API server go through `relay`."""

    port: int
    context: ssl.SSLContext
    relay: Relay
    process: psutil.Process

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.port, context=self.context, timeout=120)

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Origin": PAGE})
            answer = connection.getresponse()
            assert answer.getheader("access-control-allow-origin") == PAGE
            return answer.status, json.load(answer)
        finally:
            connection.close()

    def names(self) -> set[str]:
        with contextlib.suppress(OSError):
            return {each["id"] for each in self.request("GET", "/v1/models")[1].get("data", ())}
        return set()

    def chat(self, **fields: Any) -> int:
        return self.request("POST", CHAT, asking(**fields))[0]


def asking(**fields: Any) -> bytes:
    return json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2} | fields
    ).encode()


class Engines:
    """Two llama-servers behind one InferenceService, which no loop looks after."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self._command = [str(binary), "--model", str(directory / "tiny.gguf"), "-c", "8192", "--parallel", "1"]
        # With one slot it has three threads for HTTP, so that a few waiting requests keep /metrics from answering.
        self._command += ["--metrics", "--threads-http", "32"]
        self._log = (directory / "engines.log").open("wb")
        self.address = own_address()
        self.ports = [free_port(), free_port()]
        self.processes = {port: self._start(port) for port in self.ports}

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        command = [*self._command, "--host", self.address, "--port", str(port)]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def kill(self, port: int) -> None:
        self.processes[port].send_signal(signal.SIGKILL)
        self.processes[port].wait()

    def start_again(self, port: int) -> None:
        self.processes[port] = self._start(port)
        eventually(lambda: self.is_up(port), what="a llama-server")

    def is_up(self, port: int) -> bool:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection(self.address, port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False

    def busy(self) -> list[int]:
        """List those that work on a request."""
        found = []
        for port in self.ports:
            connection = http.client.HTTPConnection(self.address, port, timeout=60)
            connection.request("GET", "/slots")
            if any(slot["is_processing"] for slot in json.load(connection.getresponse())):
                found.append(port)
        return found

    def prompts(self, port: int) -> str:
        """Return the counter of the tokens of prompts."""
        connection = http.client.HTTPConnection(self.address, port, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return next(line for line in lines if line.startswith("llamacpp:prompt_tokens_total"))

    def close(self) -> None:
        for port in self.ports:
            self.kill(port)
        self._log.close()


@pytest.fixture(scope="module")
def engines(llama_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    directory = tmp_path_factory.mktemp("engines")
    write_tiny_model(directory / "tiny.gguf")
    made = Engines(llama_server, directory)
    try:
        for port in made.ports:
            eventually(lambda port=port: made.is_up(port), what="a llama-server")  # type: ignore[misc]
        yield made
    finally:
        made.close()


def register(client: KubeClient, engines: Engines) -> None:
    """Make a namespace with the service and its endpoints."""
    metadata = {"name": NAMESPACE}
    client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    loop.service(client, NAMESPACE, MODEL)
    for port in engines.ports:
        client.create(
            kinds.ENDPOINT_SLICES,
            NAMESPACE,
            {
                "apiVersion": kinds.ENDPOINT_SLICES.api_version,
                "kind": kinds.ENDPOINT_SLICES.kind,
                "metadata": {"name": f"{MODEL}-{port}", "labels": {"kubernetes.io/service-name": MODEL}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [engines.address], "conditions": {"ready": True}}],
                "ports": [{"name": "http", "protocol": "TCP", "port": port}],
            },
        )


@pytest.fixture(scope="module")
def place(client: KubeClient, engines: Engines) -> Iterator[str]:
    """The namespace of the service."""
    register(client, engines)
    yield NAMESPACE
    client.delete(kinds.NAMESPACES, None, NAMESPACE)


@pytest.fixture(scope="module")
def gateway(
    client: KubeClient, control_plane: LocalCluster, place: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    files = serving_files(("localhost",), (), now=datetime.datetime.now(datetime.UTC))
    for name, text in files.items():
        (directory / name).write_bytes(text)
    granted = grant_gateway_rights(client, control_plane, directory / "granted")
    relay = Relay(control_plane.server)
    kubeconfig = Path(relay.kubeconfig(granted, directory / "kubeconfig"))
    options = ["-n", place, "--cors-origin", PAGE]
    options += ["--tls-cert", str(directory / "tls.crt"), "--tls-key", str(directory / "tls.key")]
    before = {each.pid for each in psutil.Process().children()}
    with gateway_process(kubeconfig, directory / "gateway.log", *options) as address:
        (process,) = [each for each in psutil.Process().children() if each.pid not in before]
        context = ssl.create_default_context(cadata=files["ca.crt"].decode())
        running = Gateway(int(address.rpartition(":")[2]), context, relay, process)
        eventually(lambda: MODEL in running.names(), what="the model")
        yield running
    relay.close()


def test_a_client_sees_that_its_replica_was_killed_and_the_other_replica_goes_on(
    gateway: Gateway, engines: Engines
) -> None:
    eventually(lambda: not engines.busy(), what="the requests of other tests to end")
    connection = gateway.connect()
    connection.request("POST", CHAT, asking(stream=True, max_tokens=8000, ignore_eos=True))
    answer = connection.getresponse()
    assert answer.getheader("cache-control") == "no-cache"
    assert answer.read(6) == b"data: "
    (killed,) = engines.busy()
    engines.kill(killed)
    with pytest.raises(http.client.IncompleteRead) as broken:
        answer.read()
    connection.close()
    assert b"[DONE]" not in broken.value.partial
    assert [gateway.chat() for _ in range(6)] == [200] * 6
    engines.start_again(killed)


def test_requests_go_to_the_engine_that_others_use_less(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engines.scraper.USED_S", 120.0)  # the only request before may be ten seconds ago
    first, second = engines.ports
    front = Front(GatewayServer())
    try:
        name = ServiceName(NAMESPACE, MODEL)
        front.serve_routes(Route(Model(name), ((engines.address, first), (engines.address, second))))
        assert front.ask(json.loads(asking()))[0] == 200, "the gateway reads metrics while it has requests"
        # The engine answers them one after the other, so fewer are left at each look at its metrics.
        others = [http.client.HTTPConnection(engines.address, first, timeout=60) for _ in range(12)]
        for connection in others:
            connection.request("POST", CHAT, asking(stream=True, max_tokens=8000, ignore_eos=True))
        backend = front.server.backends.of(name)
        assert backend is not None
        loads = {each.target[1]: each for each in backend.balancer.endpoints}
        eventually(lambda: loads[first].others >= 6, what="the metrics of an engine that others use")
        for number in range(6):
            asked = json.loads(asking(messages=[{"role": "user", "content": f"prompt {number}"}]))
            assert front.ask(asked)[0] == 200
        assert engines.busy() == [first], "no answer waited for the long ones"
        for connection in others:
            connection.close()
    finally:
        front.server.stop()


def test_a_drained_replica_gets_nothing_new_and_ends_its_answer(
    gateway: Gateway, engines: Engines, client: KubeClient, place: str
) -> None:
    eventually(lambda: not engines.busy(), what="the requests of other tests to end")
    connection = gateway.connect()
    connection.request("POST", CHAT, asking(stream=True, max_tokens=8000, ignore_eos=True))
    answer = connection.getresponse()
    assert answer.read(6) == b"data: "
    (drained,) = engines.busy()
    conditions = {"ready": True, "serving": True, "terminating": True}
    endpoints = [{"addresses": [engines.address], "conditions": conditions}]
    client.patch(kinds.ENDPOINT_SLICES, place, f"{MODEL}-{drained}", {"endpoints": endpoints})

    def passes_by(prompts: int) -> bool:
        before = engines.prompts(drained)
        for _ in range(prompts):
            word = str(next(_NUMBERS))
            assert gateway.chat(messages=[{"role": "user", "content": word}]) == 200
        return engines.prompts(drained) == before

    eventually(lambda: passes_by(6), what="the gateway to notice it")
    assert passes_by(12)
    assert answer.read().endswith(b"data: [DONE]\n\n")
    connection.close()
    conditions |= {"terminating": False}
    client.patch(kinds.ENDPOINT_SLICES, place, f"{MODEL}-{drained}", {"endpoints": endpoints})
    eventually(lambda: not passes_by(6), what="requests to the replica again")


def test_requests_are_answered_while_the_api_server_is_away(gateway: Gateway, client: KubeClient, place: str) -> None:
    gateway.relay.refusing = True
    gateway.relay.cut()
    dialled = gateway.relay.dialled
    eventually(lambda: gateway.relay.dialled > dialled, what="an attempt to reach the API server")
    assert [gateway.chat() for _ in range(4)] == [200] * 4
    loop.service(client, place, "later")
    assert gateway.names() == {MODEL}
    gateway.relay.refusing = False
    eventually(lambda: gateway.names() == {MODEL, "later"}, what="the new service", timeout_s=60)
    client.delete(kinds.INFERENCE_SERVICES, place, "later")


@pytest.mark.parametrize(
    "away_s",
    [
        pytest.param(60.0, marks=pytest.mark.soak),
        pytest.param(600.0, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
def test_a_gateway_serves_while_its_api_server_is_stopped(
    engines: Engines, own_cluster: LocalCluster, own_client: KubeClient, tmp_path: Path, away_s: float
) -> None:
    """Real time, in which a replica dies and comes back. tests/unit/gateway/test_api_server_away.py moves clocks."""
    loop.install_crds(own_client)
    register(own_client, engines)
    kubeconfig = grant_gateway_rights(own_client, own_cluster, tmp_path / "kubeconfig")

    def report() -> str:
        found = own_client.list(kinds.LEASES, REPORTS_NAMESPACE)["items"]
        return str(found[0]["metadata"]["resourceVersion"]) if found else ""

    def listed(address: str) -> set[str]:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/v1/models", timeout=60) as answer:
            return {each["id"] for each in json.load(answer)["data"]}
        return set()

    with gateway_process(kubeconfig, tmp_path / "gateway.log", "-n", NAMESPACE) as address:
        eventually(lambda: completion(address, MODEL)[0] == 200, what="the model", timeout_s=60)
        before = eventually(report, what="the report of the requests", timeout_s=60)
        own_cluster.kill("kube-apiserver")
        try:
            statuses, began = Counter[int](), time.monotonic()

            def ask(until_s: float) -> None:
                while time.monotonic() - began < until_s:
                    statuses[completion(address, MODEL)[0]] += 1
                    time.sleep(0.1)

            ask(away_s / 3)
            # The same prompt goes to the same replica while that one is there.
            home = max(engines.ports, key=lambda port: float(engines.prompts(port).split()[-1]))
            engines.kill(home)
            ask(away_s * 2 / 3)
            engines.start_again(home)
            before_its_return = engines.prompts(home)
            ask(away_s)
            assert set(statuses) == {200}
            assert engines.prompts(home) != before_its_return, "the gateway uses the replica again"
            assert listed(address) == {MODEL}
        finally:
            own_cluster.start("kube-apiserver")
        loop.service(own_client, NAMESPACE, "later")
        eventually(lambda: listed(address) == {MODEL, "later"}, what="the new service", timeout_s=60)
        assert completion(address, MODEL)[0] == 200
        eventually(lambda: report() not in ("", before), what="the next report", timeout_s=60)


@pytest.mark.soak
def test_many_idle_and_slow_clients_take_nothing_from_the_others(gateway: Gateway) -> None:
    idle: list[ssl.SSLSocket] = []
    try:
        for number in range(IDLE):
            raw = socket.create_connection(("localhost", gateway.port), timeout=60)
            client = gateway.context.wrap_socket(raw, server_hostname="localhost")
            idle.append(client)
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            if number % 10 == 0:
                client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nX: ")  # and never goes on
        assert [gateway.chat() for _ in range(8)] == [200] * 8
        assert gateway.process.memory_info().rss >> 20 < 400, "MiB; asyncio's own buffers would need 500 more"
        for kept in idle[1:10]:
            kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert kept.recv(4096).startswith(b"HTTP/1.1 200"), "an idle connection is used again"
    finally:
        for kept in idle:
            kept.close()


@pytest.mark.soak
def test_a_body_of_64_mb_is_passed_on_and_one_byte_more_is_not(gateway: Gateway) -> None:
    limit = 64 << 20
    body = asking(padding="")
    largest = asking(padding="x" * (limit - len(body)))
    assert len(largest) == limit
    assert gateway.request("POST", CHAT, largest)[0] == 200
    connection = gateway.connect()
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Length", str(limit + 1))
    connection.endheaders()
    with contextlib.suppress(OSError):
        connection.send(largest + b" ")
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["error"]["code"]) == (413, "request_too_large")
    assert gateway.chat() == 200


@pytest.mark.soak
def test_a_thousand_services_are_listed(gateway: Gateway, client: KubeClient, place: str) -> None:
    names = {f"many-{number}" for number in range(LISTED)}
    for name in sorted(names):
        loop.service(client, place, name)
    eventually(lambda: names <= gateway.names(), what="all names", timeout_s=60)
    assert gateway.chat() == 200
    for name in sorted(names):
        client.delete(kinds.INFERENCE_SERVICES, place, name)
    eventually(lambda: gateway.names() == {MODEL}, what="the names to go", timeout_s=60)


def test_the_gateway_has_only_its_listener(gateway: Gateway) -> None:
    listening = [each.laddr for each in gateway.process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    assert [(str(each.ip), each.port) for each in listening] == [("127.0.0.1", gateway.port)]
