"""The models and replicas of a cluster, from its objects and from what the engines say. Pure.

`cluster_routes` calls it.

Clients reach each service by a Kubernetes Service. The EndpointSlices of this Service lead to pods, to hosts, or, while
the service sleeps, to the proxy that wakes it. The gateway uses the same addresses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from agent.contract import LABEL_HOST
from agent.proxy.limits import DEFAULT_MAX_HELD, DEFAULT_WAKE_TIMEOUT_S
from agent.proxy.upstream import Target
from gateway.cluster.adapters import DeclaredAdapter, adapter_routes, model_fields, on_host
from gateway.engines.backends import Locality, Route
from gateway.engines.balancer import EVEN, Traits
from gateway.engines.waiting import Holding
from gateway.names import Model, ServiceName
from gateway.price import FREE, Price
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.keys import (
    ANNOTATION_LOAD_BALANCING,
    ANNOTATION_LOAD_LOCALITY,
    ANNOTATION_LOAD_WEIGHTS,
    ANNOTATION_MODEL_ALIASES,
    ANNOTATION_SCALE_BY,
    ANNOTATION_SERVED_NAME,
    ANNOTATION_TOKEN_PRICE,
    service_dns_name,
)
from program.dialects.annotations import read_annotations
from program.dialects.kserve.naming import workload_service
from program.dialects.llmaz.naming import front_name
from program.dialects.llmaz.parse.playground import main_model
from program.dialects.registry import DIALECTS
from program.dialects.status.conditions import START_FAILURES, Reason, is_asleep, ready_condition

DECLARED = "declaredName"
"""The part of a trimmed service with the name by which its engine serves the model, as its spec declares it."""
LABEL_SERVICE_NAME = "kubernetes.io/service-name"
RUNTIME = "runtime"
"""The part of a trimmed service with the engine of an InferenceService."""

_FRONTS = {
    "llmkube": service_dns_name,
    "kserve": workload_service,
    "llmaz": front_name,
    "llmaz-service": front_name,
}
"""The name of the Kubernetes Service of a service, by dialect."""
_Front = tuple[str, str]
"""Namespace and name of a Kubernetes Service."""


@dataclass(frozen=True)
class EngineModels:
    """What an engine says of itself by `GET /v1/models`."""

    names: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    context_length: int | None = None

    @classmethod
    def read(cls, answer: Any) -> EngineModels:
        """Read the answer of vLLM, SGLang, TGI, llama-server or ollama. Fields of other shapes are left out."""
        entries = [each for each in _list(_get(answer, "data")) if isinstance(_get(each, "id"), str)]
        parents = [each for each in entries if not _get(each, "parent")]
        adapters = [each["id"] for each in entries if _get(each, "parent")]
        lengths = [_context(each) for each in parents]
        known = [length for length in lengths if length is not None]
        return cls(tuple(each["id"] for each in parents), tuple(adapters), known[0] if known else None)


def routes_of(
    services: Iterable[tuple[str, Json]],
    slices: Iterable[Json],
    engines: Mapping[ServiceName, EngineModels],
    adapters: Mapping[ServiceName, tuple[DeclaredAdapter, ...]] | None = None,
) -> list[Route]:
    """Return the route of each service. `services` are pairs of a dialect's name and a custom resource.

    `adapters` are those of LoRAAdapters.
    """
    listed = [(dialect, cr, service_name(dialect, cr)) for dialect, cr in services]
    sharing: dict[_Front, set[ServiceName]] = defaultdict(set)
    for _, _, service in listed:
        sharing[_front_of(service)].add(service)
    targets: dict[_Front, dict[Target, _Replica]] = {}
    owners: dict[_Front, ServiceName] = {}
    for each in slices:
        labels = each["metadata"].get("labels") or {}
        front = (each["metadata"]["namespace"], labels.get(LABEL_SERVICE_NAME, ""))
        targets.setdefault(front, {}).update(_targets(each))
        if len(sharing.get(front, ())) > 1:
            # The loop refuses all but one of the services whose names lead to one Kubernetes Service.
            owners.update((front, service) for service in sharing[front] if _is_of(service, labels))
    routes = []
    for dialect, cr, service in listed:
        front = _front_of(service)
        found = targets.get(front, {}) if owners.get(front, service) == service else {}
        routes.append(_route(dialect, cr, found, engines, adapters or {}))
    return routes


def _is_of(service: ServiceName, labels: Mapping[str, str]) -> bool:
    """Return whether the labels are those of the objects of a service."""
    return DIALECTS[service.dialect].mark.service_of(labels) == service.name


def _front_of(service: ServiceName) -> _Front:
    return (service.namespace, _FRONTS[service.dialect](service.name))


def declared_name(dialect: str, cr: Json) -> str:
    """Return the name by which the engine of a service serves its model, if its spec declares one; else nothing."""
    spec = cr.get("spec")
    if dialect == "llmaz":
        return main_model(spec)
    if dialect == "kserve":
        return str(_get(_get(spec, "model"), "name") or cr["metadata"]["name"])
    return ""


def service_name(dialect: str, cr: Json) -> ServiceName:
    """Return the name of a service from its custom resource."""
    return ServiceName(cr["metadata"]["namespace"], cr["metadata"]["name"], dialect)


def aliases_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the further names of a service's model, from the annotations of its custom resource."""
    return tuple(word for part in annotations.get(ANNOTATION_MODEL_ALIASES, "").split(",") if (word := part.strip()))


