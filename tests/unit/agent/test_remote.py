"""Guarded HTTP with a real server: allowed addresses, the meaning of responses, and reads of file headers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import gguf
import pytest

from agent.server.models import remote
from agent.server.models.header_probe import probe_header
from agent.server.models.source_access import BearerToken
from agent.sources import errors
from agent.sources.source_policy import SourcePolicy, is_public
from program.desired.web_address import WebAddress
from tests.support.model_server import File, FileServer, self_signed

FIXTURES = Path(__file__).resolve().parents[2] / "conformance" / "llmkube" / "fixtures"
LOOPBACK = SourcePolicy(allowed_remote_hosts=("127.0.0.0/8",))
at = WebAddress.parse
PLAIN = (FIXTURES / "plain-7b.Q4_K_M.gguf").read_bytes()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "198.18.0.1", "0.0.0.0",
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.0.1", "::", "::1", "fe80::1", "fc00::1", "fd12::1",
        "fec0::1", "ff02::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1",
        "2002:a00:1::1", "2001:0:1::1", "2001:db8::1", "::7f00:1",
    ],
)  # fmt: skip
def test_addresses_off_the_open_internet_are_refused(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "140.82.121.3", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are_not(address: str) -> None:
    assert is_public(ip_address(address))


def test_a_private_address_is_refused_before_anything_is_sent(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN))
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f000001"):
        with pytest.raises(errors.SourceRefused, match="allowed-remote-hosts"):
            probe_header(at(url.replace("127.0.0.1", host)), policy=SourcePolicy())
    assert server.requests == []


def test_a_redirect_to_a_private_address_is_refused(server: FileServer) -> None:
    # The first request is allowed by the name of its host alone. The redirect leads to the same server by its address.
    policy = SourcePolicy(allowed_remote_hosts=("localhost",))
    server.serve("/secret.gguf", File(PLAIN))
    url = server.serve("/x.gguf", File(redirect=server.url("/secret.gguf")), host="localhost")
    with pytest.raises(errors.SourceRefused):
        probe_header(at(url), policy=policy)
    assert [request.path for request in server.requests] == ["/x.gguf"]


def test_an_allowed_name_address_or_network_may_be_private(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN), host="localhost")
    for entry in ("LOCALHOST.", "127.0.0.1", "127.0.0.0/8"):
        assert remote.stat(at(url), policy=SourcePolicy(allowed_remote_hosts=("example.com", entry))).size_bytes == 544


def test_the_host_header_names_the_host_and_not_the_pinned_address(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN), host="localhost")
    remote.stat(at(url), policy=SourcePolicy(allowed_remote_hosts=("localhost",)))
    assert server.requests[0].headers["Host"] == f"localhost:{server.port}"


# --- redirects and credentials ----------------------------------------------------------------------------------------


def test_a_few_redirects_are_followed_and_many_are_not(server: FileServer) -> None:
    server.serve("/5", File(PLAIN))
    for number in range(5):
        server.serve(f"/{number}", File(redirect=f"/{number + 1}"))
    assert remote.stat(at(server.url("/0")), policy=LOOPBACK).size_bytes == 544
    server.serve("/loop", File(redirect="/loop"))
    with pytest.raises(errors.SourceUnexpected, match="redirects more than 5 times"):
        remote.stat(at(server.url("/loop")), policy=LOOPBACK)


def test_credentials_stay_with_their_host(server: FileServer) -> None:
    server.serve("/here", File(PLAIN))
    server.serve("/same", File(redirect="/here"))
    server.serve("/other", File(redirect=server.url("/here", host="localhost")))
    policy = SourcePolicy(allowed_remote_hosts=("127.0.0.1", "localhost"))
    for path in ("/same", "/other"):
        remote.stat(at(server.url(path)), policy=policy, signer=BearerToken("secret"))
    sent = [("Authorization" in request.headers, request.path) for request in server.requests]
    assert sent == [(True, "/same"), (True, "/here"), (True, "/other"), (False, "/here")]


@pytest.mark.parametrize(
    "location",
    ["http://me:secret@127.0.0.1:{port}/here", "http://127.0.0.1:{port}\\@huggingface.co/here", "http://:80/"],
)
def test_a_redirect_that_clients_read_differently_is_not_followed(server: FileServer, location: str) -> None:
    server.serve("/here", File(PLAIN))
    url = server.serve("/x", File(redirect=location.format(port=server.port)))
    with pytest.raises(errors.SourceRefused, match="redirects to an address") as caught:
        remote.stat(at(url), policy=LOOPBACK)
    assert "secret" not in caught.value.message
    assert [request.path for request in server.requests] == ["/x"]


def test_messages_show_no_signatures(server: FileServer) -> None:
    url = server.url("/nothing?X-Signature=abc")
    with pytest.raises(errors.SourceNotFound) as caught:
        remote.stat(at(url), policy=LOOPBACK)
    assert "abc" not in caught.value.message
    assert f"{server.port}/nothing" in caught.value.message


# --- the meaning of responses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "transient"),
    [
        (401, errors.SourceUnauthorized, False),
        (403, errors.SourceUnauthorized, False),
        (404, errors.SourceNotFound, False),
        (410, errors.SourceNotFound, False),
        (400, errors.SourceUnexpected, False),
        (429, errors.SourceUnreachable, True),
        (500, errors.SourceUnreachable, True),
        (503, errors.SourceUnreachable, True),
    ],
)
def test_a_status_has_a_type_that_says_whether_to_try_again(
    server: FileServer, status: int, error: type[errors.FileError], transient: bool
) -> None:
    url = server.serve("/x.gguf", File(PLAIN, statuses=[status]))
    with pytest.raises(error, match=str(status)) as caught:
        remote.stat(at(url), policy=LOOPBACK)
    assert caught.value.transient is transient


def test_a_refused_connection_and_an_unknown_name_are_unreachable(server: FileServer) -> None:
    with FileServer() as gone:
        url = gone.url("/x.gguf")
    with pytest.raises(errors.SourceUnreachable, match="Connection refused"):
        remote.stat(at(url), policy=LOOPBACK)
    with pytest.raises(errors.SourceUnreachable, match="does not resolve"):
        remote.stat(at("https://no-such-host.invalid/x.gguf"), policy=LOOPBACK)


def test_a_certificate_that_is_not_trusted_is_told_apart_from_a_broken_network(tmp_path: Path) -> None:
    context, pem = self_signed(tmp_path)
    with FileServer(tls=context) as server:
        url = server.serve("/x.gguf", File(PLAIN))
        with pytest.raises(errors.SourceUntrusted, match="certificate") as caught:
            remote.stat(at(url), policy=LOOPBACK)
        assert not caught.value.transient
        trusting = SourcePolicy(allowed_remote_hosts=("127.0.0.1", "localhost"), ca_file=str(pem))
        assert probe_header(at(url), policy=trusting).facts.name == "Plain 7B Chat"
        with pytest.raises(errors.SourceUntrusted, match="localhost"):
            remote.stat(at(server.url("/x.gguf", host="localhost")), policy=trusting)


def test_a_redirect_out_of_tls_is_refused(tmp_path: Path, server: FileServer) -> None:
    context, pem = self_signed(tmp_path)
    plain = server.serve("/x.gguf", File(PLAIN))
    with FileServer(tls=context) as secure:
        url = secure.serve("/x.gguf", File(redirect=plain))
        with pytest.raises(errors.SourceUntrusted, match="not protected by TLS"):
            remote.stat(at(url), policy=SourcePolicy(("127.0.0.1",), ca_file=str(pem)))
    assert server.requests == []


HOSTILE = (
    b"",
    b"\xff" * 300,
    b"HTTP/1.1 999 \r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nGGUF",
    b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nGGUF",
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nGGUF",
    b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 5-4/3\r\nContent-Length: 4\r\n\r\nGGUF",
    b"HTTP/1.1 206 Partial\r\nContent-Range: bytes " + b"1" * 5000 + b"\r\n\r\nGGUF",
    b"HTTP/1.1 206 Partial\r\nContent-Length: 4\r\n\r\nGGUF",
    b"HTTP/1.1 416 Range\r\nContent-Range: bytes */*\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nGGUF",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://a\x00b/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:99999/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://\xe4\xf6\xfc/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 Busy\r\nRetry-After: \xb2\r\nContent-Length: 0\r\n\r\n",
)


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_answer_is_a_typed_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.gguf"
        with pytest.raises(errors.FileError):
            probe_header(at(url), policy=LOOPBACK, timeout_s=2)
        listener.shutdown(socket.SHUT_RDWR)


# --- reads of file headers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("says_length", [True, False])
def test_a_header_is_read_with_and_without_ranges(server: FileServer, ranges: bool, says_length: bool) -> None:
    url = server.serve("/x.gguf", File(PLAIN, ranges=ranges, says_length=says_length))
    peek = probe_header(at(url), policy=LOOPBACK)
    assert (peek.facts.name, peek.facts.layer_count, peek.etag) == ("Plain 7B Chat", 32, '"v1"')
    assert peek.size_bytes == (544 if ranges or says_length else None)


def test_only_the_beginning_of_a_large_file_is_fetched(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN + bytes(64 << 20)))
    peek = probe_header(at(url), policy=LOOPBACK)
    assert peek.size_bytes == 544 + (64 << 20)
    assert server.sent("/x.gguf") <= 1 << 20


def test_a_long_header_is_read_over_several_ranges(server: FileServer, tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"token-{number:08d}" for number in range(150_000)])
    writer.add_file_type(15)
    writer.add_block_count(7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    url = server.serve("/x.gguf", File(path.read_bytes()))
    peek = probe_header(at(url), policy=LOOPBACK)
    assert (peek.facts.quantization, peek.facts.layer_count) == ("Q4_K_M", 7)
    assert [request.range for request in server.requests] == ["bytes=0-1048575", "bytes=1048576-5242879"]


def test_a_file_that_changes_between_two_ranges_is_noticed(server: FileServer) -> None:
    long = b"GGUF\x03\x00\x00\x00" + bytes(8) + (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"k"
    long += (9).to_bytes(4, "little") + (0).to_bytes(4, "little") + (3 << 20).to_bytes(8, "little") + bytes(3 << 20)
    url = server.serve("/x.gguf", File(long, new_etag_each_time=True))
    with pytest.raises(errors.SourceChanged):
        probe_header(at(url), policy=LOOPBACK)


@pytest.mark.parametrize("content", [b"", b"GG", PLAIN[:200], (FIXTURES / "notgguf.gguf").read_bytes()])
def test_what_is_no_gguf_file_is_named_so(server: FileServer, content: bytes) -> None:
    url = server.serve("/x.gguf", File(content))
    with pytest.raises(errors.GgufInvalid, match=r"/x\.gguf"):
        probe_header(at(url), policy=LOOPBACK)


def test_a_server_that_says_nothing_is_left_in_time(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN, stall=threading.Event()))
    began = time.monotonic()
    with pytest.raises(errors.SourceUnreachable):
        probe_header(at(url), policy=LOOPBACK, timeout_s=0.5)
    assert time.monotonic() - began < 3


def test_a_server_that_trickles_is_left_in_time(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN, bytes_per_s=60))
    began = time.monotonic()
    with pytest.raises(errors.SourceUnreachable, match="too slow"):
        probe_header(at(url), policy=LOOPBACK, timeout_s=0.5)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("beginning", "drop"), [(b"HTTP/1.1 200 OK\r\nX-A: ", b"a"), (b"", b"H"), (b"HTTP/1.1 200 OK\r\n\r\n", b"b")]
)
def test_the_time_of_a_look_counts_for_headers_and_body_alike(beginning: bytes, drop: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.sendall(beginning)
                for _ in range(100):
                    connection.sendall(drop)
                    time.sleep(0.1)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=trickle, args=[listener.accept()[0]], daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        url = at(f"http://127.0.0.1:{listener.getsockname()[1]}/x.gguf")
        began = time.monotonic()
        with pytest.raises(errors.SourceUnreachable, match=r"too slow|did not answer"):
            remote.fetch_small(url, policy=LOOPBACK, max_bytes=1000, timeout_s=0.6)
        assert time.monotonic() - began < 6
        with pytest.raises(errors.FileError):
            probe_header(url, policy=LOOPBACK, timeout_s=0.6)
        assert time.monotonic() - began < 9
        listener.shutdown(socket.SHUT_RDWR)


def test_a_small_file_is_fetched_whole_and_a_larger_one_is_not(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN))
    data, file = remote.fetch_small(at(url), policy=LOOPBACK, max_bytes=544)
    assert data == PLAIN
    assert file.etag == '"v1"'
    with pytest.raises(errors.SourceUnexpected, match="larger than 543"):
        remote.fetch_small(at(url), policy=LOOPBACK, max_bytes=543)


# --- local paths ------------------------------------------------------------------------------------------------------


def test_a_local_path_must_lie_below_a_root_also_when_links_are_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "x.gguf").write_bytes(PLAIN)
    (outside / "secret").write_bytes(b"s")
    (root / "link").symlink_to(outside / "secret")
    policy = SourcePolicy(allowed_host_path_roots=(str(root),))
    assert policy.allowed_path(str(root / "x.gguf")) == root / "x.gguf"
    for path in (outside / "secret", root / ".." / "outside" / "secret", root / "link", Path(f"{root}-other/x")):
        with pytest.raises(errors.SourceRefused):
            policy.allowed_path(str(path))
    with pytest.raises(errors.SourceNotFound):
        policy.allowed_path(str(root / "missing"))
    with pytest.raises(errors.SourceRefused):
        SourcePolicy().allowed_path(str(root / "x.gguf"))
    assert policy.path_is_allowed(str(root / "missing"))
    assert not policy.path_is_allowed(str(outside))


def test_a_slow_tokenizer_costs_only_what_it_would_have_told(server: FileServer, tmp_path: Path) -> None:
    path = tmp_path / "slow.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Slow")
    writer.add_file_type(15)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_block_count(7)
    writer.add_head_count(4)
    writer.add_token_list([f"token-{number:08d}" for number in range(150_000)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    url = server.serve("/x.gguf", File(path.read_bytes(), bytes_per_s=400_000))
    facts = probe_header(at(url), policy=LOOPBACK, timeout_s=4.0).facts
    assert (facts.name, facts.layer_count, facts.weights_bytes) == ("Slow", 7, None)


# --- credentials ------------------------------------------------------------------------------------------------------


def test_a_proof_goes_to_its_own_server_and_to_no_other(server: FileServer) -> None:
    with FileServer() as elsewhere:
        url = elsewhere.serve("/there.gguf", File(b"x"))
        server.serve("/here.gguf", File(redirect=server.url("/again.gguf")))
        server.serve("/again.gguf", File(redirect=url))
        remote.stat(at(server.url("/here.gguf")), policy=LOOPBACK, signer=BearerToken("t0ken"))
        assert [request.headers.get("Authorization") for request in server.requests] == ["Bearer t0ken"] * 2
        assert [request.headers.get("Authorization") for request in elsewhere.requests] == [None]


def test_certificates_that_cannot_be_read_are_named(server: FileServer, tmp_path: Path) -> None:
    policy = SourcePolicy(allowed_remote_hosts=("127.0.0.1",), ca_file=str(tmp_path / "gone.pem"))
    with pytest.raises(errors.SourceUntrusted, match=r"gone\.pem cannot be read"):
        remote.stat(at("https://127.0.0.1:1/x"), policy=policy)
