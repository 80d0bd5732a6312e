"""The agent's API for other machines: real TLS connections to the server that every agent runs."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3
from structlog.testing import capture_logs

from agent.client.http import HttpHost, token_from
from agent.client.port import HostRefused, HostUnreachable
from agent.http_server import BoundedHandler, BoundedServer, Bounds
from agent.server.api import self_signed
from agent.server.api.api_listeners import ApiListeners, ApiSettings
from agent.server.api.http_api import Api, HttpApi
from agent.server.api.tls import Certificate, OwnCertificate, TlsFailed, fingerprint
from agent.server.host_facts import NoAddress, own_address
from agent.server.store import Store
from agent.token_proof import SCHEME, proof
from automation.places.log_sources import NoLog, log_on_host
from tests.support.agents import TINY, agent, llama_plan, until


def test_a_fleet_without_a_cluster_is_spoken_to_over_tls_from_elsewhere(
    tmp_path: Path, llama_server: Path, tiny_model: Path
) -> None:
    try:
        own = own_address()
    except NoAddress as error:
        pytest.skip(str(error))
    options = ("--plan-source", "http", "--address", own, "--listen", "127.0.0.1", "--http-address", own)
    with agent(tmp_path / "store", *options, "--allowed-host-path-roots", str(tiny_model.parent)) as running:
        local = running.start()
        facts = local.report().facts
        assert facts.endpoint.startswith(f"https://{own}:")
        token, certificate = token_from(running.store / "agent-token"), running.store / "agent-tls.crt"
        pinned = HttpHost(facts.endpoint, token, fingerprint=facts.tls_fingerprint)
        known = HttpHost(facts.endpoint, token, ca_file=certificate)
        pinned.put(TINY, llama_plan(tiny_model))
        until(known, TINY, "Ready")
        assert fingerprint(certificate.read_text()) == facts.tls_fingerprint

        for_metrics = token_from(running.store / "agent-metrics-token")
        for stranger, reason in (
            (HttpHost(facts.endpoint, token), "Untrusted"),
            (HttpHost(facts.endpoint, token, fingerprint="0" * 64), "Untrusted"),
            (HttpHost(facts.endpoint, lambda: "guess", ca_file=certificate), "Unauthorized"),
            (HttpHost(facts.endpoint, for_metrics, ca_file=certificate), "Forbidden"),
        ):
            with pytest.raises((HostUnreachable, HostRefused)) as refused:
                stranger.report()
            assert refused.value.reason == reason, refused.value.message
        with pytest.raises(HostRefused, match="others could read the token"):
            HttpHost(facts.endpoint.replace("https", "http"), token)

        (running.store / "agent-token").write_text("another-one\n")
        with pytest.raises(HostRefused):
            HttpHost(facts.endpoint, lambda: "old", ca_file=certificate).report()
        assert pinned.report().processes[TINY].ready


@dataclass
class Served:
    """The listeners of an agent without processes, on a second loopback address that counts as another machine's."""

    listeners: ApiListeners
    store: Store
    url: str

    def get(self, path: str, token: str = "", **options: Any) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urllib3.PoolManager(cert_reqs="CERT_NONE", assert_fingerprint=self.listeners.fingerprint) as pool:
            answer = pool.request("GET", self.url + path, headers=headers, retries=False, **options)
            return answer.status, answer.data.decode()

    def shown(self) -> str:
        """Return the fingerprint of the certificate that a new connection gets."""
        host, port = self.url.removeprefix("https://").split(":")
        return fingerprint(ssl.get_server_certificate((host, int(port)), timeout=60))


class Nothing:
    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: {}

    def text(self) -> bytes:
        return b"up 1\n"


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []
    monkeypatch.setattr(ApiSettings, "is_remote", property(lambda settings: bool(settings.address)))

    def start(**settings: Any) -> Served:
        store = Store(tmp_path / f"store-{len(made)}")
        store.open()
        api = Api(Nothing(), Nothing(), lambda: Nothing(), store.token, lambda: True, takes_plans=True)  # type: ignore[arg-type]
        given = ApiSettings(address="127.0.0.2", **settings)
        listeners = ApiListeners(given, api, store, host="mac-1", address="127.0.0.2")
        listeners.start()
        made.append(Served(listeners, store, listeners.endpoint))
        return made[-1]

    yield start
    for each in made:
        each.listeners.stop()
        each.store.close()


