"""Clients that reach the gateway by TLS."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.server.api.tls import TlsFailed
from automation.certificates.files import serving_files
from gateway.clients.listener_tls import listener_context, refusal
from tests.support.gateways import CHAT, Engine, Front
from tests.support.raw_engine import connected, read_head


def certify(directory: Path, name: str = "localhost") -> str:
    """Write a new certificate as a mount of a Secret changes it; return its authority in PEM."""
    files = serving_files((name,), ("127.0.0.1",), now=datetime.datetime.now(datetime.UTC))
    for file in ("tls.crt", "tls.key"):
        (directory / "next").write_bytes(files[file])
        os.replace(directory / "next", directory / file)
    return files["ca.crt"].decode()


def secured(port: int, authority: str, **limits: ssl.TLSVersion) -> ssl.SSLSocket:
    context = ssl.create_default_context(cadata=authority)
    for name, version in limits.items():
        setattr(context, name, version)
    return context.wrap_socket(connected(port), server_hostname="localhost")


def status_of(connection: socket.socket) -> bytes:
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    return read_head(connection)[0].split(b" ")[1]


Fronts = Callable[..., Front]


def test_requests_and_streams_come_over_tls(
    make_front: Fronts, make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    def stream(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (b"data: 1\n\n", b"data: [DONE]\n\n"):
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        connection.sendall(b"0\r\n\r\n")

    authority = certify(tmp_path)
    front = make_front(tls=listener_context(tmp_path / "tls.crt", tmp_path / "tls.key"))
    front.serve(chat=[make_engine(stream)])
    context = ssl.create_default_context(cadata=authority)
    connection = http.client.HTTPSConnection("localhost", front.port, context=context, timeout=10)
    for _ in range(2):
        connection.request("POST", CHAT, json.dumps({"model": "chat", "stream": True}))
        assert connection.getresponse().read() == b"data: 1\n\ndata: [DONE]\n\n"
    connection.close()


def test_a_new_certificate_is_shown_without_a_restart_and_open_connections_go_on(
    make_front: Fronts, tmp_path: Path
) -> None:
    before = certify(tmp_path)
    front = make_front(tls=listener_context(tmp_path / "tls.crt", tmp_path / "tls.key"))
    with secured(front.port, before) as first:
        assert status_of(first) == b"200"
        after = certify(tmp_path)
        with secured(front.port, after) as second:
            assert status_of(second) == b"200"
        assert status_of(first) == b"200"
    with pytest.raises(ssl.SSLCertVerificationError), connected(front.port) as plain:
        ssl.create_default_context(cadata=before).wrap_socket(plain, server_hostname="localhost")
    (tmp_path / "tls.crt").write_text("damaged")
    with secured(front.port, after) as third:
        assert status_of(third) == b"200", "the last valid certificate is used"


def test_idle_clients_do_not_hold_the_end_of_the_gateway(make_front: Fronts, tmp_path: Path) -> None:
    authority = certify(tmp_path)
    front = make_front(tls=listener_context(tmp_path / "tls.crt", tmp_path / "tls.key"))
    with secured(front.port, authority) as silent:
        assert status_of(silent) == b"200"
        began = time.monotonic()
        front.server.stop(grace_s=60)
        # It never confirms the end of TLS, which asyncio awaits for 30 seconds by default.
        assert time.monotonic() - began < 20


def test_versions_before_tls_1_2_are_refused(make_front: Fronts, tmp_path: Path) -> None:
    authority = certify(tmp_path)
    front = make_front(tls=listener_context(tmp_path / "tls.crt", tmp_path / "tls.key"))
    with secured(front.port, authority, maximum_version=ssl.TLSVersion.TLSv1_2) as client:
        assert client.version() == "TLSv1.2"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with connected(front.port) as plain, pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(plain)


def test_a_client_without_tls_gets_nothing(make_front: Fronts, tmp_path: Path) -> None:
    certify(tmp_path)
    front = make_front(tls=listener_context(tmp_path / "tls.crt", tmp_path / "tls.key"))
    with connected(front.port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in client.recv(100)


def test_files_without_a_certificate_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TlsFailed, match="cannot read"):
        listener_context(tmp_path / "tls.crt", tmp_path / "tls.key")
    certify(tmp_path)
    (tmp_path / "tls.key").write_text("no key")
    with pytest.raises(TlsFailed):
        listener_context(tmp_path / "tls.crt", tmp_path / "tls.key")


@pytest.mark.parametrize(
    ("address", "tls", "keys", "lacks"),
    [
        ("127.0.0.1", False, False, ""),
        ("::1", False, False, ""),
        ("0.0.0.0", True, True, ""),
        ("10.0.0.1", False, True, "--tls-cert"),
        ("::", True, False, "keys"),
    ],
)
def test_other_addresses_than_loopback_need_tls_and_keys(address: str, tls: bool, keys: bool, lacks: str) -> None:
    found = refusal(address, tls=tls, keys=keys)
    assert (found == "") == (lacks == "")
    assert lacks in found
