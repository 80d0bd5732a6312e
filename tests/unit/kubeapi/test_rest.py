"""The client of the Kubernetes API with a scripted HTTP server: retries, throttling, invalid responses, cut streams.

tests/apiserver uses a real API server, which does not produce these faults.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kubeapi import errors, kinds
from kubeapi.client import KubeClient
from kubeapi.config import Access, Endpoint

Answer = Callable[[BaseHTTPRequestHandler], None]


class Script:
    """The next answers, one for each request, and the requests that arrived."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.groups: list[list[str]] = []
        self.url = ""


def status(code: int, reason: str, **headers: str) -> Answer:
    return body(code, {"kind": "Status", "code": code, "reason": reason, "message": reason.lower()}, **headers)


def body(code: int, obj: Any, **headers: str) -> Answer:
    data = obj if isinstance(obj, bytes) else json.dumps(obj).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def reset(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def chunks(*parts: bytes, hold_s: float = 0.0, held: threading.Event | None = None, finish: bool = True) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for part in parts:
            handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            handler.wfile.flush()
            time.sleep(0.01)
        time.sleep(hold_s)
        if held is not None:
            held.wait(60.0)
        if finish:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            reset(handler)

    return answer


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.groups.append(self.headers.get_all("Impersonate-Group") or [])
            script.asked.append((self.command, self.path, dict(self.headers)))
            script.answers.pop(0)(self)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815 - the names that http.server looks up

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore errors, since clients close connections on purpose."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield script
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def client(script: Script, slept: list[float]) -> Iterator[KubeClient]:
    tokens = iter(["old", "new", "newer", "newest"])

    def load() -> Endpoint:
        token = next(tokens)
        return Endpoint(script.url, authorization=lambda: f"Bearer {token}")

    client = KubeClient(Access(load), sleep=slept.append)
    yield client
    client.close()


POD = {"kind": "Pod", "metadata": {"name": "a"}}


def test_a_read_is_repeated_once_when_the_connection_breaks(client: KubeClient, script: Script) -> None:
    script.answers = [reset, body(200, POD)]
    assert client.get(kinds.PODS, "p", "a") == POD
    assert client.requests_total == 2


def test_a_read_that_breaks_twice_is_unreachable(client: KubeClient, script: Script) -> None:
    script.answers = [reset, reset, body(200, POD)]
    with pytest.raises(errors.Unreachable):
        client.get(kinds.PODS, "p", "a")
    assert len(script.answers) == 1


def test_a_write_is_never_repeated(client: KubeClient, script: Script) -> None:
    script.answers = [reset, body(200, POD)]
    with pytest.raises(errors.Unreachable):
        client.apply(kinds.PODS, "p", POD, field_manager="m")
    assert len(script.answers) == 1


def test_throttling_is_obeyed_for_as_long_as_the_server_says(
    client: KubeClient, script: Script, slept: list[float]
) -> None:
    script.answers = [
        status(429, "TooManyRequests", Retry_After="2"),
        status(429, "TooManyRequests"),
        body(201, POD),
    ]
    assert client.create(kinds.PODS, "p", POD) == POD
    assert slept == [2.0, 1.0]


def test_throttling_is_not_obeyed_for_ever(client: KubeClient, script: Script, slept: list[float]) -> None:
    script.answers = [status(429, "TooManyRequests", Retry_After="12") for _ in range(5)]
    with pytest.raises(errors.TooManyRequests) as refused:
        client.get(kinds.PODS, "p", "a")
    assert slept == [12.0, 12.0]
    assert refused.value.retry_after_s == 12.0


def test_the_limit_of_a_call_also_limits_its_throttling(client: KubeClient, script: Script, slept: list[float]) -> None:
    script.answers = [status(429, "TooManyRequests", Retry_After="3")]
    with pytest.raises(errors.TooManyRequests):
        client.request("GET", "/x", timeout_s=2.0)
    assert slept == []


def test_credentials_are_read_again_once_after_a_401(client: KubeClient, script: Script) -> None:
    script.answers = [status(401, "Unauthorized"), body(200, POD), status(401, "Unauthorized")]
    assert client.get(kinds.PODS, "p", "a") == POD
    assert [headers["Authorization"] for _, _, headers in script.asked] == ["Bearer old", "Bearer new"]
    with pytest.raises(errors.Unauthorized):
        client.get(kinds.PODS, "p", "a")


def test_a_watch_reads_credentials_again_too(client: KubeClient, script: Script) -> None:
    script.answers = [status(401, "Unauthorized"), chunks(event("ADDED", "a", 2))]
    assert watch(client) == [("ADDED", "a")]
    assert script.asked[-1][2]["Authorization"] == "Bearer new"


def test_requests_that_are_refused_together_all_use_the_credentials_that_one_of_them_read(
    client: KubeClient, script: Script
) -> None:
    together = threading.Barrier(3)

    def refuse(handler: BaseHTTPRequestHandler) -> None:
        together.wait(10)
        status(401, "Unauthorized")(handler)

    script.answers = [refuse, refuse, refuse, body(200, POD), body(200, POD), body(200, POD)]
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(client.get(kinds.PODS, "p", "a"))
        except errors.ApiError as error:
            found.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [POD, POD, POD]
    assert sorted(headers["Authorization"] for _, _, headers in script.asked[3:]) == ["Bearer new"] * 3


def test_whom_to_act_as_is_told_with_every_request(script: Script) -> None:
    acting = (("Impersonate-User", "ann"), ("Impersonate-Group", "dev"), ("Impersonate-Group", "ops"))
    client = KubeClient(Access(lambda: Endpoint(script.url, impersonation=acting)))
    script.answers = [body(200, POD), chunks(event("ADDED", "a", 2)), chunks(b"line"), body(200, POD), body(200, POD)]
    client.get(kinds.PODS, "p", "a")
    assert watch(client) == [("ADDED", "a")]
    assert b"".join(client.stream("/log", silence_s=5)) == b"line"
    client.exchange("POST", "/proxy", timeout_s=5, max_bytes=1000)
    client.patch(kinds.PODS, "p", "a", {})
    assert len(script.groups) == 5
    assert all(found == ["dev", "ops"] for found in script.groups)
    assert {headers["Impersonate-User"] for _, _, headers in script.asked} == {"ann"}


def test_credentials_that_cannot_be_had_are_a_401(script: Script) -> None:
    def no_token() -> str:
        raise errors.ConfigInvalid("the token cannot be read: gone")

    client = KubeClient(Access(lambda: Endpoint(script.url, authorization=no_token)))
    with pytest.raises(errors.Unauthorized, match="gone"):
        client.get(kinds.PODS, "p", "a")
    assert script.asked == []


@pytest.mark.parametrize("data", [b"<html>", b"[1]", b'"x"'])
def test_an_answer_that_is_no_object_is_an_error_of_ours(client: KubeClient, script: Script, data: bytes) -> None:
    script.answers = [body(200, data)]
    with pytest.raises(errors.Unreachable):
        client.request("GET", "/x")


def test_a_redirect_is_not_followed(client: KubeClient, script: Script) -> None:
    script.answers = [body(302, POD, Location="/elsewhere")]
    client.request("GET", "/x")
    assert [path for _, path, _ in script.asked] == ["/x"]


def test_a_server_that_is_not_there_is_unreachable_and_named() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = KubeClient(Access(lambda: Endpoint(f"http://127.0.0.1:{port}")))
    with pytest.raises(errors.Unreachable, match=str(port)):
        client.get(kinds.PODS, "p", "a")


def test_an_answer_that_takes_too_long_is_unreachable(client: KubeClient, script: Script) -> None:
    script.answers = [lambda handler: time.sleep(0.5)]
    with pytest.raises(errors.Unreachable):
        client.request("POST", "/x", body={}, timeout_s=0.1)


def test_each_request_is_counted_with_its_verb_and_status(client: KubeClient, script: Script) -> None:
    seen: list[tuple[str, int]] = []
    client.on_request = lambda verb, code: seen.append((verb, code))
    script.answers = [body(200, POD), status(404, "NotFound"), reset]
    client.get(kinds.PODS, "p", "a")
    with pytest.raises(errors.NotFound):
        client.delete(kinds.PODS, "p", "a")
    with pytest.raises(errors.Unreachable):
        client.create(kinds.PODS, "p", POD)
    assert seen == [("GET", 200), ("DELETE", 404), ("POST", 0)]


def event(kind: str, name: str, version: int) -> bytes:
    obj = {"metadata": {"name": name, "resourceVersion": str(version)}}
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def watch(client: KubeClient, inactivity_s: float = 30.0) -> list[tuple[str, str]]:
    with_name = client.watch(kinds.PODS, "p", resource_version="1", timeout_s=5, inactivity_s=inactivity_s)
    return [(kind, obj["metadata"]["name"]) for kind, obj in with_name]


def test_events_may_be_cut_anywhere_by_the_transport(client: KubeClient, script: Script) -> None:
    stream = event("ADDED", "a", 2) + event("MODIFIED", "a", 3) + event("DELETED", "ü", 4)
    script.answers = [chunks(*(stream[i : i + 7] for i in range(0, len(stream), 7)))]
    assert watch(client) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "ü")]


