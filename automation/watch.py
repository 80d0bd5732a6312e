"""The loop's eyes: one informer per kind, and the rule which services each change concerns.

Built by `loop`; the controller and `observe` read the caches. A change enqueues keys, never events.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from automation import trim
from automation.settings import SYSTEM_NAMESPACE
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey

Object = dict[str, Any]
DIALECT = "llmkube"


class ServiceIndex:
    """Finds services by what they refer to and objects by the service they were made for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_model: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._by_service_name: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._objects: dict[tuple[str, str], dict[tuple[str, str], Object]] = defaultdict(dict)
        self._pods: dict[tuple[str, str], dict[str, Object]] = defaultdict(dict)

    def service_changed(self, old: Object | None, new: Object | None) -> None:
        with self._lock:
            for obj, add in ((old, False), (new, True)):
                if obj is None:
                    continue
                namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
                for model in models_of(obj):
                    _update(self._by_model, (namespace, model), name, add=add)
                _update(self._by_service_name, (namespace, naming.service_name(name)), name, add=add)

    def object_changed(self, kind: str, old: Object | None, new: Object | None) -> str:
        """Record an object of a service and return that service's name (empty if it belongs to none)."""
        obj = new or old
        if obj is None:
            return ""
        metadata = obj["metadata"]
        service = str(metadata["labels"].get(naming.LABEL_SERVICE, ""))
        if service:
            with self._lock:
                objects = self._objects[(metadata["namespace"], service)]
                if new is None:
                    objects.pop((kind, metadata["name"]), None)
                    if not objects:
                        del self._objects[(metadata["namespace"], service)]
                else:
                    objects[(kind, metadata["name"])] = new
        return service

    def pod_changed(self, old: Object | None, new: Object | None) -> str:
        obj = new or old
        if obj is None:
            return ""
        metadata = obj["metadata"]
        service = str(metadata["labels"].get(naming.LABEL_SERVICE, ""))
        with self._lock:
            pods = self._pods[(metadata["namespace"], service)]
            if new is None:
                pods.pop(metadata["name"], None)
                if not pods:
                    del self._pods[(metadata["namespace"], service)]
            else:
                pods[metadata["name"]] = new
        return service

    def services_of_model(self, namespace: str, model: str) -> list[str]:
        with self._lock:
            return sorted(self._by_model.get((namespace, model), ()))

    def rivals(self, namespace: str, name: str) -> list[str]:
        """Name the other services whose Kubernetes Service would have the same name as this one's."""
        with self._lock:
            return sorted(self._by_service_name.get((namespace, naming.service_name(name)), set()) - {name})

    def objects(self, namespace: str, service: str) -> dict[tuple[str, str], Object]:
        with self._lock:
            return dict(self._objects.get((namespace, service), {}))

    def pods(self, namespace: str, service: str) -> list[Object]:
        with self._lock:
            return list(self._pods.get((namespace, service), {}).values())

    def services_with_objects(self) -> list[tuple[str, str]]:
        with self._lock:
            return list(self._objects)


def _update(index: dict[tuple[str, str], set[str]], key: tuple[str, str], name: str, *, add: bool) -> None:
    if add:
        index[key].add(name)
    elif key in index:
        index[key].discard(name)
        if not index[key]:
            del index[key]


def models_of(service: Object) -> set[str]:
    """Name the Models that a service refers to: the one it serves and, for speculative decoding, the draft."""
    spec = service.get("spec") or {}
    draft = ((spec.get("vllmConfig") or {}).get("speculative") or {}).get("model")
    return {name for name in (spec.get("modelRef"), draft) if name}


