"""The bytes of a client are split into the same requests, whatever the sizes of the packets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.proxy.framing import MAX_HEAD, Malformed
from agent.proxy.incoming import Incoming

FIRST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
SECOND = b"PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
THIRD = b"GET /c HTTP/1.1\r\nHost: x\r\n\r\n"
SENT = FIRST + b"\r\n" + SECOND + THIRD


def read(pieces: list[bytes]) -> list[bytes]:
    """Read as many requests as possible after each piece; return the requests as they would be forwarded."""
    incoming, requests = Incoming(), []
    body = None
    for piece in pieces:
        incoming.add(piece)
        while incoming:
            if body is not None and not body.done:
                requests[-1] += incoming.next_part(body)
                continue
            found = incoming.next_request()
            if found is None:
                break
            request, data = found
            requests.append(data)
            body = request.body
    return requests


@given(st.lists(st.integers(0, len(SENT)), max_size=12))
def test_requests_are_the_same_however_their_bytes_come(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(SENT)]
    pieces = [SENT[start:end] for start, end in itertools.pairwise(edges) if end > start]
    assert read(pieces) == [FIRST, SECOND, THIRD]


def test_a_request_takes_nothing_of_the_next_one() -> None:
    incoming = Incoming()
    incoming.add(FIRST + THIRD)
    found = incoming.next_request()
    assert found is not None and found[1] == FIRST
    assert len(incoming) == len(THIRD)


@pytest.mark.parametrize("size", [MAX_HEAD + 1, 2 * MAX_HEAD])
def test_a_head_without_an_end_is_not_kept_for_ever(size: int) -> None:
    incoming = Incoming()
    incoming.add(b"GET / HTTP/1.1\r\nX: ")
    assert incoming.next_request() is None
    incoming.add(b"x" * size)
    with pytest.raises(Malformed) as told:
        incoming.next_request()
    assert told.value.status == 431


def test_what_is_cleared_is_gone() -> None:
    incoming = Incoming()
    incoming.add(FIRST)
    incoming.clear()
    assert not incoming
