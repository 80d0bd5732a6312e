"""The interface of the proxy: one thread with one event loop, and a listener for each service.

Used by `agent.server.sleep` and `automation.serving.sleep` from any of their threads. The state of each service
(`service`) belongs to the loop's thread; the methods here pass calls to that thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from agent.proxy.answers import ErrorCode
from agent.proxy.client import Client
from agent.proxy.limits import Limits
from agent.proxy.read_memory import keep_for_reads
from agent.proxy.service import Callbacks, Counts, Service
from agent.proxy.upstream import Target

T = TypeVar("T")

BACKLOG = 1024
SWEEP_S = 5.0
"""Interval for closing connections without a request, while there are connections."""
ANSWER_S = 10.0
"""Timeout of a call into the loop's thread, far longer than any call takes."""


class ProxyStopped(Exception):
    """The proxy's thread has ended."""


@dataclass(frozen=True)
class State:
    """The current state of one service, for metrics."""

    name: str
    held: int
    in_flight: int
    connections: int
    counts: Counts


class Proxy:
    """One thread with the listeners of many services. Thread-safe except for `stop`."""

    def __init__(self, name: str = "proxy") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._services: dict[str, Service] = {}
        self._servers: dict[str, asyncio.Server] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._stopped = False

    def start(self) -> None:
        keep_for_reads()
        self._thread.start()

    def stop(self) -> None:
        """Close all listeners, answer waiting requests with an error, cut off running requests, and end the thread."""
        if self._stopped or not self._thread.is_alive():
            return
        self._call_and_wait(self._close_all)
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)

    def open(self, name: str, address: str, port: int, limits: Limits, callbacks: Callbacks) -> int:
        """Listen for a service, which is asleep at first. Returns the port; the system chooses it if `port` is 0.

        Raises OSError if the address or port is not available, ValueError if the name already has a listener,
        ProxyStopped.
        """
        if name in self._services:
            raise ValueError(f"`{name}` has a listener already")
        listener = _listening(address, port)

        def opened() -> None:
            service = self._services[name] = Service(name, limits, callbacks, self._loop)
            task = self._loop.create_task(self._serve(service, listener))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        self._call_and_wait(opened)
        return int(listener.getsockname()[1])

    def close(self, name: str) -> None:
        """Close a service's listener. Waiting requests get a 503 response, running requests are cut off."""
        self._call_and_wait(lambda: self._close(name))

    def set_targets(self, name: str, targets: tuple[Target, ...]) -> None:
        """Send requests to these engines from now on."""
        self._call_service(name, lambda service: service.set_targets(targets))

    def set_asleep(self, name: str) -> None:
        """Hold requests; the first one wakes the service."""
        self._call_service(name, Service.set_asleep)

    def put_to_sleep(self, name: str) -> None:
        """Hold requests because the service was idle for long enough. Counts as a sleep."""
        self._call_service(name, Service.put_to_sleep)

    def set_starting(self, name: str) -> None:
        """Hold requests while the engine is starting."""
        self._call_service(name, Service.set_starting)

    def set_failed(self, name: str, reason: str) -> None:
        """Answer requests with 503 and this reason."""
        self._call_service(name, lambda service: service.set_failed(reason))

    def close_after_answers(self, name: str) -> None:
        """Close each connection after its response, so that clients connect again, to another address."""
        self._call_service(name, Service.close_after_answers)

    def set_limits(self, name: str, limits: Limits) -> None:
        self._call_service(name, lambda service: service.set_limits(limits))

    def requests_in_flight(self, name: str) -> int:
        """Return how many requests are being answered or wait. Takes no lock."""
        service = self._services.get(name)
        return service.in_flight if service is not None else 0

    def states(self) -> list[State]:
        """Return the state of every service."""
        if self._stopped or not self._thread.is_alive():
            return []
        return self._call_and_wait(
            lambda: [
                State(s.name, s.held, s.in_flight, len(s.clients), s.counts) for _, s in sorted(self._services.items())
            ]
        )

    # --- in the loop's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._serving: set[asyncio.Task[None]] = set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _serve(self, service: Service, listener: socket.socket) -> None:
        def client() -> Client:
            if self._sweep is None:
                self._sweep = self._loop.call_later(SWEEP_S, self._close_late)
            return Client(service)

        server = await self._loop.create_server(client, sock=listener, backlog=BACKLOG)
        if self._services.get(service.name) is service:
            self._servers[service.name] = server
        else:
            server.close()

    def _close(self, name: str) -> None:
        server = self._servers.pop(name, None)
        if server is not None:
            server.close()
        service = self._services.pop(name, None)
        if service is not None:
            service.close()

    def _close_all(self) -> None:
        for name in list(self._services):
            self._close(name)

    def _close_late(self) -> None:
        now = self._loop.time()
        clients = [client for service in self._services.values() for client in service.clients]
        for client in clients:
            client.close_if_late(now)
        self._sweep = self._loop.call_later(SWEEP_S, self._close_late) if clients else None

    def _call_service(self, name: str, act: Callable[[Service], None]) -> None:
        def call() -> None:
            service = self._services.get(name)
            if service is not None:
                act(service)

        if not self._stopped:
            self._loop.call_soon_threadsafe(call)

    def _call_and_wait(self, act: Callable[[], T]) -> T:
        if self._stopped:
            raise ProxyStopped("the proxy has been stopped")
        answer: Future[T] = Future()

        def call() -> None:
            try:
                answer.set_result(act())
            except Exception as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return answer.result(ANSWER_S)


def _listening(address: str, port: int) -> socket.socket:
    """Open a listening socket here, so that the caller gets any error immediately."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections that linger after a restart must not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


__all__ = ["Callbacks", "ErrorCode", "Limits", "Proxy", "ProxyStopped", "State", "Target"]