class World:
    """All informers of the loop and what each change enqueues."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespaces: tuple[str, ...],
        enqueue: Callable[[ServiceKey], None],
        enqueue_model: Callable[[str, str], None],
        on_relist: Callable[[Kind], None] | None = None,
    ) -> None:
        self._enqueue = enqueue
        self._enqueue_model = enqueue_model
        self.index = ServiceIndex()
        scope: dict[str, Any] = {"namespaces": namespaces or None, "on_relist": on_relist}

        def informer(kind: Kind, transform: Callable[[Object], Object], on_change: Any, **options: Any) -> Informer:
            return Informer(client, kind, transform=transform, on_change=on_change, **{**scope, **options})

        made_for_service = {"label_selector": naming.LABEL_SERVICE}
        self.services = informer(kinds.INFERENCE_SERVICES, trim.custom_resource, self._service_changed)
        self.models = informer(kinds.MODELS, trim.custom_resource, self._model_changed)
        self.deployments = informer(
            kinds.DEPLOYMENTS, trim.deployment, self._on_object("Deployment"), **made_for_service
        )
        self.kube_services = informer(kinds.SERVICES, trim.owned, self._on_object("Service"), **made_for_service)
        self.autoscalers = informer(
            kinds.AUTOSCALERS, trim.autoscaler, self._on_object("HorizontalPodAutoscaler"), **made_for_service
        )
        self.host_processes = informer(
            kinds.HOST_PROCESSES, trim.host_process, self._on_object("HostProcess"), **made_for_service
        )
        self.pods = informer(kinds.PODS, trim.pod, self._pod_changed, **made_for_service)
        self.claims = informer(kinds.CLAIMS, trim.claim, self._claim_changed)
        self.nodes = informer(kinds.NODES, trim.node, self._node_changed, namespaces=None)
        self.endpoint_slices = informer(
            kinds.ENDPOINT_SLICES,
            trim.endpoint_slice,
            self._slice_changed,
            label_selector="llmkube.ai/managed-by=metal-agent",
        )
        self.hosts = informer(
            kinds.LEASES,
            trim.lease,
            self._host_changed,
            namespaces=(SYSTEM_NAMESPACE,),
            label_selector=naming.LABEL_HOST,
        )

    @property
    def informers(self) -> tuple[Informer, ...]:
        return (
            self.services,
            self.models,
            self.deployments,
            self.kube_services,
            self.autoscalers,
            self.host_processes,
            self.pods,
            self.claims,
            self.nodes,
            self.endpoint_slices,
            self.hosts,
        )

    def start(self) -> None:
        for informer in self.informers:
            informer.start()

    def stop(self) -> None:
        for informer in self.informers:
            informer.stop()

    def wait_synced(self, timeout_s: float) -> bool:
        return all(informer.wait_synced(timeout_s) for informer in self.informers)

    # Each handler runs in its informer's thread and only touches the index and the queue.

    def _service_changed(self, old: Object | None, new: Object | None) -> None:
        self.index.service_changed(old, new)
        if old is not None and new is not None and not _asks_for_work(old, new):
            return
        obj = new or old
        assert obj is not None
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        self._enqueue(ServiceKey(DIALECT, namespace, name))
        if old is None or new is None:
            self._enqueue_services(namespace, self.index.rivals(namespace, name))

    def _model_changed(self, old: Object | None, new: Object | None) -> None:
        obj = new or old
        assert obj is not None
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        if old is None or new is None or _asks_for_work(old, new):
            self._enqueue_model(namespace, name)
        if old is None or new is None or old.get("status") != new.get("status") or old["spec"] != new["spec"]:
            self._enqueue_services(namespace, self.index.services_of_model(namespace, name))

    def _on_object(self, kind: str) -> Callable[[Object | None, Object | None], None]:
        def changed(old: Object | None, new: Object | None) -> None:
            service = self.index.object_changed(kind, old, new)
            if old is not None and new is not None and _without_version(old) == _without_version(new):
                return
            if service:
                self._enqueue_services((new or old or {})["metadata"]["namespace"], (service,))

        return changed

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        service = self.index.pod_changed(old, new)
        if old is not None and new is not None and _without_version(old) == _without_version(new):
            return
        self._enqueue_services((new or old or {})["metadata"]["namespace"], (service,))

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and old["status"] == new["status"]:
            return
        namespace, name = (new or old or {})["metadata"]["namespace"], (new or old or {})["metadata"]["name"]
        for model in self.models.list(namespace):
            if str((model.get("spec") or {}).get("source", "")).lower().startswith(f"pvc://{name}/"):
                self._enqueue_model(namespace, model["metadata"]["name"])

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and old["status"] == new["status"]:
            return
        for model in self.models.list():
            if (model.get("spec") or {}).get("hardware"):
                self._enqueue_model(model["metadata"]["namespace"], model["metadata"]["name"])

    def _slice_changed(self, old: Object | None, new: Object | None) -> None:
        # A new heartbeat alone changes nothing; the controller looks again when a heartbeat would have grown stale.
        if old is not None and new is not None and old["ready"] == new["ready"]:
            return
        metadata = (new or old or {})["metadata"]
        for service in self.services.list(metadata["namespace"]):
            if naming.service_name(service["metadata"]["name"]) == metadata["service"]:
                self._enqueue_services(metadata["namespace"], (service["metadata"]["name"],))

    def _host_changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and old["holder"] == new["holder"]:
            return
        for service in self.services.list():
            # A host came or went: services without one may be placed now. The pass is cheap where nothing changes.
            self._enqueue_services(service["metadata"]["namespace"], (service["metadata"]["name"],))

    def _enqueue_services(self, namespace: str, names: Iterable[str]) -> None:
        for name in names:
            self._enqueue(ServiceKey(DIALECT, namespace, name))


def _asks_for_work(old: Object, new: Object) -> bool:
    """Tell an edit by somebody from our own status write."""
    before, after = old["metadata"], new["metadata"]
    return bool(
        before.get("generation") != after.get("generation")
        or before.get("annotations") != after.get("annotations")
        or before.get("deletionTimestamp") != after.get("deletionTimestamp")
        or before["uid"] != after["uid"]
    )


def _without_version(obj: Object) -> Object:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    return {**obj, "metadata": metadata}
