"""Reads from a cluster what a preview needs: the objects of services, and the facts that rendering depends on.

Called by `previewer` and `rendering`. Few services are listed by name, many by namespace: a preview of one change costs
a dozen small requests, one of a fleet as many large ones. Nothing is read twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from automation.cache.owners import process_selector_of, selector_of, service_of
from automation.reconcile.plan import LiveObject, ObjectName
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.discovery import served
from kubeapi.errors import ApiError, Forbidden, NotFound, Unauthorized, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import SpecInvalid
from program.desired.keys import ServiceKey
from program.dialects.registry import DIALECTS, LLMKUBE

if TYPE_CHECKING:
    from automation.hosts.registry import HostRegistry
    from automation.serving.turns.members import AgedPool

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PAGE = 500
MOST_BY_NAME = 20
"""Up to this many services of a namespace are requested by name; of more, all are listed."""
MOST_NAMESPACES = 8
"""Up to this many namespaces are listed one by one; of more, all are listed at once."""


class Ask(Protocol):
    """Calls a function for several items at once, as `Previewer.map` does."""

    def __call__(self, ask: Callable[[Item], Answer], items: Iterable[Item], /) -> Iterable[Answer]: ...


class Live:
    """The live objects that were loaded. Reads are thread-safe; `load` is called once, by one thread."""

    def __init__(self, client: KubeClient, ask: Ask) -> None:
        self._client = client
        self._ask = ask
        self._lock = threading.Lock()
        self._objects: dict[ServiceKey, dict[ObjectName, Json]] = {}
        self._claims: set[tuple[str, str]] = set()
        self._namespaces: dict[str, Json] = {}
        self._registry: HostRegistry | None = None
        self._processes: dict[ServiceKey, dict[int, Json]] = {}
        self._pools: dict[str, tuple[AgedPool, ...]] = {}
        self._metrics_service: tuple[str, str] | Literal["", "unknown"] = ""
        self.installed: frozenset[str] = frozenset()
        """Extensions that are served, as `RenderOptions.installed` names them."""
        self.notes: dict[str, None] = {}
        """Kinds that could not be read, each once."""

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, keys: Sequence[ServiceKey], *, claims: Literal["shared", "perService"] | None) -> None:
        """Read the objects of these services and the facts for their rendering. `claims` is how caches are kept."""
        scopes = list(_scopes(keys))
        namespaces = sorted({key.namespace for key in keys})
        cached = [key for key in keys if key.dialect == LLMKUBE] if claims else []
        wanted = {(key.namespace, naming.cache_claim(key.name, claims or "shared")) for key in cached}
        optional = dict.fromkeys(kind for scope in scopes for kind in _optional(scope.dialect))
        asks: list[Callable[[], None]] = [lambda: self._load_installed(tuple(optional))]
        asks += [self._listing(kind, scope) for scope in scopes for kind in _built_in(scope.dialect)]
        asks += [self._namespace(name) for name in namespaces]
        asks += [self._claim(*each) for each in sorted(wanted)] if len(wanted) <= MOST_BY_NAME else []
        if len(wanted) > MOST_BY_NAME:
            asks += [self._claims_of(name, [claim for at, claim in wanted if at == name]) for name in namespaces]
        self._run(asks)
        self._run(
            [
                self._listing(kind, scope)
                for scope in scopes
                for kind in _optional(scope.dialect)
                if kind.full_name in self.installed
            ]
        )

    def fetch(self, key: ServiceKey, names: Iterable[ObjectName]) -> None:
        """Read objects that are known to exist, by name."""
        made = (*DIALECTS[key.dialect].creates, kinds.HOST_PROCESSES, kinds.CLAIMS, kinds.CLUSTER_ROLE_BINDINGS)
        by_name = {kind.kind: kind for kind in made}

        def get(name: ObjectName) -> None:
            try:
                kind = by_name[name.kind]
                self._add_to(key, self._client.get(kind, key.namespace if kind.namespaced else None, name.name))
            except NotFound:
                return

        for _ in self._ask(get, [name for name in names if name.kind in by_name]):
            pass

    def _run(self, asks: list[Callable[[], None]]) -> None:
        for _ in self._ask(lambda ask: ask(), asks):
            pass

    def _load_installed(self, optional: tuple[Kind, ...]) -> None:
        try:
            answer = served(lambda path: self._client.request("GET", path), optional)
        except (Unreachable, Unauthorized):
            raise
        except ApiError as error:
            self.notes[f"could not find out which optional APIs the cluster serves: {error.message}"] = None
            return
        self.installed = frozenset(kind.full_name for kind, is_served in answer.items() if is_served)

    def _listing(self, kind: Kind, scope: _Scope) -> Callable[[], None]:
        namespaces, selector = scope.namespaces, scope.selector_of(kind)

        def load() -> None:
            try:
                for obj in self._list(kind, namespaces[0] if len(namespaces) == 1 else None, selector):
                    self._add(obj)
            except Forbidden as error:
                if len(namespaces) > 1:
                    for namespace in namespaces:
                        self._listing(kind, _Scope(scope.dialect, (namespace,), scope.names))()
                    return
                self.notes[
                    f"may not list {kind.plural}, so the preview does not know the existing ones: {error.message}"
                ] = None
            except NotFound:
                return  # its CRD is not there

        return load

    def _list(self, kind: Kind, namespace: str | None, selector: str | None = None) -> Iterator[Json]:
        token: str | None = None
        while True:
            page = self._client.list(kind, namespace, label_selector=selector, limit=PAGE, continue_token=token)
            yield from page["items"]
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return

    def _add(self, obj: Json) -> None:
        if (key := service_of(obj)) is not None:
            self._add_to(key, obj)

    def _add_to(self, key: ServiceKey, obj: Json) -> None:
        with self._lock:
            self._objects.setdefault(key, {})[ObjectName(obj["kind"], obj["metadata"]["name"])] = obj

    def _claim(self, namespace: str, name: str) -> Callable[[], None]:
        def load() -> None:
            try:
                self._add_claim(self._client.get(kinds.CLAIMS, namespace, name))
            except NotFound:
                return
            except Forbidden as error:
                self._assume_claims_exist(error)
                self._claims.add((namespace, name))

        return load

    def _claims_of(self, namespace: str, names: Iterable[str]) -> Callable[[], None]:
        def load() -> None:
            try:
                for claim in self._list(kinds.CLAIMS, namespace):
                    self._add_claim(claim)
            except Forbidden as error:
                self._assume_claims_exist(error)
                self._claims.update((namespace, name) for name in names)

        return load

    def _assume_claims_exist(self, error: Forbidden) -> None:
        self.notes[f"may not read volume claims, so the preview assumes that they exist: {error.message}"] = None

    def _add_claim(self, claim: Json) -> None:
        if "deletionTimestamp" not in claim["metadata"]:
            self._claims.add((claim["metadata"]["namespace"], claim["metadata"]["name"]))

    def _namespace(self, name: str) -> Callable[[], None]:
        def load() -> None:
            try:
                self._namespaces[name] = self._client.get(kinds.NAMESPACES, None, name)["metadata"]
            except (NotFound, Forbidden):
                return

        return load

    # --- reading -------------------------------------------------------------------------------------------------

    def objects(self, key: ServiceKey) -> dict[ObjectName, Json]:
        """Return the whole objects of a service by owner or label, also of another controller."""
        return self._objects.get(key, {})

    def owned(self, key: ServiceKey, owner: str | None) -> tuple[LiveObject, ...]:
        """Return the names of those whose controller is the custom resource with this uid."""
        return tuple(
            LiveObject(name, str(obj["metadata"].get("uid", "")))
            for name, obj in self.objects(key).items()
            if owner and "deletionTimestamp" not in obj["metadata"] and _controller(obj) == owner
        )

    def deployment(self, key: ServiceKey) -> Json | None:
        """Return the service's Deployment as `trim.deployment` reduces it, or None.

        None also for a Deployment that no client scaled or put to sleep: a preview needs no other field of it.
        """
        found = self.objects(key).get(ObjectName("Deployment", naming.deployment_name(key.name)))
        if found is None or not _is_scaled(found):
            return None
        from automation.cache import trim

        return trim.deployment(found)

    def claim_exists(self, key: ServiceKey, mode: Literal["shared", "perService"]) -> bool:
        """Return whether the claim exists that caches the service's weights."""
        return (key.namespace, naming.cache_claim(key.name, mode)) in self._claims

    def namespace_labels(self, namespace: str) -> dict[str, str]:
        return self._namespaces.get(namespace, {}).get("labels") or {}

    def namespace_annotations(self, namespace: str) -> dict[str, str]:
        return self._namespaces.get(namespace, {}).get("annotations") or {}

    def replica_sets(self, key: ServiceKey) -> list[Json]:
        """Read the ReplicaSets of a service's Deployment."""
        return self._all(kinds.REPLICA_SETS, key.namespace, selector_of(key.dialect, (key.name,)))

    def registry(self) -> HostRegistry:
        """Return the hosts and the placed replicas, as the loop knows them; read at the first call."""
        if self._registry is None:
            self._registry = self._read_hosts()
        return self._registry

    def processes(self, key: ServiceKey) -> Mapping[int, Json]:
        """Return the HostProcesses of a service by replica, in the form of `trim_hosts.host_process`."""
        self.registry()
        return self._processes.get(key, {})

    def serves_external_metrics(self, service: str) -> bool | None:
        """Return whether the cluster's external metrics come from this Service (`namespace/name`); None if unknown.

        Read at the first call.
        """
        from automation.external_metrics import registration

        if not self._metrics_service:
            try:
                found = registration.find(self._client)
                self._metrics_service = ("", "") if found is None else registration.service_of(found)
            except Forbidden as error:
                self._metrics_service = "unknown"
                self.notes[
                    f"may not read the APIService of external metrics, so the preview shows an autoscaler that follows "
                    f"the requests only if it exists: {error.message}"
                ] = None
        return None if self._metrics_service == "unknown" else "/".join(self._metrics_service) == service

    def pools(self, namespace: str) -> tuple[AgedPool, ...]:
        """Return the valid ModelPools of a namespace; read at the first call."""
        if namespace not in self._pools:
            self._pools[namespace] = tuple(self._read_pools(namespace))
        return self._pools[namespace]

    def _read_pools(self, namespace: str) -> Iterator[AgedPool]:
        from automation.serving.turns.members import AgedPool
        from program.dialects.llmkube.parse.pool import pool_of
        from program.dialects.status.accepted_version import unless_pending

        try:
            for cr in self._list(kinds.MODEL_POOLS, namespace):
                if (used := unless_pending(cr)) is None:
                    continue
                with suppress(SpecInvalid):
                    yield AgedPool(pool_of(used), str(cr["metadata"].get("creationTimestamp", "")))
        except Forbidden as error:
            self.notes[f"may not list modelpools, so the preview does not know them: {error.message}"] = None
        except NotFound:
            return  # its CRD is not there

    def _read_hosts(self) -> HostRegistry:
        from automation.cache import trim_hosts
        from automation.hosts.registry import HostRegistry
        from components.naming import SYSTEM_NAMESPACE

        registry = HostRegistry(later=lambda _delay_s, _call: None)
        registry.allocations.namespace_labels = self.namespace_labels
        for lease in self._all(kinds.LEASES, SYSTEM_NAMESPACE, naming.LABEL_HOST):
            registry.lease_changed(None, trim_hosts.lease(lease))
        try:
            for host in self._list(kinds.HOSTS, None):
                registry.host_changed(None, trim_hosts.host(host))
        except (NotFound, Forbidden):
            registry.hosts_served = lambda: False
        for process in self._all(kinds.HOST_PROCESSES, None, naming.LABEL_SERVICE):
            if (key := service_of(process)) is not None:
                kept = trim_hosts.host_process(process)
                registry.process_changed(key, kept, replica=kept["spec"]["replica"])
                self._processes.setdefault(key, {})[kept["spec"]["replica"]] = kept
        return registry

    def _all(self, kind: Kind, namespace: str | None, selector: str) -> list[Json]:
        try:
            return list(self._list(kind, namespace, selector))
        except NotFound:
            return []
        except Forbidden as error:
            self.notes[f"may not list {kind.plural}, so the preview ignores them: {error.message}"] = None
            return []


