"""Asks engines for the names of their models, in threads of its own. Called by `cluster_routes`."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Set
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from agent.proxy.upstream import Target
from gateway.cluster.routes import EngineModels
from gateway.engines.backends import Route
from gateway.names import ServiceName
from program.dialects.engine_access import EngineAccess

AGAIN_S = 5.0
"""When an engine that did not answer is asked again."""
ANSWER_S = 5.0
ANSWER_MAX = 1 << 20
"""Most bytes of an engine's answer that are read."""
THREADS = 8

_Version = tuple[tuple[Target, ...], tuple[str, ...]]

log = structlog.get_logger(__name__)


class EngineQuestions:
    """Asks one replica of each service for its models, once, and again while it does not answer. Not thread-safe."""

    def __init__(self, answered: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`answered` is called in another thread when there is an answer."""
        self._answered = answered
        self._clock = clock
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="engine-models")
        self._asked: dict[ServiceName, _Version] = {}
        """The replicas and the state of their engines at the time of the last answer."""
        self._under_way: dict[ServiceName, tuple[Future[EngineModels | None], _Version]] = {}
        self._known: dict[ServiceName, EngineModels] = {}
        self._again_at: dict[ServiceName, float] = {}

    def known(self) -> dict[ServiceName, EngineModels]:
        """Return what the engines have said."""
        for service, (future, version) in list(self._under_way.items()):
            if not future.done():
                continue
            del self._under_way[service]
            if (said := future.result()) is None:
                self._again_at[service] = self._clock() + AGAIN_S
            else:
                self._known[service], self._asked[service] = said, version
        return self._known

    def keep_only(self, services: Set[ServiceName]) -> None:
        """Drop what is known of other services."""
        for known in (self._known, self._asked, self._again_at):
            for service in known.keys() - services:
                del known[service]

    def ask(self, wanted: Iterable[Route]) -> None:
        """Ask a replica of each service whose replicas or adapters changed, if requests can be sent to it."""
        now = self._clock()
        for route in wanted:
            service = route.model.service
            waits = service in self._under_way or self._again_at.get(service, 0.0) > now or route.access.problem
            version = route.targets, route.engine_state
            if route.targets and version != self._asked.get(service) and not waits:
                self._again_at.pop(service, None)
                target = route.targets[0]
                tls = target in route.tls_targets
                future = self._pool.submit(models_of, target, route.access, tls=tls)
                self._under_way[service] = (future, version)
                future.add_done_callback(lambda _: self._answered())
        # What is due now and was not asked has no replica, or its engine cannot be asked: nothing is to be done for it.
        self._again_at = {service: at for service, at in self._again_at.items() if at > now}

    def due_in_s(self) -> float | None:
        """Return when an engine is to be asked again, in seconds; None when none is."""
        return max(0.0, min(self._again_at.values()) - self._clock()) if self._again_at else None

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def models_of(target: Target, access: EngineAccess, *, tls: bool) -> EngineModels | None:
    """Ask an engine for its models. None when it does not answer; nothing is known of an engine without this path."""
    for key in access.keys or ("",):
        status, data = _asked(target, access, key, tls=tls)
        if status != 401:
            break
    if status >= 500 or status == 401:
        return None
    try:
        return EngineModels.read(json.loads(data)) if status == 200 else EngineModels()
    except (ValueError, RecursionError):
        return EngineModels()


def _asked(target: Target, access: EngineAccess, key: str, *, tls: bool) -> tuple[int, bytes]:
    """Return status and body of the answer; status 503 when none came."""
    connection = _Connection(target, access, tls=tls)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_MAX)
    except (OSError, http.client.HTTPException) as error:
        log.debug("An engine did not name its models", target=target, error=str(error))
        return 503, b""
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection to an address whose certificate is for another name."""

    def __init__(self, target: Target, access: EngineAccess, *, tls: bool) -> None:
        super().__init__(*target, timeout=ANSWER_S)
        self._access, self._tls = access, tls

    def connect(self) -> None:
        super().connect()
        if self._tls:
            assert self._access.tls is not None
            self.sock = self._access.tls.wrap_socket(self.sock, server_hostname=self._access.server_name)