def test_only_health_is_open_beyond_loopback_and_a_metrics_token_opens_metrics_alone(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(token_file=tmp_path / "token")
    assert served.get("/healthz") == (200, "ok\n")
    # While the token file does not exist, each token is refused, also an empty one.
    assert [served.get(path)[0] for path in ("/metrics", "/readyz", "/v1/plan", "/nothing")] == [401] * 4
    assert served.get("/v1/plan", " ")[0] == 401
    (tmp_path / "token").write_text("first\n")
    assert served.get("/v1/nothing", "first")[0] == 404 and served.get("/readyz", "first")[0] == 200
    (tmp_path / "token").write_text("second")
    assert served.get("/v1/nothing", "first")[0] == 401 and served.get("/v1/nothing", "second")[0] == 404
    metrics = served.store.metrics_token()
    assert served.get("/metrics", metrics) == (200, "up 1\n")
    assert served.get("/v1/plan", metrics)[0] == 403
    local = urllib3.PoolManager().request("GET", f"http://127.0.0.1:{served.listeners.local_port}/metrics")
    assert local.status == 200


def test_a_new_certificate_counts_for_new_connections_and_a_wrong_one_for_none(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(names: list[str]) -> str:
        for path, content in zip((certificate, key), self_signed.make(names), strict=True):
            path.write_bytes(content)
        return fingerprint(certificate.read_text())

    first = write(["mac-1", "127.0.0.2"])
    served = serve(tls_certificate=certificate, tls_key=key)
    context = ssl.create_default_context(cafile=str(certificate))
    host, port = served.url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="mac-1") as open_connection,
    ):
        second = write(["mac-1", "127.0.0.2"])
        assert first != second
        assert served.shown() == second == served.listeners.fingerprint
        open_connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: mac-1\r\n\r\n")
        assert b"200" in open_connection.recv(100), "a connection that was open was to go on"
    key.write_text("half of a k")
    assert served.shown() == second == served.listeners.fingerprint
    assert write(["mac-1", "127.0.0.2"]) == served.shown()
    with pytest.raises(TlsFailed, match="is not a valid server certificate"):
        Certificate(certificate, certificate)


def test_the_agents_own_certificate_is_made_once_and_again_before_it_ends(tmp_path: Path) -> None:
    own = OwnCertificate(tmp_path, ("mac-1", "192.0.2.7", "2001:db8::7"))
    assert own.ensure() and not own.ensure()
    assert oct(own.key.stat().st_mode)[-3:] == "600"
    now = time.time()
    assert not own.ensure(now=now + 86400 * 700)
    before = own.certificate.read_bytes()
    assert own.ensure(now=now + 86400 * 800) and own.certificate.read_bytes() != before
    assert OwnCertificate(tmp_path, ("mac-1", "192.0.2.8")).ensure(), "another address takes another certificate"
    own.certificate.write_text("no certificate")
    assert own.ensure()
    clock = [0.0]
    shown = Certificate(own.certificate, own.key, own=own, clock=lambda: clock[0])
    own.certificate.unlink()
    first = shown.fingerprint
    shown.context()
    assert shown.fingerprint == first
    clock[0] = 4000.0
    shown.context()
    assert shown.fingerprint != first and own.certificate.exists()


def test_the_agent_reads_no_body_of_a_stranger_and_none_that_is_too_large(serve: Callable[..., Served]) -> None:
    served = serve()
    host, port = served.url.removeprefix("https://").split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for authorization, status in (("", b"401"), (f"Authorization: bearer {served.store.token()}\r\n", b"413")):
        head = f"PUT /v1/processes/a/b HTTP/1.1\r\n{authorization}Content-Length: 9000000\r\n\r\n"
        with context.wrap_socket(socket.create_connection((host, int(port)), timeout=60)) as big:
            big.sendall(head.encode())
            assert status in big.recv(500), "the agent does not wait for a refused body"


class FailingDisk(Nothing):
    """A supervisor whose disk fails."""

    def list_desired(self) -> dict[str, Any]:
        raise OSError(errno.EIO, "Input/output error")


