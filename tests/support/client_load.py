"""Clients that send completion requests to a service in a loop, and count the incomplete responses."""

from __future__ import annotations

import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.node import Address


@dataclass
class Load:
    """The results of all clients so far."""

    answered: int = 0
    lost: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def sent(self) -> int:
        return self.answered + len(self.lost)

    def note(self, problem: str) -> None:
        with self.lock:
            if problem:
                self.lost.append(problem)
            else:
                self.answered += 1


@dataclass
class _Client:
    """One client: `keeps` reuses its connection, as libraries with a pool do; `streams` requests streams.

    llama-server closes a connection after each stream without announcing it, so streaming clients keep no connection.
    """

    address: Address
    tokens: int
    keeps: bool
    streams: bool
    timeout_s: float
    _connection: http.client.HTTPConnection | None = None

    def ask(self) -> str:
        """Request a completion. Return a description of the failure, or an empty string."""
        began = time.monotonic()
        try:
            problem = self._ask()
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        kind = "stream" if self.streams else f"whole answer, {'kept' if self.keeps else 'new'} connection"
        if problem or self.streams or not self.keeps:
            self.close()
        return f"{kind}, after {time.monotonic() - began:.1f} s: {problem}" if problem else ""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self) -> str:
        body = {
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": self.tokens,
            "temperature": 0,
            "stream": self.streams,
        }
        connection = self._connected()
        headers = {
            "Content-Type": "application/json",
            "Connection": "keep-alive" if self.keeps and not self.streams else "close",
        }
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            return f"{answer.status} {text[:200]}"
        if self.streams:
            return "" if text.rstrip().endswith("data: [DONE]") else f"the stream ends with {text[-80:]!r}"
        return "" if json.loads(text)["choices"] else "no choice"

    def _connected(self) -> http.client.HTTPConnection:
        """Connect, or return the open connection unless its server has closed it."""
        known = self._connection
        if known is not None and known.sock is not None and not select.select([known.sock], [], [], 0)[0]:
            return known
        self.close()
        connection = http.client.HTTPConnection(self.address.host, self.address.port)
        connection.sock = socket.socket()
        connection.sock.settimeout(self.timeout_s)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.address.device.encode())
        connection.sock.connect((self.address.host, self.address.port))
        self._connection = connection
        return connection


@contextmanager
def under_load(address: Address, *, clients: int = 8, tokens: int = 64, timeout_s: float = 60.0) -> Iterator[Load]:
    """Run clients while the block lasts. Half of them request streams; half of the others keep their connections."""
    load, done = Load(), threading.Event()

    def work(number: int) -> None:
        client = _Client(address, tokens, keeps=bool(number & 1), streams=bool(number & 2), timeout_s=timeout_s)
        while not done.is_set():
            load.note(client.ask())
        client.close()

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(work, number) for number in range(clients)]
        try:
            yield load
        finally:
            done.set()
        for each in running:
            each.result()