def _route(
    dialect: str,
    cr: Json,
    found: Mapping[Target, _Replica],
    engines: Mapping[ServiceName, EngineModels],
    adapters: Mapping[ServiceName, tuple[DeclaredAdapter, ...]],
) -> Route:
    metadata = cr["metadata"]
    annotations = metadata.get("annotations") or {}
    service = service_name(dialect, cr)
    engine = engines.get(service, EngineModels())
    # An engine that sleeps cannot be asked, and its first request may use the declared name.
    declared = tuple(name for name in (annotations.get(ANNOTATION_SERVED_NAME, "") or cr.get(DECLARED, ""),) if name)
    names = engine.names or declared
    pods = {target: replica.pod for target, replica in found.items() if replica.pod}
    main_name = names[0] if names else service.name
    of_service = adapters.get(service, ())
    # The spec of an InferenceService names the engine. Of other services the loop finds it in the pods.
    runtime = str(cr.get(RUNTIME, "")) or next((each.runtime for each in of_service if each.runtime), "")
    ending = {each.name for each in of_service if each.ends}
    own = adapter_routes(of_service, pods, runtime, main_name)
    model = Model(
        service,
        engine_names=names,
        adapters=tuple(dict.fromkeys((*own, *(name for name in engine.adapters if name not in ending)))),
        not_loaded=frozenset(name for name, each in own.items() if not each.targets),
        aliases=aliases_of(annotations),
        created_s=_seconds(metadata.get("creationTimestamp")),
        context_length=engine.context_length,
        price=_price(annotations.get(ANNOTATION_TOKEN_PRICE, "")),
        state=_state(cr, reachable=bool(found)),
    )
    return Route(
        model,
        tuple(sorted(found)),
        annotations.get(ANNOTATION_LOAD_BALANCING, "PrefixHash") == "PrefixHash",
        frozenset(target for target, replica in found.items() if replica.tls),
        traits=_traits(found, annotations.get(ANNOTATION_LOAD_WEIGHTS, "")),
        locality=_LOCALITIES.get(annotations.get(ANNOTATION_LOAD_LOCALITY, ""), ""),
        holding=holding_of(cr),
        adapters=own,
        engine_state=tuple(each.state for each in of_service),
        model_fields=model_fields(of_service, runtime),
    )


