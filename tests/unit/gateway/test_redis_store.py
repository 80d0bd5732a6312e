"""The addresses of stores by Redis's protocol, and servers that do not speak it. tests/contract has a real server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from gateway.accounting.redis_store import RedisStore
from gateway.accounting.resp import RespBroken, RespConnection, RespError, Server
from gateway.accounting.stores import StoreAway, StoreInvalid, configured
from tests.support.raw_engine import RawEngine


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], int]]:
    """Start a server that sends the same bytes after each command, and ends then; return its port."""
    made: list[RawEngine] = []

    def start(reply: bytes) -> int:
        def talk(connection: socket.socket) -> None:
            if connection.recv(1 << 16):
                connection.sendall(reply)

        made.append(RawEngine(talk))
        return made[-1].port

    yield start
    for each in made:
        each.close()


def connection(port: int, password: str = "") -> RespConnection:
    return RespConnection(Server("127.0.0.1", port, password=password), connect_s=5.0, reply_s=5.0)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"+OK\r\n", b"OK"),
        (b":-7\r\n", -7),
        (b"$-1\r\n", None),
        (b"$4\r\na\r\nb\r\n", b"a\r\nb"),
        (b"*-1\r\n", None),
        (b"*3\r\n:1\r\n$0\r\n\r\n*1\r\n+x\r\n", [1, b"", [b"x"]]),
    ],
)
def test_replies_are_read(serve: Callable[[bytes], int], reply: bytes, expected: object) -> None:
    made = connection(serve(reply))
    assert made.call("PING", 1, b"\xff") == expected
    made.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$5\r\nab",
        b"$99999999999\r\n",
        b"*99999999999\r\n",
        b":x\r\n",
        b"*1\r\n" * 5000,
        b"+" + b"x" * (1 << 17),
        b"",
    ],
)
def test_what_is_no_reply_ends_the_connection(serve: Callable[[bytes], int], reply: bytes) -> None:
    made = connection(serve(reply))
    with pytest.raises(RespBroken):
        made.call("PING")


def test_an_error_has_a_code_and_a_password_is_not_repeated(serve: Callable[[bytes], int]) -> None:
    with pytest.raises(RespError) as caught:
        connection(serve(b"-ERR unknown command, with args beginning with: 'secret'\r\n"), password="secret")
    assert caught.value.code == "ERR"
    assert "secret" not in str(caught.value)
    with pytest.raises(RespError, match=r"^MOVED "):
        connection(serve(b"-MOVED 1 10.0.0.1:6379\r\n")).call("GET", "a")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
        ("valkey://localhost:7000/3", "redis://localhost:7000/3"),
        ("rediss://me:secret@db.example:6380", "redis://db.example:6380/0"),
        ("redis://:secret@db.prod.svc/1?tls=disable", "redis://db.prod.svc:6379/1"),
        ("rediss+cluster://me:secret@a.example,b.example:7000", "redis+cluster://a.example:6379,b.example:7000"),
        ("valkey+cluster://[::1]:7000,127.0.0.1", "redis+cluster://::1:7000,127.0.0.1:6379"),
        (
            "valkeys+sentinel://:secret@a.example,b.example:7/main",
            "redis+sentinel://a.example:26379,b.example:7/main/0",
        ),
        ("redis+sentinel://127.0.0.1/main/2", "redis+sentinel://127.0.0.1:26379/main/2"),
    ],
)
def test_an_address_names_the_server(url: str, name: str) -> None:
    found = configured({"HERDSMAN_GATEWAY_STORE": url})
    assert isinstance(found, RedisStore)
    assert found.name == name
    assert "secret" not in repr(vars(found))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://db.example", "rediss://"),
        ("redis://:secret@10.0.0.1", "plain text"),
        ("redis://127.0.0.1:secret", "valid address"),
        ("redis://127.0.0.1/secret", "valid address"),
        ("redis://me:secret@[::1", "valid address"),
        ("redis://me:secret\u2100@127.0.0.1", "valid address"),
        ("redis://127.0.0.1?password=secret", "valid address"),
        ("rediss://", "valid address"),
        ("rediss://a.example,b.example:secret", "valid address"),
        ("rediss://a.example,b.example", "rediss://HOST:6379/0"),
        ("redis+cluster://127.0.0.1,10.0.0.1:7000", r"write rediss\+cluster://"),
        ("redis+sentinel://:secret@db.example/main", r"write rediss\+sentinel://"),
        ("rediss+cluster://a.example,", "valid address"),
        ("rediss+cluster://a.example/3", "valid address"),
        ("rediss+sentinel://a.example", "MASTER"),
        ("rediss+sentinel://a.example/main/0/secret", "valid address"),
        ("rediss://db.example?ca_file=/nowhere/ca.crt", "ca_file"),
    ],
)
def test_a_wrong_address_is_refused_without_its_secrets(url: str, words: str) -> None:
    with pytest.raises(StoreInvalid, match=words) as caught:
        configured({"HERDSMAN_GATEWAY_STORE": url})
    assert "secret" not in str(caught.value)


def test_a_cluster_does_not_lead_beyond_loopback_in_plain_text(serve: Callable[[bytes], int]) -> None:
    for reply, why in (
        (b"-MOVED 1 10.0.0.1:6379\r\n", "without TLS"),
        (b"-MOVED 1 ?:6379\r\n", "does not say"),
        (b"-CLUSTERDOWN Hash slot not served\r\n", "CLUSTERDOWN"),
        (b"-ASK 1 10.0.0.1:6379\r\n", "without TLS"),
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "is moving"),
    ):
        with pytest.raises(StoreAway, match=why):
            RedisStore(f"redis+cluster://127.0.0.1:{serve(reply)}").spent("key/")


def test_nodes_that_name_each_other_are_not_followed_for_ever() -> None:
    def talk(connection: socket.socket) -> None:
        if connection.recv(1 << 16):
            connection.sendall(b"-MOVED 1 :%d\r\n" % node.port)

    node = RawEngine(talk)
    with pytest.raises(StoreAway, match="name each other"):
        RedisStore(f"redis+cluster://127.0.0.1:{node.port}").spent("key/")
    node.close()


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"*-1\r\n", "knows no master `main`"),
        (b"*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n", "without TLS"),
        (b"-NOAUTH Authentication required.\r\n", "NOAUTH"),
    ],
)
def test_a_sentinel_without_a_usable_master_counts_as_away(
    serve: Callable[[bytes], int], reply: bytes, why: str
) -> None:
    with pytest.raises(StoreAway, match=why):
        RedisStore(f"redis+sentinel://127.0.0.1:{serve(reply)}/main", environment={}).spent("key/")


def test_a_server_that_answers_with_something_else_counts_as_away(serve: Callable[[bytes], int]) -> None:
    for reply in (b"+OK\r\n", b"*1\r\n$1\r\nx\r\n", b"-LOADING data\r\n"):
        with pytest.raises(StoreAway):
            RedisStore(f"redis://127.0.0.1:{serve(reply)}").spent("key/")