def test_an_error_of_the_agents_own_disk_is_answered_and_logged() -> None:
    api = Api(FailingDisk(), Nothing(), Nothing, lambda: "t", lambda: True, takes_plans=True)  # type: ignore[arg-type]
    server = HttpApi(api)
    server.start()
    try:
        url = f"http://127.0.0.1:{server.port}/v1/processes/prod/chat"
        with capture_logs() as logged:
            answer = urllib3.PoolManager().request("GET", url, headers={"Authorization": "Bearer t"}, retries=False)
        assert answer.status == 500
        assert answer.json()["reason"] == "InternalError"
        assert [line["event"] for line in logged if line["log_level"] == "error"] == ["Failed to answer a request"]
        # The agent logs no error for a client that disconnects in the middle of its body.
        with capture_logs() as logged:
            with socket.create_connection(("127.0.0.1", server.port)) as leaving:
                head = "PUT /v1/processes/prod/chat HTTP/1.1\r\nAuthorization: Bearer t\r\nContent-Length: 100\r\n\r\n{"
                leaving.sendall(head.encode())
            time.sleep(0.5)
        assert [line for line in logged if line["log_level"] not in ("debug", "info")] == []
    finally:
        server.stop()


def test_a_token_can_be_proven_to_the_agent_that_has_it_and_is_not_sent(serve: Callable[..., Served]) -> None:
    first, second = serve(), serve()
    token = first.store.token()
    fingerprint = first.listeners.fingerprint

    def ask(served: Served, path: str, header: str) -> int:
        with urllib3.PoolManager(cert_reqs="CERT_NONE", assert_fingerprint=served.listeners.fingerprint) as pool:
            return pool.request("GET", served.url + path, headers={"Authorization": header}, retries=False).status

    def header(key: str, to: str, path: str, method: str = "GET") -> str:
        return f"{SCHEME} {proof(key, fingerprint=to, method=method, path=path)}"

    assert ask(first, "/v1/nothing?a=1", header(token, fingerprint, "/v1/nothing?a=1")) == 404
    for wrong in (
        header("guess", fingerprint, "/v1/nothing"),
        header("", fingerprint, "/v1/nothing"),
        header(token, second.listeners.fingerprint, "/v1/nothing"),
        header(token, fingerprint, "/v1/other"),
        header(token, fingerprint, "/v1/nothing", "PUT"),
        f"{SCHEME} ",
        SCHEME,
    ):
        assert ask(first, "/v1/nothing", wrong) == 401, wrong
    # A signature for one agent is invalid at another agent, even if both have the same token.
    (second.store.root / "agent-token").write_text(token)
    assert ask(second, "/v1/nothing", header(token, fingerprint, "/v1/nothing")) == 401


def test_the_token_does_not_go_to_an_endpoint_that_a_status_names(tmp_path: Path) -> None:
    seen: list[str] = []

    class Stranger(BoundedHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

    own = OwnCertificate(tmp_path, ("mac",))
    certificate = Certificate(own.certificate, own.key, own=own)
    server = BoundedServer(("127.0.0.1", 0), Stranger, name="stranger", bounds=Bounds(), tls=certificate.context)
    server.start()
    (tmp_path / "token").write_text("of-another-host\n")
    process = {"metadata": {"namespace": "prod", "name": "chat"}, "spec": {"host": "mac", "service": "chat"}}
    url = f"https://127.0.0.1:{server.server_port}"
    try:
        status = {"endpoint": url, "tlsFingerprint": certificate.fingerprint}
        with pytest.raises(NoLog, match=r".*") as refused:
            log_on_host(process, {"status": status}, token_file=tmp_path / "token").read()
        assert "this agent's token" in refused.value.hint or refused.value.hint == ""
        assert len(seen) == 1
        assert "of-another-host" not in seen[0]
        assert seen[0].startswith(f"{SCHEME} ")
        for unpinned in ({"endpoint": url}, {"endpoint": url.replace("https", "http")}):
            with pytest.raises(NoLog, match="fingerprint"):
                log_on_host(process, {"status": unpinned}, token_file=tmp_path / "token").read()
        assert len(seen) == 1
    finally:
        server.stop()