def _built_in(dialect: str) -> Iterator[Kind]:
    """List the kinds of a service's objects that every cluster with Herdsman serves."""
    yield from (kind for kind in DIALECTS[dialect].creates if kind not in kinds.OPTIONAL)
    yield kinds.HOST_PROCESSES


def _optional(dialect: str) -> Iterator[Kind]:
    return (kind for kind in DIALECTS[dialect].creates if kind in kinds.OPTIONAL)


class _Scope(NamedTuple):
    """Which services to list: their dialect, namespaces and names; without names all."""

    dialect: str
    namespaces: tuple[str, ...]
    names: tuple[str, ...] = ()

    def selector_of(self, kind: Kind) -> str:
        select = process_selector_of if kind == kinds.HOST_PROCESSES else selector_of
        return select(self.dialect, self.names)


def _scopes(keys: Sequence[ServiceKey]) -> Iterator[_Scope]:
    by_place: dict[str, dict[str, list[str]]] = {}
    for key in keys:
        by_place.setdefault(key.dialect, {}).setdefault(key.namespace, []).append(key.name)
    for dialect, by_namespace in by_place.items():
        if len(by_namespace) > MOST_NAMESPACES:
            yield _Scope(dialect, tuple(sorted(by_namespace)))
            continue
        for namespace, names in sorted(by_namespace.items()):
            yield _Scope(dialect, (namespace,), tuple(names) if len(names) <= MOST_BY_NAME else ())


def _controller(obj: Json) -> str:
    references = obj["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in references if each.get("controller")), "")


def _is_scaled(deployment: Json) -> bool:
    metadata = deployment["metadata"]
    scaled = any(entry.get("subresource") == "scale" for entry in metadata.get("managedFields") or ())
    return scaled or naming.ANNOTATION_ASLEEP in (metadata.get("annotations") or {})
