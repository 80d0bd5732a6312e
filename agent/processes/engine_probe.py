"""Checks over HTTP whether a process serves: its health, and one real completion.

Called by `agent.server.processes.worker` and `agent.client.ssh.probes`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from typing import Any, Protocol

HEALTH_TIMEOUT_S = 3.0


class Connect(Protocol):
    """Makes an HTTP connection that is not dialled yet."""

    def __call__(self, host: str, port: int, /, *, timeout: float) -> http.client.HTTPConnection: ...


class EngineProbe:
    """Sends one request at a time to one process. Each check returns None or a description of the failure."""

    def __init__(self, connect: Connect = http.client.HTTPConnection) -> None:
        """`connect(address, port, timeout=…)` makes the connection to the process, for example through SSH."""
        self._connect = connect
        self._connection: http.client.HTTPConnection | None = None
        self._interrupted = False

    def health(self, address: str, port: int, path: str, *, timeout_s: float = HEALTH_TIMEOUT_S) -> str | None:
        """GET the health path. Only status 200 is healthy; llama-server answers 503 while it loads."""
        status, body = self._request("GET", address, port, path, None, timeout_s)
        if status == 200:
            return None
        return _unexpected_answer(f"GET {path}", address, port, status, body)

    def completion(self, address: str, port: int, path: str, *, model: str = "", timeout_s: float) -> str | None:
        """POST the smallest real request. Any 2xx answer with content proves that the model computes.

        401 and 403 also count as serving: the process requires a key that the host does not have, and its health check
        has succeeded.
        """
        status, body = self._request("POST", address, port, path, smallest_request(path, model), timeout_s)
        if status in (401, 403):
            return None
        if 200 <= status < 300 and _has_content(body):
            return None
        return _unexpected_answer(f"POST {path}", address, port, status, body)

    def get(self, address: str, port: int, path: str, *, timeout_s: float) -> tuple[int, bytes]:
        """GET a path and return status and body. Status 0 means no answer, with the cause as the body."""
        return self._request("GET", address, port, path, None, timeout_s)

    def interrupt(self) -> None:
        """Make the current request fail now, and each further one until `resume`. Thread-safe."""
        self._interrupted = True
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            # Fails if the answer arrived at the same moment, which is fine.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def resume(self) -> None:
        """Allow requests again."""
        self._interrupted = False

    def _request(
        self, method: str, address: str, port: int, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> tuple[int, bytes]:
        """Make one request. Returns status 0, with the cause as the body, if no answer arrived."""
        self._connection = connection = self._connect(address, port, timeout=timeout_s)
        try:
            payload = json.dumps(body).encode() if body is not None else None
            headers = {"Content-Type": "application/json"} if payload else {}
            connection.connect()
            # `interrupt` sets this before it looks for the socket, so it finds the socket, or it is noticed here.
            if self._interrupted:
                return 0, b"the request was interrupted"
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            return response.status, response.read(65536)
        except TimeoutError:
            return 0, f"no answer within {timeout_s:g} s".encode()
        except (OSError, http.client.HTTPException) as error:
            return 0, (str(error) or type(error).__name__).encode()
        finally:
            self._connection = None
            connection.close()


def smallest_request(path: str, model: str = "") -> dict[str, Any]:
    """Return the smallest request for an OpenAI path: chat, completion, embedding or ranking.

    Without a model name, a server with one model uses that model. vLLM refuses any name but the one that it serves.
    """
    named = {"model": model} if model else {}
    if path.endswith("/chat/completions"):
        return {**named, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    if path.endswith("/embeddings"):
        return {**named, "input": "Hi"}
    if path.endswith(("/rerank", "/reranking")):
        return {**named, "query": "Hi", "documents": ["Hi"]}
    return {**named, "prompt": "Hi", "max_tokens": 1}


def _has_content(body: bytes) -> bool:
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    return isinstance(answer, dict) and any(answer.get(part) for part in ("choices", "data", "results", "content"))


def _unexpected_answer(request: str, address: str, port: int, status: int, body: bytes) -> str:
    at = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    text = " ".join(body.decode("utf-8", "replace").split())[:300]
    answer = f"{status} {text}".rstrip() if status else text
    return f"{request} at {at}: {answer}"