def test_an_expired_version_is_gone_whether_told_by_status_or_by_event(client: KubeClient, script: Script) -> None:
    expired = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    script.answers = [status(410, "Expired"), chunks(json.dumps(expired).encode() + b"\n")]
    for _ in range(2):
        with pytest.raises(errors.Gone):
            watch(client)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(chunks(event("ADDED", "a", 2), finish=False), id="cut"),
        pytest.param(chunks(event("ADDED", "a", 2), hold_s=2.0), id="silent"),
        pytest.param(chunks(b'{"type": "ADD\n'), id="garbled"),
    ],
)
def test_a_stream_that_breaks_or_falls_silent_is_unreachable(
    client: KubeClient, script: Script, answer: Answer
) -> None:
    script.answers = [answer]
    with pytest.raises(errors.Unreachable):
        watch(client, 0.5)


def test_a_waiting_watch_ends_when_it_is_stopped_from_outside(client: KubeClient, script: Script) -> None:
    held = threading.Event()
    script.answers = [chunks(event("ADDED", "a", 2), held=held)]
    stream = client.watch(kinds.PODS, "p", timeout_s=60, inactivity_s=60)
    assert next(stream)[0] == "ADDED"
    threading.Timer(0.05, stream.stop).start()
    started = time.monotonic()
    assert list(stream) == []
    assert time.monotonic() - started < 30, "the server holds it for longer"
    held.set()
    stream.stop()
