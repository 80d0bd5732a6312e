"""Follows the services of a cluster and gives the gateway their routes. Reads only.

While the API server is away, the last routes stay.

Started by `herdsman gateway`. Each change of a service or of its endpoints makes all routes anew, in one thread. A new
replica is asked for the names of its models, unless the service sleeps: a request would wake it.
"""

from __future__ import annotations

import functools
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Set
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from agent.proxy.upstream import Target
from gateway import routes
from gateway.backends import Route
from gateway.names import ServiceName
from gateway.routes import EngineModels, routes_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.registry import DIALECTS, is_part_of_another

GATHER_S = 0.05
"""How long changes are gathered before the routes are made."""
AGAIN_S = 5.0
"""When an engine that did not answer is asked again."""
ANSWER_S = 5.0
ANSWER_MAX = 1 << 20
"""Most bytes of an engine's answer that are read."""
THREADS = 8

log = structlog.get_logger(__name__)


class ClusterRoutes:
    """The routes of a cluster. Call `start`, then `stop`."""

    def __init__(
        self, client: KubeClient, *, publish: Callable[[Iterable[Route]], None], namespaces: tuple[str, ...] = ()
    ) -> None:
        """`publish` gets all routes after each change. `namespaces` empty means all."""
        self._publish = publish
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._left_out: set[Kind] = set()
        """Kinds that the API server does not serve, or not to this gateway."""
        self._services = {
            name: Informer(
                client,
                info.kind,
                namespaces=namespaces or None,
                transform=_trimmed,
                on_change=self._on_change,
                # Most clusters have one dialect. The CRDs of others may be installed later.
                on_missing=self._leave_out,
                on_refused=functools.partial(self._on_refused, info.kind),
            )
            for name, info in DIALECTS.items()
        }
        self._slices = Informer(
            client,
            kinds.ENDPOINT_SLICES,
            namespaces=namespaces or None,
            label_selector=routes.LABEL_SERVICE_NAME,
            transform=_trimmed_slice,
            on_change=self._on_change,
        )
        self._engines = EngineQuestions(self._changed.set)
        self._thread = threading.Thread(target=self._run, name="routes", daemon=True)

    def start(self) -> None:
        """Start to follow the cluster; returns at once."""
        for informer in (*self._services.values(), self._slices):
            informer.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop all threads."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()
        self._engines.close()
        for informer in (*self._services.values(), self._slices):
            informer.stop()

    def _is_listed(self) -> bool:
        """Return whether all services and endpoints are known, so that no model seems to be missing."""
        return self._slices.has_synced and all(
            informer.has_synced or informer.kind in self._left_out for informer in self._services.values()
        )

    def _leave_out(self, kind: Kind) -> None:
        self._left_out.add(kind)
        self._changed.set()

    def _on_refused(self, kind: Kind, error: ApiError) -> float:
        # The loop's role has the kinds of the dialects that it serves.
        if isinstance(error, Forbidden) and kind != kinds.INFERENCE_SERVICES:
            self._leave_out(kind)
        return 0.0

    def _on_change(self, old: Json | None, new: Json | None) -> None:  # noqa: ARG002 - the informer's signature
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.wait(self._engines.due_in_s())
            self._changed.clear()
            if self._stopping.is_set():
                return
            try:
                self._update()
            except Exception:
                # The gateway serves the last routes, and the next change is tried.
                log.exception("Could not read the routes of the cluster")
            self._stopping.wait(GATHER_S)

    def _update(self) -> None:
        if not self._is_listed():
            return
        services = [(name, cr) for name, informer in self._services.items() for cr in informer.list()]
        services = [(name, cr) for name, cr in services if not is_part_of_another(cr)]
        self._engines.keep_only({_name(cr) for _, cr in services})
        made = routes_of(services, self._slices.list(), self._engines.known())
        self._publish(made)
        asleep = {_name(cr) for _, cr in services if routes.is_asleep(cr)}
        self._engines.ask(route for route in made if route.model.service not in asleep)


class EngineQuestions:
    """Asks one replica of each service for its models, once, and again while it does not answer. Not thread-safe."""

    def __init__(self, answered: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`answered` is called in another thread when there is an answer."""
        self._answered = answered
        self._clock = clock
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="engine-models")
        self._asked: dict[ServiceName, tuple[Target, ...]] = {}
        """The replicas at the time of the last answer."""
        self._under_way: dict[ServiceName, tuple[Future[EngineModels | None], tuple[Target, ...]]] = {}
        self._known: dict[ServiceName, EngineModels] = {}
        self._again_at: dict[ServiceName, float] = {}

    def known(self) -> dict[ServiceName, EngineModels]:
        """Return what the engines have said."""
        for service, (future, targets) in list(self._under_way.items()):
            if not future.done():
                continue
            del self._under_way[service]
            if (said := future.result()) is None:
                self._again_at[service] = self._clock() + AGAIN_S
            else:
                self._known[service], self._asked[service] = said, targets
        return self._known

    def keep_only(self, services: Set[ServiceName]) -> None:
        """Drop what is known of other services."""
        for known in (self._known, self._asked, self._again_at):
            for service in known.keys() - services:
                del known[service]

    def ask(self, wanted: Iterable[Route]) -> None:
        """Ask a replica of each service whose replicas changed."""
        now = self._clock()
        for route in wanted:
            service = route.model.service
            waits = service in self._under_way or self._again_at.get(service, 0.0) > now
            if route.targets and route.targets != self._asked.get(service) and not waits:
                self._again_at.pop(service, None)
                future = self._pool.submit(models_of, route.targets[0])
                self._under_way[service] = (future, route.targets)
                future.add_done_callback(lambda _: self._answered())

    def due_in_s(self) -> float | None:
        """Return when an engine is to be asked again, in seconds; None when none is."""
        return max(0.0, min(self._again_at.values()) - self._clock()) if self._again_at else None

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def models_of(target: Target) -> EngineModels | None:
    """Ask an engine for its models. None when it does not answer; nothing is known of an engine without this path."""
    connection = http.client.HTTPConnection(*target, timeout=ANSWER_S)
    try:
        connection.request("GET", "/v1/models")
        answer = connection.getresponse()
        data = answer.read(ANSWER_MAX)
    except (OSError, http.client.HTTPException) as error:
        log.debug("An engine did not name its models", target=target, error=str(error))
        return None
    finally:
        connection.close()
    if answer.status >= 500:
        return None
    try:
        return EngineModels.read(json.loads(data)) if answer.status == 200 else EngineModels()
    except (ValueError, RecursionError):
        return EngineModels()


def _name(cr: Json) -> ServiceName:
    return ServiceName(cr["metadata"]["namespace"], cr["metadata"]["name"])


def _trimmed(obj: Json) -> Json:
    metadata = obj["metadata"]
    kept = ("name", "namespace", "annotations", "creationTimestamp", "ownerReferences", "resourceVersion", "uid")
    conditions = (obj.get("status") or {}).get("conditions") or []
    return {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "status": {"conditions": [each for each in conditions if each.get("type") == "Ready"]},
    }


def _trimmed_slice(obj: Json) -> Json:
    metadata = obj["metadata"]
    kept = ("name", "namespace", "labels", "resourceVersion", "uid")
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "ports": obj.get("ports"),
        "endpoints": [
            {"addresses": each.get("addresses"), "conditions": each.get("conditions")}
            for each in obj.get("endpoints") or ()
        ],
    }
