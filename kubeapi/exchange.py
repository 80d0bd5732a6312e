"""One HTTP answer, read up to a size and a time. Made by `kubeapi.rest`, evaluated by `kubeapi.pods`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import urllib3
import urllib3.exceptions

from kubeapi.errors import Unreachable

_PIECE = 65536


@dataclass(frozen=True)
class Exchange:
    """One HTTP answer. `whole` is False if the body was longer than the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True


def read_bounded(response: urllib3.BaseHTTPResponse, max_bytes: int, deadline: float) -> tuple[bytes, bool]:
    """Return the body of a response and whether it is complete. A longer body's connection is closed.

    `deadline` is in monotonic seconds. It also limits a server that sends single bytes now and then. Raises Unreachable
    if the body breaks off or does not end in time.
    """
    body = bytearray()
    try:
        while len(body) <= max_bytes:
            if time.monotonic() > deadline:
                raise Unreachable("the answer did not end in time", timed_out=True)
            piece = response.read1(min(_PIECE, max_bytes + 1 - len(body)))
            if not piece:
                response.release_conn()
                return bytes(body), True
            body += piece
        response.close()
        return bytes(body[:max_bytes]), False
    except urllib3.exceptions.ReadTimeoutError as error:
        response.close()
        raise Unreachable("the answer did not end in time", timed_out=True) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        response.close()
        raise Unreachable(f"the answer ended early: {error}", reset=True) from error
    except Unreachable:
        response.close()
        raise
