"""Boundaries of HTTP messages: lengths, chunks, forwarded headers, and ambiguous messages that are refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.proxy.framing import (
    MAX_LINE,
    Body,
    Chunked,
    Malformed,
    Sized,
    UntilClose,
    read_request,
    read_response,
)

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


def head(*fields: bytes) -> bytes:
    return POST + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def test_a_head_goes_on_as_it_came() -> None:
    sent = head(b"Authorization: Bearer k", b"X-Odd:  two  spaces ", b"content-LENGTH: 3")
    read = read_request(sent)
    assert read.lines + b"\r\n" == sent
    assert isinstance(read.body, Sized) and read.body.left == 3
    assert read.keep_alive and not read.old and not read.idempotent


def test_headers_of_one_connection_do_not_go_on() -> None:
    read = read_request(
        head(b"Connection: keep-alive, X-Mine", b"Keep-Alive: timeout=5", b"X-Mine: 1", b"Upgrade: h2c", b"Accept: */*")
    )
    assert read.lines == POST + b"Accept: */*\r\n"


def test_no_client_has_the_length_or_the_key_removed() -> None:
    read = read_request(
        head(b"Connection: content-length, authorization, close", b"Content-Length: 3", b"Authorization: k")
    )
    assert b"Content-Length: 3\r\n" in read.lines and b"Authorization: k\r\n" in read.lines
    assert not read.keep_alive


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([b"Content-Length: 3", b"Content-Length: 4"], 400),
        ([b"Content-Length: 3, 4"], 400),
        ([b"Content-Length: 3", b"Content-Length: 3"], 400),
        ([b"Content-Length: +3"], 400),
        ([b"Content-Length: "], 400),
        ([b"Content-Length: 3", b"Transfer-Encoding: chunked"], 400),
        ([b"Transfer-Encoding: gzip, chunked"], 501),
        ([b"Transfer-Encoding: chunked, identity"], 501),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], 501),
        ([b"Transfer-Encoding : chunked"], 400),
        ([b" Folded: line"], 400),
        ([b"Bare: a\nContent-Length: 9"], 400),
        ([b"Bare: a\rb"], 400),
        ([b"No colon"], 400),
        ([b"Null: \x00"], 400),
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(fields: list[bytes], status: int) -> None:
    with pytest.raises(Malformed) as refused:
        read_request(head(*fields))
    assert refused.value.status == status


@pytest.mark.parametrize(
    "line",
    [
        b"GET /\r\n",
        b"GET  / HTTP/1.1\r\n",
        b"GET / HTTP/2.0\r\n",
        b"GET /a b HTTP/1.1\r\n",
        b"G\x00T / HTTP/1.1\r\n",
        b"\x16\x03\x01\r\n",
    ],
)
def test_a_line_that_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(Malformed):
        read_request(line + b"\r\n")


def test_tunnels_are_refused() -> None:
    with pytest.raises(Malformed) as refused:
        read_request(b"CONNECT x:443 HTTP/1.1\r\n\r\n")
    assert refused.value.status == 501


@pytest.mark.parametrize(
    ("method", "status", "fields", "kind"),
    [
        (b"GET", b"200 OK", b"Content-Length: 5\r\n", Sized),
        (b"GET", b"200 OK", b"Content-Length: 0\r\n", type(None)),
        (b"GET", b"200", b"Transfer-Encoding: Chunked\r\n", Chunked),
        (b"GET", b"200 OK", b"", UntilClose),
        (b"HEAD", b"200 OK", b"Content-Length: 5\r\n", type(None)),
        (b"GET", b"204 No Content", b"", type(None)),
        (b"GET", b"304 Not Modified", b"Content-Length: 5\r\n", type(None)),
        (b"POST", b"100 Continue", b"", type(None)),
    ],
)
def test_the_length_of_a_response(method: bytes, status: bytes, fields: bytes, kind: type[Body]) -> None:
    read = read_response(b"HTTP/1.1 " + status + b"\r\n" + fields + b"\r\n", method)
    assert isinstance(read.body, kind)
    assert read.keep_alive is (kind is not UntilClose)


def test_old_http_keeps_a_connection_only_when_asked() -> None:
    assert not read_request(b"GET / HTTP/1.0\r\n\r\n").keep_alive
    assert read_request(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keep_alive


chunks = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@given(chunks, st.binary(max_size=20), st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_a_chunked_body_ends_where_it_ends_however_it_is_cut(
    parts: list[bytes], after: bytes, cuts: list[int], trailers: bool
) -> None:
    whole = b"".join(b"%X;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n"
    whole += b"X-Sum: 1\r\n\r\n" if trailers else b"\r\n"
    stream = whole + after
    body, taken = Chunked(), 0
    edges = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    for start, end in itertools.pairwise(edges):
        if body.done:
            break
        taken = start + body.consume(stream[start:end])
    assert body.done
    assert taken == len(whole)


@given(st.integers(0, 50), st.binary(max_size=80))
def test_a_sized_body_takes_its_bytes_and_no_more(length: int, data: bytes) -> None:
    body = Sized(length)
    assert body.consume(data) == min(length, len(data))
    assert body.done is (len(data) >= length)


@pytest.mark.parametrize("line", [b"\r\n", b"-1\r\n", b"0x3\r\n", b"3 4\r\n", b"1" * 17 + b"\r\n", b"3\n"])
def test_a_chunk_without_a_clear_size_is_refused(line: bytes) -> None:
    with pytest.raises(Malformed):
        Chunked().consume(line)


def test_several_whole_chunks_are_read_at_once_with_extensions_and_bounds() -> None:
    body, data = Chunked(), b"3;a=b\r\nabc\r\n10\r\n0123456789abcdef\r\n2\r\nx"
    assert body.consume(data) == len(data)
    assert not body.between_chunks
    assert body.consume(b"y\r\n0\r\n\r\nnext") == len(b"y\r\n0\r\n\r\n")
    assert body.done
    with pytest.raises(Malformed, match="too long"):
        Chunked().consume(b"1;" + b"x" * MAX_LINE + b"\r\na\r\n")


def test_a_chunk_that_is_longer_than_it_says_is_refused() -> None:
    with pytest.raises(Malformed):
        Chunked().consume(b"3\r\nabcd\r\n")


def test_an_endless_line_is_refused() -> None:
    body = Chunked()
    for _ in range(MAX_LINE - 1):
        body.consume(b"1")
    with pytest.raises(Malformed):
        body.consume(b"1")
