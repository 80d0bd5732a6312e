"""The cache of one dialect: informers that start and stop with its CRDs, and which services depend on what they hold.

`cluster_cache` makes one for each dialect of the registry; `reconcile.dialect_services` reads it. While the dialect's
custom resource is not served, it sends one discovery request a minute and nothing else. A service depends
on every object that was looked up for it in its last pass, also on one that did not exist.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from automation.cache import trim
from automation.cache.config_maps import ConfigMaps
from automation.cache.optional_apis import CHECK_EVERY_S, OptionalApis
from automation.cache.references import asks_for_work, changed_hands, without_version
from automation.cache.service_index import ServiceIndex
from automation.cache.store_secrets import StoreSecrets
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from program.dialects.registry import DIALECTS

SPREAD_S = 0.02
"""When an API appears or goes, the services that it may concern come one after the other, this far apart."""
KSERVE_NAMESPACE = "kserve"
"""Where KServe keeps its presets and its gateway: followed also by a loop that works in other namespaces only."""
ANY = ""
"""Stands for the name of an object where all of a namespace were looked up."""


class Reference(NamedTuple):
    """What a service depends on."""

    kind: Kind
    namespace: str
    name: str


Use = Literal["spec", "status"]
"""What an object was looked up for."""


class ServiceCache:
    """What the loop knows of one dialect's services. Thread-safe."""

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
        self.on_change: Callable[[Kind, str, str], None] = lambda _kind, _namespace, _name: None
        """Is told of each change of what is looked up (a service too), in its informer's thread; name ANY: of all in a
        namespace, which says something else of them now."""
        self.name = name
        self.kind = DIALECTS[name].kind
        self.index = ServiceIndex(DIALECTS[name].mark)
        self._enqueue = enqueue
        self._enqueue_after = enqueue_after
        self._informer = informer
        self._namespaces = namespaces
        self._lock = threading.Lock()
        self._needed: dict[ServiceKey, dict[Use, frozenset[Reference]]] = {}
        self._needed_by: dict[Reference, set[ServiceKey]] = defaultdict(set)
        self._left: set[ServiceKey] = set()
        self.config_maps = ConfigMaps(
            client,
            changed=lambda namespace, of: self._reference_changed(kinds.CONFIG_MAPS, namespace, of),
            in_use=lambda namespace, of: Reference(kinds.CONFIG_MAPS, namespace, of) in self._needed_by,
        )
        self.store_secrets = StoreSecrets(
            client,
            changed=lambda namespace, of: self._reference_changed(kinds.SECRETS, namespace, of),
            in_use=lambda namespace, of: Reference(kinds.SECRETS, namespace, of) in self._needed_by,
        )
        self._one_by_one: dict[Kind, ConfigMaps | StoreSecrets] = {
            kinds.CONFIG_MAPS: self.config_maps,
            kinds.SECRETS: self.store_secrets,
        }
        referred = [kind for kind in DIALECTS[name].refers_to if kind not in self._one_by_one]
        self._refers_to = frozenset(referred)
        self._process_changed = self._on_object(kinds.HOST_PROCESSES)
        self.apis = OptionalApis(
            client,
            dict.fromkeys((self.kind, *DIALECTS[name].creates, kinds.PODS, *referred)),
            make=self._make,
            on_change=self._apis_changed,
            namespace=min(namespaces, default=None),
            requires=self.kind,
            check_every_s=check_every_s,
        )

    def start(self) -> None:
        """Start looking; returns at once."""
        self.apis.start()

    def stop(self) -> None:
        """Stop, with all informers."""
        self.apis.stop()
        for each in self._one_by_one.values():
            each.stop()

    def ready(self) -> bool:
        """Whether the dialect's custom resource is served and everything about it that is served is listed."""
        return self.kind in self.apis.served and not self._left_out()

    def postpone(self, key: ServiceKey) -> None:
        """Look at a service once the caches are filled."""
        with self._lock:
            self._left.add(key)
        if self.ready():
            self._enqueue(key)

    def trouble(self, kind: Kind) -> str:
        """Why objects of a kind that is served are not known; empty when nothing is missing."""
        return self.apis.trouble(kind)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Give an object of a kind that is followed."""
        if (single := self._one_by_one.get(kind)) is not None:
            return single.get(namespace or "", name)
        informer = self.apis.informer(kind)
        return informer.get(namespace, name) if informer is not None else None

    def pending(self, kind: Kind, namespace: str, name: str) -> bool:
        """Whether the API server has not said yet whether there is this object, of a kind that is not followed whole.

        Its services are enqueued when it does, or they ask again.
        """
        single = self._one_by_one.get(kind)
        return single is not None and single.pending(namespace, name)

    def listed(self, kind: Kind, namespace: str | None = None) -> list[Json]:
        """Give all objects of a kind that is followed, of a namespace or of all."""
        informer = self.apis.informer(kind)
        found = informer.list(namespace) if informer is not None else []
        return sorted(found, key=lambda obj: (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))

    def made_kinds(self) -> frozenset[str]:
        """Name the kinds of objects made for services that are followed now."""
        return frozenset(kind.kind for kind in DIALECTS[self.name].creates if kind in self.apis.served)

    # --- who depends on what --------------------------------------------------------------------------------------

    def will_look_at(self, key: ServiceKey, reference: Reference) -> None:
        """Have a service looked at again when this changes. Called before the object is looked up.

        An object that is made between a look and a later note of it would wake nobody.
        """
        with self._lock:
            self._needed_by[reference].add(key)

    def needs(self, key: ServiceKey, references: frozenset[Reference], use: Use = "spec") -> None:
        """Note all that was looked up for one use of a service in its last pass; only these wake it from now on."""
        with self._lock:
            uses = self._needed.setdefault(key, {})
            before, uses[use] = uses.get(use, frozenset()), references
            kept = frozenset().union(*uses.values())
            for reference in before - kept:
                self._drop(reference, key)
            for reference in references:
                self._needed_by[reference].add(key)

    def version(self, reference: Reference) -> str:
        """Name the version of an object; of all of a namespace those of each."""
        if reference.name == ANY:
            objects = self.listed(reference.kind, reference.namespace)
            return ",".join(_content_version(obj) for obj in objects)
        found = self.get(reference.kind, reference.namespace or None, reference.name)
        return _content_version(found) if found is not None else ""

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

    def enqueue_all(self, namespace: str) -> None:
        """Have all services of a namespace looked at."""
        self.on_change(kinds.LLM_CONFIGS, namespace, ANY)
        for obj in self.listed(self.kind, namespace):
            self._enqueue(self._key(obj, obj["metadata"]["name"]))

    # --- changes, each told in its informer's thread ----------------------------------------------------------------

    def _make(self, kind: Kind) -> Informer:
        mark = DIALECTS[self.name].mark
        options: dict[str, Any] = {"on_missing": self.apis.recheck}
        if not kind.namespaced:
            options["namespaces"] = None
        if kind is self.kind:
            return self._informer(kind, trim.custom_resource, self._service_changed, **options)
        if kind is kinds.PODS:
            return self._informer(kind, trim.workload_pod, self._pod_changed, label_selector=mark.selector, **options)
        made = kind in DIALECTS[self.name].creates
        if kind in (kinds.AUTOSCALERS, kinds.SCALED_OBJECTS):
            options["label_selector"] = mark.selector
            return self._informer(kind, trim.autoscaler_with_conditions, self._both(kind), **options)
        if kind in self._refers_to:
            # Of these also objects that others made are looked up, so all are followed.
            changed = self._both(kind) if made else self._on_reference(kind)
            if kind in (kinds.LLM_CONFIGS, kinds.GATEWAYS) and self._namespaces:
                options["namespaces"] = (*self._namespaces, KSERVE_NAMESPACE)
            return self._informer(kind, trim.owned_in_full if made else trim.custom_resource, changed, **options)
        kept = {kinds.DEPLOYMENTS: trim.workload, kinds.LEADER_WORKER_SETS: trim.workload}.get(kind)
        options["label_selector"] = mark.selector
        return self._informer(kind, kept or trim.owned, self._on_object(kind), **options)

    def _key(self, obj: Json, name: str) -> ServiceKey:
        return ServiceKey(self.name, obj["metadata"].get("namespace", ""), name)

    def _service_changed(self, old: Json | None, new: Json | None) -> None:
        obj: Json = new or old or {}
        key = self._key(obj, obj["metadata"]["name"])
        self._reference_changed(self.kind, key.namespace, key.name)
        if old is None or new is None or asks_for_work(old, new):
            self._enqueue(key)
        self.on_change(self.kind, key.namespace, key.name)

    def _on_object(self, kind: Kind) -> Callable[[Json | None, Json | None], None]:
        def changed(old: Json | None, new: Json | None) -> None:
            if kind is not kinds.HOST_PROCESSES and changed_hands(old, new, DIALECTS[self.name].mark.service_of):
                changed(old, None)
                old = None
            service = self.index.object_changed(kind.kind, old, new)
            if service and (old is None or new is None or without_version(old) != without_version(new)):
                self._enqueue(self._key(new or old or {}, service))

        return changed

    def process_changed(self, old: Json | None, new: Json | None) -> None:
        """Take note of a HostProcess of one of the services."""
        self._process_changed(old, new)

    def slice_changed(self, namespace: str) -> None:
        """Have the services looked at that an EndpointSlice of an agent's in this namespace may lead to."""
        for at, service in self.index.services_with_objects():
            if at == namespace and any(kind == "HostProcess" for kind, _ in self.index.objects(at, service)):
                self._enqueue(ServiceKey(self.name, at, service))

    def _pod_changed(self, old: Json | None, new: Json | None) -> None:
        if changed_hands(old, new, DIALECTS[self.name].mark.service_of):
            self._pod_changed(old, None)
            old = None
        service = self.index.pod_changed(old, new)
        if service and (old is None or new is None or without_version(old) != without_version(new)):
            self._enqueue(self._key(new or old or {}, service))

    def _on_reference(self, kind: Kind) -> Callable[[Json | None, Json | None], None]:
        def changed(old: Json | None, new: Json | None) -> None:
            if old is not None and new is not None and without_version(old) == without_version(new):
                return
            metadata = (new or old or {})["metadata"]
            namespace, name = metadata.get("namespace", ""), metadata["name"]
            both = old is not None and new is not None
            if not (kind is kinds.LLM_CONFIGS and both and _asked(old or {}) == _asked(new or {})):
                self._reference_changed(kind, namespace, name)
            self.on_change(kind, namespace, name)

        return changed

    def _both(self, kind: Kind) -> Callable[[Json | None, Json | None], None]:
        as_object, as_reference = self._on_object(kind), self._on_reference(kind)

        def changed(old: Json | None, new: Json | None) -> None:
            as_object(old, new)
            as_reference(old, new)

        return changed

    def _reference_changed(self, kind: Kind, namespace: str, name: str) -> None:
        with self._lock:
            users = [
                *self._needed_by.get(Reference(kind, namespace, name), ()),
                *self._needed_by.get(Reference(kind, namespace, ANY), ()),
            ]
        for key in users:
            self._enqueue(key)

    def _apis_changed(self, changed: frozenset[Kind]) -> None:
        with self._lock:
            known = set(self._needed)
        if self.kind in changed and self.kind not in self.apis.served:
            # What was made goes with the custom resources, which went with their CRD. Should it come back without
            # them, the engine still knows their objects.
            with self._lock:
                self._left |= known
            return
        here = {self._key(obj, obj["metadata"]["name"]) for obj in self.listed(self.kind)}
        left: set[ServiceKey] = set()
        if self.ready():
            with self._lock:
                left, self._left = self._left, set()
        for number, key in enumerate(sorted(here | left)):
            self._enqueue_after(key, number * SPREAD_S)

    def _left_out(self) -> bool:
        """Whether a kind that every cluster has is not followed yet."""
        builtin = [kind for kind in (*DIALECTS[self.name].creates, kinds.PODS) if kind in kinds.WELL_KNOWN]
        return any(kind not in self.apis.served for kind in builtin)


def _asked(obj: Json) -> Json:
    """Give an object without its status. A config's says who uses it: for those that do, nothing has changed."""
    return {key: value for key, value in without_version(obj).items() if key != "status"}


def _content_version(obj: Json) -> str:
    """Name what an object says, whatever its status: the generation where there is one."""
    metadata = obj["metadata"]
    generation = metadata.get("generation")
    return f"{metadata.get('uid')}/{generation or metadata.get('resourceVersion')}"
