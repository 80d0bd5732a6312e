"""Sends JSON requests to a daemon on this machine. Used by `ollama` and `omlx`; errors become DaemonFailed."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent.contract import ProcessReason
from agent.server.daemons.port import DaemonFailed

ASK_TIMEOUT_S = 5.0
_MAX_BYTES = 4 * 1024 * 1024
_MAX_LINE = 1024 * 1024


@dataclass(frozen=True)
class DaemonResponse:
    status: int
    value: Any
    """The parsed JSON. None: the body was not JSON."""
    text: str

    def error_text(self) -> str:
        """Return status and error message, in the daemon's words if it sent any."""
        value = self.value
        for part in ("error", "detail", "message"):
            said = value.get(part) if isinstance(value, dict) else None
            if isinstance(said, dict):
                said = said.get("message")
            if said:
                return f"{self.status} {said}"
        return f"{self.status} {self.text[:300]}".rstrip()


class DaemonConnection:
    """Requests to one address. Another thread can interrupt them."""

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.port = port
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()
        self._interrupted: set[http.client.HTTPConnection] = set()

    def ask(self, method: str, path: str, body: Any = None, *, timeout_s: float = ASK_TIMEOUT_S) -> DaemonResponse:
        """Send one request. Raises DaemonFailed if no response arrives."""
        with self._request(method, path, body, timeout_s) as response:
            data = response.read(_MAX_BYTES)
        text = data.decode("utf-8", "replace").strip()
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        return DaemonResponse(response.status, value, " ".join(text.split()))

    def lines(self, path: str, body: Any, *, stall_s: float) -> Iterator[DaemonResponse]:
        """POST, and yield each line of the response as it arrives, one JSON value per line. Raises DaemonFailed."""
        with self._request("POST", path, body, stall_s) as response:
            while line := response.readline(_MAX_LINE):
                text = line.decode("utf-8", "replace").strip()
                if not text:
                    continue
                try:
                    value = json.loads(text)
                except ValueError:
                    value = None
                yield DaemonResponse(response.status, value, text)

    def interrupt(self) -> None:
        """Make all running requests fail now."""
        with self._lock:
            self._interrupted |= self._open
            sockets = [connection.sock for connection in self._open]
        for sock in sockets:
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _request(self, method: str, path: str, body: Any, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout_s)
        payload = None if body is None else json.dumps(body).encode()
        headers = {} if payload is None else {"Content-Type": "application/json"}
        with self._lock:
            self._open.add(connection)
        try:
            connection.connect()
            with self._lock:
                # While it was dialled, there was no socket for `interrupt` to shut down.
                if connection in self._interrupted:
                    raise ConnectionAbortedError("the request was interrupted")
            connection.request(method, path, payload, headers)
            yield connection.getresponse()
        except TimeoutError as error:
            raise self._failed(method, path, f"no answer within {timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(method, path, str(error) or type(error).__name__) from error
        finally:
            with self._lock:
                self._open.discard(connection)
                self._interrupted.discard(connection)
            connection.close()

    def _failed(self, method: str, path: str, why: str) -> DaemonFailed:
        at = f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
        return DaemonFailed(f"{method} {path} at {at}: {why}", reason=ProcessReason.DAEMON_UNREACHABLE)
