"""One answer as it came, read up to a size and a time. Made by `kubeapi.rest`, judged by `kubeapi.pods`."""

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
    """An answer as it came: `whole` is False when the body was longer than what was to be read of it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True


def read_bounded(response: urllib3.BaseHTTPResponse, max_bytes: int, deadline: float) -> tuple[bytes, bool]:
    """Read a body and tell whether that was all of it. What is left of a longer one goes with the connection.

    `deadline` is in monotonic seconds: a server that sends a byte now and then is no reason to wait for ever. Raises
    Unreachable when the body breaks off or does not end in time.
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
        raise Unreachable(f"the answer broke off: {error}", reset=True) from error
    except Unreachable:
        response.close()
        raise
