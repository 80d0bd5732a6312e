"""The loop's eyes: one informer per kind, and the rule which services each change concerns.

Built by `loop`; the controller and `observe` read the caches. A change enqueues keys, never events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from automation.admission.quota import Denial, QuotaName, quota_of
from automation.admission.quota_ledger import QuotaLedger
from automation.admission.scheduling import Scheduling
from automation.adoption import ownership
from automation.cache import trim
from automation.cache.optional_apis import CHECK_EVERY_S, OptionalApis
from automation.cache.references import MADE, asks_for_work, changed_hands, priority_class_of, uses, without_version
from automation.cache.service_cache import ServiceCache
from automation.cache.service_index import ServiceIndex
from automation.cache.service_index import models_of as models_of
from automation.hosts.registry import HostRegistry
from automation.settings import SYSTEM_NAMESPACE
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Fault, Informer
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import LABEL_DIALECT, ServiceKey
from program.dialects.registry import DIALECT_KINDS

DIALECT = "llmkube"

SPREAD_S = 0.02
"""When an API appears or goes, the services that use it come one after the other, this far apart."""


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
        self.on_namespace_gone: Callable[[str], None] = lambda _: None
        """Is told of each change of a pod, in the informer's thread (`automation.models.transfers`)."""
        self._enqueue = enqueue
        self._enqueue_after = enqueue_after or (lambda key, _: enqueue(key))
        self._enqueue_model = enqueue_model
        self._client = client
        self.controller_class = controller_class
        self.index = ServiceIndex()
        self.quotas = QuotaLedger(on_admitted=enqueue)
        self.registry = HostRegistry(enqueue=enqueue, enqueue_after=self._enqueue_after, move_after_s=host_move_after_s)
        self.registry.allocations.namespace_labels = self.namespace_labels
        scope: dict[str, Any] = {"namespaces": namespaces or None, "on_relist": on_relist, "on_failure": on_failure}

        self._host_process_changed = self._on_object("HostProcess")

        def informer(kind: Kind, transform: Callable[[Json], Json], on_change: Any, **options: Any) -> Informer:
            return Informer(client, kind, transform=transform, on_change=on_change, **{**scope, **options})

        of_dialects: dict[str, Any] = {"informer": informer, "enqueue": enqueue, "enqueue_after": self._enqueue_after}
        self.caches = {
            name: ServiceCache(client, name, namespaces=namespaces, check_every_s=api_check_s, **of_dialects)
            for name in DIALECT_KINDS
        }
        """The services of the other dialects by dialect, each followed while its CRDs are installed."""

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
            kinds.HOST_PROCESSES, trim.host_process, self._process_changed, **made_for_service
        )
        self.budgets = informer(
            kinds.DISRUPTION_BUDGETS, trim.owned, self._on_object("PodDisruptionBudget"), **made_for_service
        )
        self.network_policies = informer(
            kinds.NETWORK_POLICIES, trim.owned, self._on_object("NetworkPolicy"), **made_for_service
        )
        self.ingresses = informer(kinds.INGRESSES, trim.ingress, self._on_object("Ingress"), **made_for_service)
        self.pods = informer(kinds.PODS, trim.pod, self._pod_changed, **made_for_service)
        self.claims = informer(kinds.CLAIMS, trim.claim, self._claim_changed)
        self.nodes = informer(kinds.NODES, trim.node, self._node_changed, namespaces=None)
        self.priority_classes = informer(
            kinds.PRIORITY_CLASSES, trim.priority_class, self._priority_class_changed, namespaces=None
        )
        self.namespaces = informer(kinds.NAMESPACES, trim.namespace, self._namespace_changed, namespaces=None)
        self.endpoint_slices = informer(
            kinds.ENDPOINT_SLICES,
            trim.endpoint_slice,
            self._slice_changed,
            label_selector="llmkube.ai/managed-by=metal-agent",
        )
        self.hosts = informer(
            kinds.LEASES,
            trim.lease,
            self.registry.lease_changed,
            namespaces=(SYSTEM_NAMESPACE,),
            label_selector=naming.LABEL_HOST,
        )
        self.scheduling = Scheduling(
            self.index, enqueue=enqueue, service=self.services.get, nodes=lambda: self.nodes.list()
        )
        optional: dict[Kind, tuple[Callable[[Json], Json], Any, dict[str, Any]]] = {
            kinds.HTTP_ROUTES: (trim.route, self._on_object("HTTPRoute"), made_for_service),
            kinds.SCALED_OBJECTS: (trim.autoscaler, self._on_object("ScaledObject"), made_for_service),
            kinds.POD_MONITORS: (trim.owned, self._on_object("PodMonitor"), made_for_service),
            kinds.SERVICE_LEVEL_OBJECTIVES: (
                trim.owned,
                self._on_object("ServiceLevelObjective"),
                made_for_service,
            ),
            kinds.GPU_QUOTAS: (trim.custom_resource, self._quota_changed, {}),
            kinds.HOSTS: (trim.host, self.registry.host_changed, {"namespaces": None}),
        }
        self.optional = OptionalApis(
            client,
            optional,
            make=lambda kind: informer(
                kind, optional[kind][0], optional[kind][1], on_missing=self.optional.recheck, **optional[kind][2]
            ),
            on_change=self._apis_changed,
            namespace=min(namespaces, default=None),
            check_every_s=api_check_s,
        )
        self.registry.hosts_served = lambda: (
            kinds.HOSTS in self.optional.served or bool(self.optional.trouble(kinds.HOSTS))
        )
        self.quotas.unreadable = lambda: self.optional.trouble(kinds.GPU_QUOTAS)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The informers of all kinds that every cluster has."""
        return (
            self.services,
            self.models,
            self.deployments,
            self.kube_services,
            self.autoscalers,
            self.host_processes,
            self.budgets,
            self.network_policies,
            self.ingresses,
            self.pods,
            self.claims,
            self.nodes,
            self.priority_classes,
            self.namespaces,
            self.endpoint_slices,
            self.hosts,
        )

    def start(self) -> None:
        for informer in self.informers:
            informer.start()
        self.optional.start()
        for cache in self.caches.values():
            cache.start()

    def stop(self) -> None:
        self.optional.stop()
        for cache in self.caches.values():
            cache.stop()
        for informer in self.informers:
            informer.stop()

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait until every cache is filled; False when the time ran out first."""
        deadline = time.monotonic() + timeout_s

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        of_all = all(each.wait_synced(left_s()) for each in self.informers)
        return of_all and all(each.wait_synced(left_s()) for each in self._apis)

    def faults(self) -> Iterator[Fault]:
        """Tell what is wrong with the informers of all kinds, and which APIs cannot be listed."""
        troubles: dict[Kind, str] = {}
        for apis in self._apis:
            troubles.update(apis.troubles())
        for kind, why in troubles.items():
            yield Fault(f"{kind.full_name} is served and cannot be listed: {why}", restart_helps=False)
        optional = (informer for apis in self._apis for informer in apis.informers)
        config_maps = (informer for cache in self.caches.values() for informer in cache.config_maps.informers)
        for informer in (*self.informers, *optional, *config_maps):
            yield from informer.faults()

    @property
    def _apis(self) -> tuple[OptionalApis, ...]:
        return (self.optional, *(cache.apis for cache in self.caches.values()))

    @property
    def indexes(self) -> dict[str, ServiceIndex]:
        """What was made for the services of each dialect."""
        return {DIALECT: self.index, **{name: each.index for name, each in self.caches.items()}}

    def every_service(self) -> list[Json]:
        """The custom resources of the services of all dialects."""
        return [*self.services.list(), *(cr for _, cr in self.dialect_services())]

    def dialect_services(self) -> list[tuple[str, Json]]:
        """The custom resources of the services of the other dialects, each with the name of its dialect."""
        return [(name, cr) for name, cache in self.caches.items() for cr in cache.listed(cache.kind)]

    def every_key(self) -> set[ServiceKey]:
        """The keys of all services, those included of which only what was made for them is left."""
        listed = [*((DIALECT, cr) for cr in self.services.list()), *self.dialect_services()]
        keys = {ServiceKey(name, cr["metadata"]["namespace"], cr["metadata"]["name"]) for name, cr in listed}
        for dialect, index in self.indexes.items():
            keys.update(ServiceKey(dialect, *found) for found in index.services_with_objects())
        return keys

    def installed(self) -> frozenset[str]:
        """Name the extensions that the cluster serves now, as `RenderOptions.installed` does."""
        return frozenset().union(*(apis.installed() for apis in self._apis))

    def watched_kinds(self) -> frozenset[str]:
        """The kinds of objects made for services whose existence the caches know; of others nothing can be said."""
        return MADE | {kind.kind for kind in self.optional.served if kind in kinds.OPTIONAL}

    def models_of(self, cr: Json) -> tuple[Json, ...]:
        """The Models that a service names, as far as they exist."""
        namespace = cr["metadata"]["namespace"]
        found = (self.models.get(namespace, name) for name in sorted(models_of(cr)))
        return tuple(model for model in found if model is not None)

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace, which policies and hosts select by."""
        found = self.namespaces.get(None, namespace)
        labels: Mapping[str, str] = found["labels"] if found is not None else {}
        return labels

    def priority_value(self, class_name: str) -> int | None:
        """The value of a PriorityClass; None where there is none of that name."""
        found = self.priority_classes.get(None, class_name)
        return int(found["value"]) if found is not None else None

    def node_trouble(self, name: str) -> str:
        """Why a node is not ready, in the words of its condition; empty while it is, and for one that is not known."""
        found = self.nodes.get(None, name) if name else None
        return str(found["trouble"]) if found is not None else ""

    def is_terminating(self, namespace: str) -> bool:
        """Whether the namespace is being deleted: nothing can be made in it any more."""
        found = self.namespaces.get(None, namespace)
        return found is not None and bool(found["terminating"])

    def namespace_annotations(self, namespace: str) -> Mapping[str, str]:
        """What a namespace says of its services, in annotations under herdsman.dev/.

        A namespace and a service in it that are made together may be seen in either order, so the API server is asked
        about a namespace that is not seen yet. Raises ApiError.
        """
        found = self.namespaces.get(None, namespace)
        if found is None:
            # A list of one: the loop may list and watch namespaces, and not get them.
            listed = self._client.list(kinds.NAMESPACES, field_selector=f"metadata.name={namespace}")["items"]
            found = trim.namespace(listed[0]) if listed else None
        annotations: Mapping[str, str] = found["annotations"] if found is not None else {}
        return annotations

    def is_ours(self, cr: Json, *, held: bool = False) -> bool:
        """Whether this loop looks after a service; see `ownership`.

        One that is `held`, by the marks of a peer's controller which may still run, is so only where somebody said it.
        """
        said = self.namespace_annotations(cr["metadata"]["namespace"])
        if held and not ownership.controller_of(cr, said):
            return False
        return ownership.is_ours(cr, said, self.controller_class)

    def model_is_ours(self, model: Json) -> bool:
        """Whether this loop writes the status of a Model."""
        namespace, name = model["metadata"]["namespace"], model["metadata"]["name"]
        found = (self.services.get(namespace, user) for user in self.index.services_of_model(namespace, name))
        users = [user for user in found if user is not None]
        said = self.namespace_annotations(namespace)
        return ownership.model_is_ours(model, users, said, self.controller_class)

    # Each handler runs in its informer's thread and only touches the index and the queue.

    def _service_changed(self, old: Json | None, new: Json | None) -> None:
        self.index.service_changed(old, new)
        if old is not None and new is not None and not asks_for_work(old, new):
            return
        obj = new or old
        assert obj is not None
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        key = ServiceKey(DIALECT, namespace, name)
        if new is None:
            self.quotas.release(key)
            self.registry.release(key)
        if old is None or new is None:
            self.scheduling.refresh(key)
        self._enqueue(key)
        if ownership.says_another(old, new):
            # Whose a Model is follows from whose its services are.
            for model in sorted(models_of(obj)):
                self._enqueue_model(namespace, model)
        if old is None or new is None:
            self._enqueue_services(namespace, self.index.rivals(namespace, name))

    def _model_changed(self, old: Json | None, new: Json | None) -> None:
        obj = new or old
        assert obj is not None
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        if old is None or new is None or asks_for_work(old, new):
            self._enqueue_model(namespace, name)
        if old is None or new is None or old.get("status") != new.get("status") or old["spec"] != new["spec"]:
            self._enqueue_services(namespace, self.index.services_of_model(namespace, name))

    def _on_object(self, kind: str) -> Callable[[Json | None, Json | None], None]:
        def changed(old: Json | None, new: Json | None) -> None:
            if changed_hands(old, new):
                changed(old, None)
                old = None
            service = self.index.object_changed(kind, old, new)
            if not service or (old is not None and new is not None and without_version(old) == without_version(new)):
                return
            key = ServiceKey(DIALECT, (new or old or {})["metadata"]["namespace"], service)
            if kind == "Deployment":
                self.scheduling.deployment_changed(key)
            self._enqueue(key)

        return changed

    def _process_changed(self, old: Json | None, new: Json | None) -> None:
        metadata = (new or old or {})["metadata"]
        service = metadata["labels"].get(naming.LABEL_SERVICE, "")
        key = ServiceKey(metadata["labels"].get(LABEL_DIALECT, DIALECT), metadata["namespace"], service)
        self.registry.process_changed(key, new, replica=(new or old or {})["spec"]["replica"])
        cache = self.caches.get(key.dialect)
        (cache.process_changed if cache is not None else self._host_process_changed)(old, new)

    def _pod_changed(self, old: Json | None, new: Json | None) -> None:
        if changed_hands(old, new):
            self._pod_changed(old, None)
            old = None
        service = self.index.pod_changed(old, new)
        if old is not None and new is not None and without_version(old) == without_version(new):
            return
        metadata = (new or old or {})["metadata"]
        key = ServiceKey(DIALECT, metadata["namespace"], service)
        self.scheduling.pod_changed(key, new, name=metadata["name"])
        self.on_pod(old, new)
        self._enqueue(key)

    def _claim_changed(self, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and old["status"] == new["status"]:
            return
        namespace, name = (new or old or {})["metadata"]["namespace"], (new or old or {})["metadata"]["name"]
        for model in self.models.list(namespace):
            if str((model.get("spec") or {}).get("source", "")).lower().startswith(f"pvc://{name}/"):
                self._enqueue_model(namespace, model["metadata"]["name"])
        self._enqueue_services(namespace, self.index.services_of_claim(namespace, name))

    def _node_changed(self, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and old["trouble"] != new["trouble"]:
            for pod in self.pods.list():
                if pod["node"] == new["metadata"]["name"]:
                    metadata = pod["metadata"]
                    self._enqueue_services(metadata["namespace"], (metadata["labels"][naming.LABEL_SERVICE],))
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
        for service in self.services.list():
            if priority_class_of(service) == name:
                self._enqueue_services(service["metadata"]["namespace"], (service["metadata"]["name"],))

    def _namespace_changed(self, old: Json | None, new: Json | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        if new is None:
            self.on_namespace_gone(name)
        self.quotas.set_namespace(name, new["labels"] if new is not None else None)
        said, says = ((each["annotations"], each["labels"]) if each is not None else None for each in (old, new))
        if old is not None and new is not None and (said != says or old["terminating"] != new["terminating"]):
            for cache in self.caches.values():
                cache.enqueue_all(name)
        if old is not None and new is not None and old["labels"] != new["labels"]:
            self.registry.namespace_changed(name)
        if said is not None and says is not None and said != says:
            self._enqueue_services(name, [s["metadata"]["name"] for s in self.services.list(name)])
            for model in self.models.list(name):
                self._enqueue_model(name, model["metadata"]["name"])
        if new is not None and new["terminating"] and not (old is not None and old["terminating"]):
            self._enqueue_services(name, [s["metadata"]["name"] for s in self.services.list(name)])

    def _quota_changed(self, old: Json | None, new: Json | None) -> None:
        if old is not None and new is not None and old["metadata"]["uid"] != new["metadata"]["uid"]:
            # It was deleted and made again between two looks.
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

    def _apis_changed(self, changed: frozenset[Kind]) -> None:
        if kinds.GPU_QUOTAS in changed:
            self.quotas.admit_again()
        concerned = [s for s in self.services.list() if uses(s, changed)]
        for number, service in enumerate(concerned):
            key = ServiceKey(DIALECT, service["metadata"]["namespace"], service["metadata"]["name"])
            self._enqueue_after(key, number * SPREAD_S)

    def _slice_changed(self, old: Json | None, new: Json | None) -> None:
        # A new heartbeat alone changes nothing; the controller looks again when a heartbeat would have grown stale.
        if old is not None and new is not None and old["ready"] == new["ready"]:
            return
        metadata = (new or old or {})["metadata"]
        names = self.index.services_named(metadata["namespace"], metadata["service"])
        self._enqueue_services(metadata["namespace"], names)
        for cache in self.caches.values():
            cache.slice_changed(metadata["namespace"])

    def _enqueue_services(self, namespace: str, names: Iterable[str]) -> None:
        for name in names:
            self._enqueue(ServiceKey(DIALECT, namespace, name))
