"""One watch: a response that is read event by event and can be ended from another thread.

Made by `KubeClient.watch`, read by `kubeapi.informer`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import urllib3
import urllib3.exceptions

from kubeapi.errors import Unreachable, error_of_status
from kubeapi.kinds import Kind


class Watch(Iterator[tuple[str, dict[str, Any]]]):
    """An iterator of (type, object) that ends when the server ends the stream or `stop()` is called."""

    def __init__(self, response: urllib3.BaseHTTPResponse, kind: Kind) -> None:
        self._response = response
        self._kind = kind
        self._stopped = False
        self._events = self._read()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> tuple[str, dict[str, Any]]:
        return next(self._events)

    def stop(self) -> None:
        """End the stream now; a thread that waits for the next event wakes up and sees the end. Idempotent."""
        self._stopped = True
        # Refuses once the response was read to its end, which is what is wanted anyway.
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()

    def _read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            for line in self._lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise error_of_status(event["object"])
                yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # ValueError: a line cut short, or a file closed under the reader.
            if not self._stopped:
                silent = isinstance(error, urllib3.exceptions.ReadTimeoutError)
                message = f"the watch of {self._kind.plural} broke off: {error}"
                raise Unreachable(message, reset=True, timed_out=silent) from error
        finally:
            # A stream that was not read to its end must not go back to the pool.
            self._response.close()
            self._response.release_conn()

    def _lines(self) -> Iterator[bytes]:
        pending: list[bytes] = []
        for chunk in self._response.stream():
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                pending.append(part)
                line = b"".join(pending)
                pending.clear()
                if line:
                    yield line
            if rest:
                pending.append(rest)