def holding_of(cr: Json) -> Holding | None:
    """Return how requests wait for a service; None if they do not, because no request starts a replica of it."""
    annotations = cr["metadata"].get("annotations") or {}
    if not annotations.get(ANNOTATION_SCALE_BY):
        return None
    try:
        annotated = read_annotations(annotations)
    except SpecInvalid:
        return None  # the loop changes nothing before the annotations are corrected
    ready = ready_condition(cr)
    reason, message = str(ready.get("reason", "")), str(ready.get("message", ""))[:_SHOWN]
    if reason in _STOPPED:
        return None
    told = f"{reason}: {message}" if reason else ""
    return Holding(
        DEFAULT_WAKE_TIMEOUT_S if annotated.wake_timeout_s is None else annotated.wake_timeout_s,
        DEFAULT_MAX_HELD if annotated.max_held_requests is None else annotated.max_held_requests,
        told,
        told if reason in _FAILED else "",
    )


_SHOWN = 300
"""How much of a condition's message an error repeats, in characters."""
_STOPPED = frozenset({Reason.STOPPED, Reason.SUSPENDED})
_FAILED = START_FAILURES | {Reason.MODEL_NOT_FOUND, Reason.POLICY_VIOLATED, Reason.SPEC_INVALID}
_LOCALITIES: Mapping[str, Locality] = {"PreferSameNode": "PreferSameNode", "PreferSameZone": "PreferSameZone"}
_WEIGHT = re.compile(r"\s*([^\s=]+)=([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*")


def _traits(found: Mapping[Target, _Replica], weights: str) -> dict[Target, Traits]:
    """Return the traits of the replicas that have any. `weights` is the annotation; other text in it has no effect."""
    entries = [entry for part in weights.split(",") if (entry := _WEIGHT.fullmatch(part))]
    shares = {entry[1]: float(entry[2]) for entry in entries if float(entry[2]) > 0}
    traits = {
        target: Traits(replica.node, replica.zone, shares.get(replica.node, 1.0)) for target, replica in found.items()
    }
    return {target: each for target, each in traits.items() if each != EVEN}


def _state(cr: Json, *, reachable: bool) -> str:
    if is_asleep(cr):
        return "asleep"
    return "ready" if reachable else "not ready"


def _price(text: str) -> Price:
    try:
        return Price.read(text) if text else FREE
    except ValueError:
        return FREE


class _Replica(NamedTuple):
    """What an EndpointSlice says of one address."""

    tls: bool
    node: str
    """The node of a pod, or the host of a process."""
    zone: str
    pod: str
    """`on_host` for a process on a host; empty for a proxy."""


def _targets(endpoint_slice: Json) -> Iterable[tuple[Target, _Replica]]:
    """Yield the addresses that accept new requests."""
    ports = [each for each in endpoint_slice.get("ports") or () if each.get("port")]
    if not ports:
        return
    port = next((each for name in ("http", "https") for each in ports if each.get("name") == name), ports[0])
    tls = "https" in (port.get("name"), port.get("appProtocol"))
    host = str((endpoint_slice["metadata"].get("labels") or {}).get(LABEL_HOST, ""))
    for endpoint in endpoint_slice.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        if conditions.get("ready") is not False and not conditions.get("terminating"):
            refers = endpoint.get("targetRef") or {}
            pod = str(refers.get("name") or "") if refers.get("kind") == "Pod" else on_host(host) if host else ""
            replica = _Replica(tls, str(endpoint.get("nodeName") or host), str(endpoint.get("zone") or ""), pod)
            yield from (((str(address), int(port["port"])), replica) for address in endpoint.get("addresses") or ()[:1])


def _context(entry: Any) -> int | None:
    """Return the context length in tokens: `max_model_len` of vLLM and SGLang, `meta.n_ctx_train` of llama-server."""
    for found in (_get(entry, "max_model_len"), _get(_get(entry, "meta"), "n_ctx_train")):
        if isinstance(found, int) and found > 0:
            return found
    return None


def _seconds(stamp: str | None) -> int:
    return int(datetime.fromisoformat(stamp).timestamp()) if stamp else 0


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
