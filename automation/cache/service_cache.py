"""The cache of one dialect's services: their custom resources, the objects made for them, the objects they refer to.

`cluster_cache` makes one for each dialect of the registry; `reconcile.services` reads it. LLMKube's informers run from
the start. Those of another dialect start and stop with its CRDs: while its custom resource is not served, the cache
sends one discovery request a minute and nothing else. A service depends on every object that was looked up for it in
its last pass, also on one that did not exist.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from automation.cache import trim
from automation.cache.config_maps import ConfigMaps
from automation.cache.optional_apis import CHECK_EVERY_S, OptionalApis
from automation.cache.service_index import ServiceIndex
from automation.cache.store_secrets import StoreSecrets
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from program.dialects.registry import DIALECTS, LLMKUBE
from program.dialects.status.accepted_version import accepted_version

SPREAD_S = 0.02
"""When an API appears or disappears, the services that may use it are enqueued one by one, this far apart."""
KSERVE_NAMESPACE = "kserve"
"""The namespace of KServe's presets and gateway. A loop for other namespaces follows it as well."""
ANY = ""
"""The name in a `Reference` to all objects of a namespace."""
_TRIMS: dict[Kind, Callable[[Json], Json]] = {
    kinds.PODS: trim.workload_pod,
    kinds.DEPLOYMENTS: trim.workload,
    kinds.LEADER_WORKER_SETS: trim.workload,
    kinds.AUTOSCALERS: trim.autoscaler_with_conditions,
    kinds.SCALED_OBJECTS: trim.autoscaler_with_conditions,
}
_TRIMS_OF_LLMKUBE: dict[Kind, Callable[[Json], Json]] = {
    kinds.PODS: trim.pod,
    kinds.DEPLOYMENTS: trim.deployment,
    kinds.AUTOSCALERS: trim.autoscaler,
    kinds.SCALED_OBJECTS: trim.autoscaler,
    kinds.HTTP_ROUTES: trim.route,
    kinds.INGRESSES: trim.ingress,
}


class Reference(NamedTuple):
    """An object that a service depends on."""

    kind: Kind
    namespace: str
    name: str


Purpose = Literal["spec", "status"]
"""Why an object was looked up."""


