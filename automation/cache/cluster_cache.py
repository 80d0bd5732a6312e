"""All caches of the loop: the services by dialect, and the cluster's nodes, namespaces, claims, classes and hosts.

`startup.assembly` makes it; `reconcile` reads it. A change of an object enqueues keys of services, never the object.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from automation.admission.quota import Denial, QuotaName, quota_of
from automation.admission.quota_ledger import QuotaLedger
from automation.admission.scheduling import Scheduling
from automation.adoption import ownership
from automation.cache import trim, trim_hosts
from automation.cache.optional_apis import CHECK_EVERY_S, OptionalApis
from automation.cache.service_cache import ServiceCache, asks_for_work
from automation.cache.service_index import models_of
from automation.hosts.registry import HostRegistry
from automation.settings import SYSTEM_NAMESPACE
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Fault, Informer
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import LABEL_DIALECT, ServiceKey
from program.desired.priorities import class_name
from program.dialects.registry import DIALECTS, LLMKUBE

_Part = ServiceCache | Informer | OptionalApis


class ClusterCache:
    """All informers of the loop and what each change enqueues."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespaces: tuple[str, ...],
        enqueue: Callable[[ServiceKey], None],
        enqueue_model: Callable[[str, str], None],
        on_relist: Callable[[Kind], None] | None = None,
        on_failure: Callable[[Kind, str], None] | None = None,
        enqueue_after: Callable[[ServiceKey, float], None] | None = None,
        host_move_after_s: float = 60.0,
        controller_class: str = "",
        api_check_s: float = CHECK_EVERY_S,
    ) -> None:
        self.on_pod: Callable[[Json | None, Json | None], None] = lambda _old, _new: None
        """Called with each change of a pod of an InferenceService, in the informer's thread."""
        self.on_router_input: Callable[[], None] = lambda: None
        """Called after each change of a ModelRouter or of an InferenceService, in the informer's thread."""
        self.on_pool_input: Callable[[str], None] = lambda _namespace: None
        """Called with the namespace after each change of a ModelPool, and of an InferenceService with its Deployment
        and pods, in the informer's thread."""
        self.on_adapter_input: Callable[[], None] = lambda: None
        """Called after each change of a LoRAAdapter, of a service, and of a pod or process of one, in the informer's
        thread.
        """
        self.on_namespace_gone: Callable[[str], None] = lambda _: None
        self._enqueue = enqueue
        self._enqueue_after = enqueue_after or (lambda key, _: enqueue(key))
        self._enqueue_model = enqueue_model
        self._client = client
        self.controller_class = controller_class
        self.quotas = QuotaLedger(on_admitted=enqueue)
        self.registry = HostRegistry(enqueue=enqueue, enqueue_after=self._enqueue_after, move_after_s=host_move_after_s)
        self.registry.allocations.namespace_labels = self.namespace_labels
        scope: dict[str, Any] = {"namespaces": namespaces or None, "on_relist": on_relist, "on_failure": on_failure}

        def informer(kind: Kind, transform: Callable[[Json], Json], on_change: Any, **options: Any) -> Informer:
            return Informer(client, kind, transform=transform, on_change=on_change, **{**scope, **options})

        self.caches = {
            name: ServiceCache(
                client,
                name,
                informer=informer,
                enqueue=enqueue,
                enqueue_after=self._enqueue_after,
                namespaces=namespaces,
                check_every_s=api_check_s,
            )
            for name in DIALECTS
        }
        """The services of each dialect, with the objects made for them."""
        self.llmkube = self.caches[LLMKUBE]
        self.llmkube.on_change = self._llmkube_changed
        for name, cache in self.caches.items():
            if name != LLMKUBE:
                cache.on_change = functools.partial(self._other_changed, cache)
        self.host_processes = informer(
            kinds.HOST_PROCESSES, trim_hosts.host_process, self._process_changed, label_selector=naming.LABEL_SERVICE
        )
        self.claims = informer(kinds.CLAIMS, trim.claim, self._claim_changed)
        self.nodes = informer(kinds.NODES, trim.node, self._node_changed, namespaces=None)
        self.priority_classes = informer(
            kinds.PRIORITY_CLASSES, trim.priority_class, self._priority_class_changed, namespaces=None
        )
        self.namespaces = informer(kinds.NAMESPACES, trim.namespace, self._namespace_changed, namespaces=None)
        self.endpoint_slices = informer(
            kinds.ENDPOINT_SLICES,
            trim_hosts.endpoint_slice,
            self._slice_changed,
            label_selector="llmkube.ai/managed-by=metal-agent",
        )
        self.host_leases = informer(
            kinds.LEASES,
            trim_hosts.lease,
            self.registry.lease_changed,
            namespaces=(SYSTEM_NAMESPACE,),
            label_selector=naming.LABEL_HOST,
        )
        self._informers = (
            self.host_processes,
            self.claims,
            self.nodes,
            self.priority_classes,
            self.namespaces,
            self.endpoint_slices,
            self.host_leases,
        )
        self.scheduling = Scheduling(
            self.llmkube.index,
            enqueue=enqueue,
            service=functools.partial(self.llmkube.get, kinds.INFERENCE_SERVICES),
            nodes=lambda: self.nodes.list(),
        )
        optional = {
            kinds.GPU_QUOTAS: functools.partial(informer, kinds.GPU_QUOTAS, trim.custom_resource, self._quota_changed),
            kinds.MODEL_ROUTERS: functools.partial(
                informer, kinds.MODEL_ROUTERS, trim.custom_resource, lambda _old, _new: self.on_router_input()
            ),
            kinds.MODEL_POOLS: functools.partial(informer, kinds.MODEL_POOLS, trim.custom_resource, self._pool_changed),
            kinds.HOSTS: functools.partial(
                informer, kinds.HOSTS, trim_hosts.host, self.registry.host_changed, namespaces=None
            ),
        }
        self.optional = OptionalApis(
            client,
            optional,
            make=lambda kind: optional[kind](on_missing=self.optional.recheck),
            on_change=self._apis_changed,
            namespace=min(namespaces, default=None),
            check_every_s=api_check_s,
        )
        self.registry.hosts_served = lambda: (
            kinds.HOSTS in self.optional.served or bool(self.optional.trouble(kinds.HOSTS))
        )
        self.quotas.unreadable = lambda: self.optional.trouble(kinds.GPU_QUOTAS)

    @property
    def models(self) -> Informer:
        """The Models, which a separate controller reconciles."""
        return self.llmkube.required[kinds.MODELS]

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The informers without which the loop does not start."""
        return (*self.llmkube.required.values(), *self._informers)

    @property
    def _apis(self) -> tuple[OptionalApis, ...]:
        return (self.optional, *(cache.apis for cache in self.caches.values()))

    def start(self) -> None:
        parts: tuple[_Part, ...] = (*self.caches.values(), *self._informers, self.optional)
        for each in parts:
            each.start()

    def stop(self) -> None:
        parts: tuple[_Part, ...] = (self.optional, *self.caches.values(), *self._informers)
        for each in parts:
            each.stop()

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait until every cache is filled; False when the time ran out first."""
        deadline = time.monotonic() + timeout_s
        filled: tuple[Informer | OptionalApis, ...] = (*self.informers, *self._apis)
        return all(each.wait_synced(max(0.0, deadline - time.monotonic())) for each in filled)

    def faults(self) -> Iterator[Fault]:
        """Report what is wrong with the informers of all kinds, and which APIs cannot be listed."""
        troubles: dict[Kind, str] = {}
        for apis in self._apis:
            troubles.update(apis.troubles())
        for kind, why in troubles.items():
            yield Fault(f"{kind.full_name} is served, but cannot be listed: {why}", restart_helps=False)
        optional = (informer for apis in self._apis for informer in apis.informers)
        config_maps = (informer for cache in self.caches.values() for informer in cache.config_maps.informers)
        for informer in (*self.informers, *optional, *config_maps):
            yield from informer.faults()

    def list_services(self) -> list[tuple[str, Json]]:
        """Return the custom resources of the services of all dialects, each with the name of its dialect."""
        return [(name, cr) for name, cache in self.caches.items() for cr in cache.listed(cache.kind)]

    def keys_with_objects(self) -> set[ServiceKey]:
        """Return the keys of the services for which objects were made, also of services that are gone."""
        made = ((name, cache.index.services_with_objects()) for name, cache in self.caches.items())
        return {ServiceKey(name, *at) for name, found in made for at in found}

    def every_key(self) -> set[ServiceKey]:
        """Return the keys of all services, also of services of which only objects are left."""
        found = ((name, cr["metadata"]) for name, cr in self.list_services())
        return self.keys_with_objects().union(ServiceKey(name, each["namespace"], each["name"]) for name, each in found)

    def edited_keys(self) -> set[ServiceKey]:
        """Return the keys of the services whose spec is not the one that their status describes, and of new ones.

        Services whose status names no generation count as edited.
        """
        return {
            ServiceKey(name, cr["metadata"]["namespace"], cr["metadata"]["name"])
            for name, cr in self.list_services()
            if (cr.get("status") or {}).get("observedGeneration") != cr["metadata"].get("generation")
        }

    def installed(self) -> frozenset[str]:
        """Name the extensions that the cluster serves now, as `RenderOptions.installed` does."""
        return frozenset().union(*(apis.installed() for apis in self._apis))

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace, which policies and hosts select by."""
        found = self.namespaces.get(None, namespace)
        labels: Mapping[str, str] = found["labels"] if found is not None else {}
        return labels

    def current_labels(self, namespace: str) -> Mapping[str, str]:
        """Return the same, also for a namespace that the cache does not have yet. Raises ApiError."""
        labels: Mapping[str, str] = (self._namespace(namespace) or {}).get("labels") or {}
        return labels

    def _namespace(self, namespace: str) -> Json | None:
        """Return a namespace. Raises ApiError.

        The event of a new namespace may arrive after that of a service in it. So the API server is asked about a
        namespace that the cache does not have.
        """
        if (found := self.namespaces.get(None, namespace)) is not None:
            return found
        # The loop has the rights to list and watch namespaces, not to get one.
        listed = self._client.list(kinds.NAMESPACES, field_selector=f"metadata.name={namespace}")["items"]
        return trim.namespace(listed[0]) if listed else None

    def priority_of(self, service: Json) -> int | None:
        """Return the value of the PriorityClass that an InferenceService names; None where there is no such class."""
        found = self.priority_classes.get(None, _priority_class(service))
        return int(found["value"]) if found is not None else None

    def node_trouble(self, name: str) -> str:
        """Return the reason and message of a node that is not ready; empty for a ready or unknown node."""
        found = self.nodes.get(None, name) if name else None
        return str(found["trouble"]) if found is not None else ""

    def is_terminating(self, namespace: str) -> bool:
        """Return whether the namespace is being deleted: nothing can be made in it any more."""
        found = self.namespaces.get(None, namespace)
        return found is not None and bool(found["terminating"])

    def namespace_annotations(self, namespace: str) -> Mapping[str, str]:
        """Return the annotations of a namespace under herdsman.dev/, which apply to all of its services.

        Raises ApiError.
        """
        annotations: Mapping[str, str] = (self._namespace(namespace) or {}).get("annotations") or {}
        return annotations

    def is_ours(self, cr: Json, *, held: bool = False) -> bool:
        """Return whether this loop reconciles a service; see `ownership`.

        `held`: the service has marks of an upstream controller, which may still run. Then an annotation has to name
        this loop.
        """
        said = self.namespace_annotations(cr["metadata"]["namespace"])
        if held and not ownership.controller_of(cr, said):
            return False
        return ownership.is_managed(cr, said, self.controller_class)

    def model_is_ours(self, model: Json) -> bool:
        """Return whether this loop writes the status of a Model."""
        namespace, name = model["metadata"]["namespace"], model["metadata"]["name"]
        names = self.llmkube.index.services_of_model(namespace, name)
        users = [user for each in names if (user := self.llmkube.get(self.llmkube.kind, namespace, each)) is not None]
        said = self.namespace_annotations(namespace)
        return ownership.is_model_managed(model, users, said, self.controller_class)

    # Each handler runs in its informer's thread and only touches the index and the queue.

    def _llmkube_changed(self, kind: Kind, old: Json | None, new: Json | None) -> None:
        metadata = (new or old or {})["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        if kind in (kinds.LORA_ADAPTERS, kinds.HOST_PROCESSES):
            self.on_adapter_input()
        elif kind is kinds.INFERENCE_SERVICES:
            self._inference_service_changed(ServiceKey(LLMKUBE, namespace, name), old, new)
            self.on_router_input()
            self.on_adapter_input()
        elif kind is kinds.MODELS:
            if old is None or new is None or asks_for_work(old, new):
                self._enqueue_model(namespace, name)
        elif kind in (kinds.DEPLOYMENTS, kinds.PODS):
            key = ServiceKey(LLMKUBE, namespace, metadata["labels"][naming.LABEL_SERVICE])
            if kind is kinds.DEPLOYMENTS:
                self.scheduling.deployment_changed(key)
            else:
                self.scheduling.pod_changed(key, new, name=name)
                self.on_pod(old, new)
                self.on_adapter_input()
        if kind in (kinds.INFERENCE_SERVICES, kinds.DEPLOYMENTS, kinds.PODS):
            self.on_pool_input(namespace)

    def _other_changed(self, cache: ServiceCache, kind: Kind, _old: Json | None, _new: Json | None) -> None:
        if kind in (cache.kind, kinds.PODS, kinds.HOST_PROCESSES):
            self.on_adapter_input()

    def _inference_service_changed(self, key: ServiceKey, old: Json | None, new: Json | None) -> None:
        self.llmkube.index.service_changed(old, new)
        if new is None:
            self.quotas.release(key)
            self.registry.release(key)
        if old is None or new is None:
            self.scheduling.refresh(key)
            self._enqueue_services(key.namespace, self.llmkube.index.rivals(key.namespace, key.name))
        if ownership.controller_changed(old, new):
            # The controller of a Model is that of the services that use it.
            for model in sorted(models_of(new or old or {})):
                self._enqueue_model(key.namespace, model)

    def _process_changed(self, old: Json | None, new: Json | None) -> None:
        obj: Json = new or old or {}
        metadata, labels = obj["metadata"], obj["metadata"]["labels"]
        key = ServiceKey(
            labels.get(LABEL_DIALECT, LLMKUBE), metadata["namespace"], labels.get(naming.LABEL_SERVICE, "")
        )
        self.registry.process_changed(key, new, replica=obj["spec"]["replica"])
        self.caches.get(key.dialect, self.llmkube).changed(kinds.HOST_PROCESSES, old, new)

    def _claim_changed(self, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and old["status"] == new["status"]:
            return
        namespace, name = (new or old or {})["metadata"]["namespace"], (new or old or {})["metadata"]["name"]
        for model in self.models.list(namespace):
            if str((model.get("spec") or {}).get("source", "")).lower().startswith(f"pvc://{name}/"):
                self._enqueue_model(namespace, model["metadata"]["name"])
        self._enqueue_services(namespace, self.llmkube.index.services_of_claim(namespace, name))

    def _node_changed(self, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and old["trouble"] != new["trouble"]:
            for cache in self.caches.values():
                cache.enqueue_node(new["metadata"]["name"])
        before, after = ((n["status"], n["metadata"]["labels"]) if n is not None else None for n in (old, new))
        if before == after:
            return
        self.scheduling.nodes_changed()
        if old is not None and new is not None and old["status"]["capacity"] == new["status"]["capacity"]:
            return
        for model in self.models.list():
            if (model.get("spec") or {}).get("hardware"):
                self._enqueue_model(model["metadata"]["namespace"], model["metadata"]["name"])

    def _priority_class_changed(self, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and old["value"] == new["value"]:
            return
        name = (new or old or {})["metadata"]["name"]
        for service in self.llmkube.listed(kinds.INFERENCE_SERVICES):
            if _priority_class(service) == name:
                self._enqueue_services(service["metadata"]["namespace"], (service["metadata"]["name"],))

    def _namespace_changed(self, old: Json | None, new: Json | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        self.quotas.set_namespace(name, new["labels"] if new is not None else None)
        if new is None:
            self.on_namespace_gone(name)
            return
        before = old if old is not None else {**new, "terminating": False}
        if old is None and self.namespaces.has_synced:
            # A service may have had a pass before this event. The first list comes before all passes.
            before["labels"] = {}
        if before["labels"] != new["labels"]:
            self.registry.namespace_changed(name)
        if before["annotations"] != new["annotations"]:
            for model in self.models.list(name):
                self._enqueue_model(name, model["metadata"]["name"])
            self.on_pool_input(name)
            self.on_router_input()
            self.on_adapter_input()
        if any(before[field] != new[field] for field in ("labels", "annotations", "terminating")):
            for cache in self.caches.values():
                cache.enqueue_namespace(name)

    def _quota_changed(self, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and old["metadata"]["uid"] != new["metadata"]["uid"]:
            # The quota was deleted and created again between two lists.
            self._quota_changed(old, None)
            old = None
        if old is not None and new is not None and old["spec"] == new["spec"]:
            return
        metadata = (new or old or {})["metadata"]
        name = QuotaName(metadata["namespace"], metadata["name"])
        self.quotas.set_quota(name, quota_of(new) if new is not None else None)
        if old is None and new is not None and (status := new.get("status")):
            last = status.get("lastDenial") or {}
            denial = Denial(last.get("service", ""), last.get("message", ""), last["time"]) if "time" in last else None
            self.quotas.restore_tally(name, denials=int(status.get("admissionDenials") or 0), last_denial=denial)

    def _pool_changed(self, old: Json | None, new: Json | None) -> None:
        self.on_pool_input((new or old or {})["metadata"]["namespace"])

    def _apis_changed(self, changed: frozenset[Kind]) -> None:
        if kinds.GPU_QUOTAS in changed:
            self.quotas.admit_again()

    def _slice_changed(self, old: Json | None, new: Json | None) -> None:
        # A heartbeat alone enqueues nothing. The service is reconciled again when the heartbeat would have become
        # stale.
        if old is not None and new is not None and old["ready"] == new["ready"]:
            return
        metadata = (new or old or {})["metadata"]
        names = self.llmkube.index.services_named(metadata["namespace"], metadata["service"])
        self._enqueue_services(metadata["namespace"], names)
        for cache in self.caches.values():
            if cache is not self.llmkube:
                cache.enqueue_hosted(metadata["namespace"])

    def _enqueue_services(self, namespace: str, names: Iterable[str]) -> None:
        for name in names:
            self._enqueue(ServiceKey(LLMKUBE, namespace, name))


def _priority_class(service: Json) -> str:
    """Return the name of the PriorityClass of an InferenceService's pods."""
    spec = service.get("spec") or {}
    return str(spec.get("priorityClassName") or class_name(spec.get("priority") or "normal"))
