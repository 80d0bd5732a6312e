"""Follows the services of a cluster and gives the gateway their routes. Reads only.

While the API server is away, the last routes stay.

Started by `herdsman gateway`. Each change of a service or of its endpoints makes all routes anew, in one thread. A new
replica is asked for the names of its models, unless the service sleeps: a request would wake it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from gateway.cluster import routes
from gateway.cluster.adapters import declared_adapters
from gateway.cluster.routes import routes_of, service_name
from gateway.engines.backends import Route
from gateway.engines.questions import EngineQuestions
from gateway.engines.secret_reader import EngineSecrets
from gateway.names import ServiceName
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.engine_access import OPEN, EngineAccess, SecretName, access_of, requirements_of
from program.dialects.engine_keys import keys_of
from program.dialects.llmkube.parse.adapter import runtime_of
from program.dialects.registry import DIALECTS, LLMKUBE, is_part_of_another
from program.dialects.status.accepted_version import version_fields
from program.dialects.status.conditions import is_asleep

GATHER_S = 0.05
"""How long changes are gathered before the routes are made, and how often it is checked whether all is listed."""

log = structlog.get_logger(__name__)


class ClusterRoutes:
    """The routes of a cluster. Call `start`, then `stop`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        publish: Callable[[Iterable[Route]], None],
        namespaces: tuple[str, ...] = (),
        awaits_policies: bool = False,
    ) -> None:
        """`publish` gets all routes after each change. `namespaces` empty means all.

        `awaits_policies`: a version of a LoRAAdapter counts only after a loop has checked the policies.
        """
        self._awaits = awaits_policies
        self._publish = publish
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._is_first = True
        self._left_out: set[Kind] = set()
        """Kinds that the API server does not serve, or not to this gateway."""
        self._services = {
            name: Informer(
                client,
                info.kind,
                namespaces=namespaces or None,
                transform=functools.partial(_trimmed, name),
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
        self._adapters = Informer(
            client,
            kinds.LORA_ADAPTERS,
            namespaces=namespaces or None,
            transform=_trimmed_adapter,
            on_change=self._on_change,
            on_missing=self._leave_out,
            on_refused=functools.partial(self._on_refused, kinds.LORA_ADAPTERS),
        )
        self._followed = (*self._services.values(), self._adapters)
        self._engines = EngineQuestions(self._changed.set)
        self._secrets = EngineSecrets(client, changed=self._changed.set)
        self._access: dict[ServiceName, EngineAccess] = {}
        self._thread = threading.Thread(target=self._run, name="routes", daemon=True)

    def start(self) -> None:
        """Start to follow the cluster; returns at once."""
        for informer in (*self._followed, self._slices):
            informer.start()
        self._secrets.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop all threads."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()
        self._engines.close()
        self._secrets.stop()
        for informer in (*self._followed, self._slices):
            informer.stop()

    def _is_listed(self) -> bool:
        """Return whether all services and endpoints are known, so that no model seems to be missing."""
        return self._slices.has_synced and all(
            informer.has_synced or informer.kind in self._left_out for informer in self._followed
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
            # An empty list is no change.
            self._changed.wait(GATHER_S if self._is_first else self._engines.due_in_s())
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
        self._is_first = False
        services = [(name, cr) for name, informer in self._services.items() for cr in informer.list()]
        services = [(name, cr) for name, cr in services if not is_part_of_another(cr)]
        self._engines.keep_only({service_name(*each) for each in services})
        adapters = declared_adapters(self._adapters.list(), awaits=self._awaits)
        found = routes_of(services, self._slices.list(), self._engines.known(), adapters)
        made = self._with_access(services, found)
        self._publish(made)
        asleep = {service_name(*each) for each in services if is_asleep(each[1])}
        self._engines.ask(route for route in made if route.model.service not in asleep)

    def _with_access(self, services: Sequence[tuple[str, Json]], made: Sequence[Route]) -> list[Route]:
        """Add to each route how its engines are reached, and have the Secrets read that this needs."""
        wanted: dict[SecretName, frozenset[str]] = {}
        optional: set[SecretName] = set()
        secrets = self._secrets.known()
        access: dict[ServiceName, EngineAccess] = {}
        reached: list[Route] = []
        for (dialect, cr), route in zip(services, made, strict=True):
            service, tls = route.model.service, bool(route.tls_targets)
            needed = requirements_of(dialect, service.namespace, service.name, cr[_ENGINE_KEYS])
            names = needed.secrets(tls=tls)
            for name, keys in names.items():
                wanted[name] = wanted.get(name, frozenset()) | keys
            if needed.earlier_key is not None:
                optional.add(needed.earlier_key.secret)
            access[service] = access_of(needed, secrets, tls=tls, before=self._access.get(service, OPEN))
            again = functools.partial(self._secrets.read_again, tuple(names))
            reached.append(replace(route, access=access[service], on_refused=again if names else None))
        self._access = access
        self._secrets.want(wanted, optional)
        return reached


_ENGINE_KEYS = "engineKeys"
"""The part of a trimmed service with the result of `keys_of`."""


def _trimmed(dialect: str, obj: Json) -> Json:
    metadata = obj["metadata"]
    kept = ("name", "namespace", "annotations", "creationTimestamp", "ownerReferences", "resourceVersion", "uid")
    conditions = (obj.get("status") or {}).get("conditions") or []
    return {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "status": {"conditions": [each for each in conditions if each.get("type") == "Ready"]},
        _ENGINE_KEYS: keys_of(dialect, obj),
        routes.DECLARED: routes.declared_name(dialect, obj),
        routes.RUNTIME: runtime_of(obj) if dialect == LLMKUBE else "",
    }


def _trimmed_adapter(obj: Json) -> Json:
    made, status = version_fields(obj), obj.get("status") or {}
    told = {"pods": status.get("pods") or [], "runtime": status.get("runtime") or ""}
    return {**made, "spec": obj.get("spec"), "status": {**made["status"], **told}}


def _trimmed_slice(obj: Json) -> Json:
    metadata = obj["metadata"]
    kept = ("name", "namespace", "labels", "resourceVersion", "uid")
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "ports": obj.get("ports"),
        "endpoints": [
            {key: each.get(key) for key in ("addresses", "conditions", "nodeName", "zone", "targetRef")}
            for each in obj.get("endpoints") or ()
        ],
    }