class ServiceCache:
    """The services of one dialect with the objects around them. Thread-safe."""

    def __init__(
        self,
        client: KubeClient,
        name: str,
        *,
        informer: Callable[..., Informer],
        enqueue: Callable[[ServiceKey], None],
        enqueue_after: Callable[[ServiceKey, float], None],
        namespaces: tuple[str, ...],
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        """`informer` makes one in the namespaces of the loop: (kind, transform, on_change, **options)."""
        self.on_change: Callable[[Kind, Json | None, Json | None], None] = lambda _kind, _old, _new: None
        """Called with each change of a service, an object made for one, a pod, or an object that services refer to: in
        the informer's thread, after the index has it and before services are enqueued."""
        info = DIALECTS[name]
        self.name = name
        self.kind = info.kind
        self._selector = info.mark.selector
        self.index = ServiceIndex(info.mark)
        self._enqueue = enqueue
        self._enqueue_after = enqueue_after
        self._new_informer = informer
        self._namespaces = namespaces
        self._lock = threading.Lock()
        self._needed: dict[ServiceKey, dict[Purpose, frozenset[Reference]]] = {}
        self._needed_by: dict[Reference, set[ServiceKey]] = defaultdict(set)
        self._postponed: set[ServiceKey] = set()
        self.config_maps = ConfigMaps(
            client,
            changed=functools.partial(self._enqueue_users, kinds.CONFIG_MAPS),
            in_use=functools.partial(self._is_needed, kinds.CONFIG_MAPS),
        )
        store_secrets = StoreSecrets(
            client,
            changed=functools.partial(self._enqueue_users, kinds.SECRETS),
            in_use=functools.partial(self._is_needed, kinds.SECRETS),
        )
        self._one_by_one: dict[Kind, ConfigMaps | StoreSecrets] = {
            kinds.CONFIG_MAPS: self.config_maps,
            kinds.SECRETS: store_secrets,
        }
        self._trims = _TRIMS_OF_LLMKUBE if name == LLMKUBE else _TRIMS
        self._made = frozenset({*info.creates, kinds.PODS})
        self._referred = frozenset(info.refers_to).difference(self._one_by_one)
        followed = dict.fromkeys((self.kind, *info.creates, kinds.PODS, *info.refers_to))
        optional_kinds = (*kinds.OPTIONAL, *info.may_lack)
        required = [kind for kind in followed if info.is_required and kind not in optional_kinds]
        optional = [kind for kind in followed if kind not in (*required, *self._one_by_one)]
        self.apis = OptionalApis(
            client,
            optional,
            make=self._make,
            on_change=self._apis_changed,
            namespace=min(namespaces, default=None),
            requires=None if info.is_required else self.kind,
            check_every_s=check_every_s,
        )
        """The kinds that the cluster may serve or not."""
        self.required = {kind: self._make(kind) for kind in required}
        """The informers of kinds without which the loop does not start."""
        self._required_kinds = frozenset(required)
        self._awaited = frozenset({self.kind, *self._made.intersection(kinds.WELL_KNOWN)}) - self._required_kinds

    def start(self) -> None:
        """Start all informers; returns at once."""
        for informer in self.required.values():
            informer.start()
        self.apis.start()

    def stop(self) -> None:
        """Stop all informers."""
        self.apis.stop()
        for each in self._one_by_one.values():
            each.stop()
        for informer in self.required.values():
            informer.stop()

    def informer(self, kind: Kind) -> Informer | None:
        """Return the informer of a kind; None while the kind is not served."""
        found = self.required.get(kind)
        return found if found is not None else self.apis.informer(kind)

    def ready(self) -> bool:
        """Return whether the dialect's custom resource is served and everything about it that is served is listed."""
        return self._awaited <= self.apis.served

    def postpone(self, key: ServiceKey) -> None:
        """Enqueue a service once the caches are filled."""
        with self._lock:
            self._postponed.add(key)
        if self.ready():
            self._enqueue(key)

    def trouble(self, kind: Kind) -> str:
        """Return why objects of a kind that is served are unknown; empty when all are known."""
        return self.apis.trouble(kind)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Return an object of a kind that is followed."""
        if (single := self._one_by_one.get(kind)) is not None:
            return single.get(namespace or "", name)
        informer = self.informer(kind)
        return informer.get(namespace, name) if informer is not None else None

    def pending(self, kind: Kind, namespace: str, name: str) -> bool:
        """Return whether the API server has not answered yet about an object that is read individually.

        The answer enqueues its services, or they ask again.
        """
        single = self._one_by_one.get(kind)
        return single is not None and single.pending(namespace, name)

    def listed(self, kind: Kind, namespace: str | None = None) -> list[Json]:
        """Return all objects of a kind that is followed, of a namespace or of all, by namespace and name."""
        informer = self.informer(kind)
        found = informer.list(namespace) if informer is not None else []
        return sorted(found, key=lambda obj: (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))

    def made_kinds(self) -> frozenset[str]:
        """Name the kinds of objects made for services that are followed now; of others nothing is known."""
        followed = self._made & (self._required_kinds | self.apis.served)
        return frozenset({kinds.HOST_PROCESSES.kind, *(kind.kind for kind in followed if kind is not kinds.PODS)})

    # --- which services depend on which objects -------------------------------------------------------------------

    def will_look_at(self, key: ServiceKey, reference: Reference) -> None:
        """Enqueue a service when this object changes. Called before the object is looked up.

        An object that is made between a lookup and a later note of it would enqueue nothing.
        """
        with self._lock:
            self._needed_by[reference].add(key)

    def needs(self, key: ServiceKey, references: frozenset[Reference], purpose: Purpose = "spec") -> None:
        """Record the objects that the last pass looked up for one purpose. Only these enqueue the service."""
        with self._lock:
            by_purpose = self._needed.setdefault(key, {})
            before, by_purpose[purpose] = by_purpose.get(purpose, frozenset()), references
            kept = frozenset().union(*by_purpose.values())
            for reference in before - kept:
                self._drop(reference, key)
            for reference in references:
                self._needed_by[reference].add(key)

    def version(self, reference: Reference) -> str:
        """Name the version of an object, or those of all objects of a namespace."""
        if reference.name == ANY:
            objects = self.listed(reference.kind, reference.namespace)
            return ",".join(_content_version(reference.kind, obj) for obj in objects)
        found = self.get(reference.kind, reference.namespace or None, reference.name)
        return _content_version(reference.kind, found) if found is not None else ""

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the references of a service that is gone."""
        with self._lock:
            for reference in frozenset().union(*self._needed.pop(key, {}).values()):
                self._drop(reference, key)

    def _drop(self, reference: Reference, key: ServiceKey) -> None:
        users = self._needed_by.get(reference, set())
        users.discard(key)
        if not users:
            self._needed_by.pop(reference, None)

    def _is_needed(self, kind: Kind, namespace: str, name: str) -> bool:
        return Reference(kind, namespace, name) in self._needed_by

    def _enqueue_users(self, kind: Kind, namespace: str, name: str) -> None:
        with self._lock:
            users = {
                *self._needed_by.get(Reference(kind, namespace, name), ()),
                *self._needed_by.get(Reference(kind, namespace, ANY), ()),
            }
        for key in users:
            self._enqueue(key)

    # --- changes, each in its informer's thread -------------------------------------------------------------------

    def _make(self, kind: Kind) -> Informer:
        made, referred = kind in self._made, kind in self._referred
        options: dict[str, Any] = {"on_missing": self.apis.recheck}
        if not kind.namespaced:
            options["namespaces"] = None
        elif kind in (kinds.LLM_CONFIGS, kinds.GATEWAYS) and self._namespaces:
            options["namespaces"] = (*self._namespaces, KSERVE_NAMESPACE)
        keep: Callable[[Json], Json] = trim.custom_resource
        if made:
            keep = self._trims.get(kind) or (trim.owned_in_full if referred else trim.owned)
        if made and keep is not trim.owned_in_full:
            # Without a selector an informer also has the objects that others made, for services that refer to them.
            options["label_selector"] = self._selector
        return self._new_informer(kind, keep, functools.partial(self.changed, kind), **options)

    def changed(self, kind: Kind, old: Json | None, new: Json | None) -> None:
        """Take in a change of an object and enqueue the services that it concerns."""
        if kind is self.kind:
            self._service_changed(old, new)
        elif kind in self._made or kind is kinds.HOST_PROCESSES:
            self._object_changed(kind, old, new)
        if kind in self._referred:
            self._reference_changed(kind, old, new)

    def _key(self, obj: Json | None, name: str) -> ServiceKey:
        return ServiceKey(self.name, (obj or {})["metadata"].get("namespace", ""), name)

    def _service_changed(self, old: Json | None, new: Json | None) -> None:
        obj: Json = new or old or {}
        self.on_change(self.kind, old, new)
        # Policies read the labels of services.
        if old is None or new is None or asks_for_work(old, new) or _labels(old) != _labels(new):
            self._enqueue(self._key(obj, obj["metadata"]["name"]))

    def _object_changed(self, kind: Kind, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and self.index.service_of(kind, old) != self.index.service_of(kind, new):
            # Its label was changed to another service's. The first service has lost it.
            self._object_changed(kind, old, None)
            old = None
        service = self.index.object_changed(kind, old, new)
        if service and (old is None or new is None or _without_version(old) != _without_version(new)):
            self.on_change(kind, old, new)
            self._enqueue(self._key(new or old, service))

    def _reference_changed(self, kind: Kind, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and _without_version(old) == _without_version(new):
            return
        if kind is not self.kind and kind not in self._made:
            self.on_change(kind, old, new)
        if old is None or new is None or _content(kind, old) != _content(kind, new):
            metadata = (new or old or {})["metadata"]
            self._enqueue_users(kind, metadata.get("namespace", ""), metadata["name"])

    def enqueue_namespace(self, namespace: str) -> None:
        """Enqueue all services of a namespace, whose labels or annotations changed."""
        for obj in self.listed(kinds.LLM_CONFIGS, namespace):
            self.on_change(kinds.LLM_CONFIGS, obj, obj)
        for obj in self.listed(self.kind, namespace):
            self._enqueue(self._key(obj, obj["metadata"]["name"]))

    def enqueue_node(self, node: str) -> None:
        """Enqueue the services with pods on a node."""
        informer = self.informer(kinds.PODS)
        for pod in informer.list() if informer is not None else ():
            if pod["node"] == node and (service := self.index.service_of(kinds.PODS, pod)):
                self._enqueue(self._key(pod, service))

    def enqueue_hosted(self, namespace: str) -> None:
        """Enqueue the services of a namespace that run on hosts."""
        for at, service in self.index.services_with_objects():
            if at == namespace and any(kind == "HostProcess" for kind, _ in self.index.objects(at, service)):
                self._enqueue(ServiceKey(self.name, at, service))

    def _apis_changed(self, changed: frozenset[Kind]) -> None:
        if self.kind in changed and self.kind not in self.apis.served:
            # The custom resources were deleted with their CRD, and their objects with them. If the CRD returns without
            # the custom resources, the engine's state still has the objects, and a pass removes them from it.
            with self._lock:
                self._postponed.update(self._needed)
            return
        keys = {self._key(obj, obj["metadata"]["name"]) for obj in self.listed(self.kind)}
        if self.ready():
            with self._lock:
                keys |= self._postponed
                self._postponed = set()
        for number, key in enumerate(sorted(keys)):
            self._enqueue_after(key, number * SPREAD_S)


def asks_for_work(old: Json, new: Json) -> bool:
    """Return whether a custom resource was edited, rather than its status written."""
    before, after = old["metadata"], new["metadata"]
    return bool(
        before.get("generation") != after.get("generation")
        or before.get("annotations") != after.get("annotations")
        or before.get("deletionTimestamp") != after.get("deletionTimestamp")
        or before["uid"] != after["uid"]
    )


def _labels(obj: Json) -> Json:
    return obj["metadata"].get("labels") or {}


def _without_version(obj: Json) -> Json:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    return {**obj, "metadata": metadata}


def _content(kind: Kind, obj: Json) -> Any:
    """Return the part of an object that services depend on."""
    if kind is kinds.MODELS:
        return obj["spec"], obj.get("status")
    # The status of a config names the services that use it, that of an adapter their replicas.
    unread = "status" if kind in (kinds.LLM_CONFIGS, kinds.LORA_ADAPTERS) else None
    found = {key: value for key, value in _without_version(obj).items() if key != unread}
    return (found, accepted_version(obj)) if kind is kinds.LORA_ADAPTERS else found


def _content_version(kind: Kind, obj: Json) -> str:
    """Return a version that changes with the object's spec, and for a Model with its status too."""
    metadata = obj["metadata"]
    generation = metadata.get("generation") if kind is not kinds.MODELS else None
    if kind is kinds.LORA_ADAPTERS:
        generation = f"{generation}-{(accepted_version(obj) or {}).get('generation')}"
    return f"{metadata.get('uid')}/{generation or metadata.get('resourceVersion')}"
