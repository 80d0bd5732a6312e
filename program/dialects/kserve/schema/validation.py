"""Validates a service beyond the types of its fields: rules between fields, annotations, pod specs and routes. Pure.

The API server checks most rules with the CRD. This module is the only check for files, and for clusters with KServe's
CRDs but without its webhooks. It also has the rules of annotations, because CEL cannot read annotations, and of pod
specs and routes, which the CRD does not check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubeapi.json_types import Json
from program.desired import keys
from program.desired.errors import SpecInvalid
from program.dialects.annotation_values import is_name
from program.dialects.crds.reading import read, without_nulls
from program.dialects.kserve.conversion import to_hub
from program.dialects.kserve.schema import service
from program.dialects.kserve.schema.router import GatewayRef, ParentRef, Router, Routing
from program.dialects.kserve.schema.workload import (
    KedaSettings,
    KvCacheOffloading,
    Parallelism,
    RolloutStrategy,
    Scaling,
    WorkloadSpec,
)
from program.dialects.pods.fields import POD_SPEC, check_fields

DRA_PREFIX = "serving.kserve.io/exp-dra-"
"""Prefix of annotations that ask for devices by claims: device-class, cel-selector, device-count, container-name."""

_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://", re.ASCII)


def check(cr: Json) -> service.ServiceSpec:
    """Read a service of any version and check it completely.

    Raises SpecInvalid with the path of the first invalid field.
    """
    hub = to_hub(cr)
    written = without_nulls(hub.get("spec"))
    _addresses(written)
    spec = read(service.ServiceSpec, written, field="spec")
    annotations = hub["metadata"].get("annotations") or {}
    _model(spec, hub["metadata"].get("name", ""), annotations)
    _workload(spec, "spec")
    if spec.prefill is not None:
        _workload(spec.prefill, "spec.prefill")
        _alike(spec.scaling, spec.prefill.scaling)
    if spec.router is not None:
        _router(spec.router)
    _devices(annotations)
    return spec


def _addresses(spec: Any) -> None:
    """Check addresses for which the schema has a pattern, with clearer errors."""
    model = _object_or_empty(_object_or_empty(spec).get("model"))
    adapters = _object_or_empty(model.get("lora")).get("adapters")
    listed = adapters if isinstance(adapters, list) else []
    found = [("", model), *((f".lora.adapters[{index}]", adapter) for index, adapter in enumerate(listed))]
    for place, holder in found:
        uri = _object_or_empty(holder).get("uri")
        if isinstance(uri, str) and re.fullmatch(service.URI, uri) is None:
            why = f"`{uri[:64]}` is not the address of a model; write for example `hf://org/repo`"
            raise SpecInvalid(field=f"spec.model{place}.uri", why=why)


def _object_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def check_config(config: Json) -> None:
    """Check a config alone. Its effect on a service is checked with the service."""
    spec = to_hub(config).get("spec") or {}
    if spec.get("baseRefs"):
        raise SpecInvalid(field="spec.baseRefs", why="a config cannot have baseRefs")
    replicas = ((spec.get("router") or {}).get("scheduler") or {}).get("replicas")
    if isinstance(replicas, int) and replicas < 1:
        raise SpecInvalid(field="spec.router.scheduler.replicas", why="must be greater than 0")


def _model(spec: service.ServiceSpec, name: str, annotations: Mapping[str, str]) -> None:
    model = spec.model or service.ModelSpec()
    if not model.uri and not spec.base_refs:
        raise SpecInvalid(field="spec.model.uri", why="is missing; set it, or add a config that sets it to baseRefs")
    if model.uri:
        _address(spec, model.uri, annotations)
    adapters = model.lora.adapters if model.lora is not None else []
    seen: dict[str, int] = {}
    for index, adapter in enumerate(adapters):
        field = f"spec.model.lora.adapters[{index}].name"
        if any(part in (".", "..") for part in adapter.name.split("/")):
            raise SpecInvalid(field=field, why="must not hold `.` or `..` as a path")
        if adapter.name in seen:
            raise SpecInvalid(field=field, why=f"is also the name of adapters[{seen[adapter.name]}]")
        if adapter.name == (model.name or name):
            raise SpecInvalid(field=field, why="must not be the model's name")
        seen[adapter.name] = index


def _address(spec: service.ServiceSpec, uri: str, annotations: Mapping[str, str]) -> None:
    if spec.storage_initializer is not None and not spec.storage_initializer.enabled:
        return
    on_host = keys.ANNOTATION_HOST in annotations or keys.ANNOTATION_HOST_SELECTOR in annotations
    schemes = (*service.FETCHED_SCHEMES, *(service.HOST_SCHEMES if on_host else ()))
    found = _SCHEME.match(uri)
    if found is None or found["scheme"] not in schemes:
        raise SpecInvalid(
            field="spec.model.uri",
            why=f"`{uri[:64]}` has a scheme that is not supported; use {', '.join(f'{s}://' for s in schemes)}",
        )


def _workload(workload: WorkloadSpec, field: str) -> None:
    if workload.replicas is not None and workload.scaling is not None:
        raise SpecInvalid(field=field, why="set replicas (a fixed number) or scaling (an autoscaler), and not both")
    parallelism = workload.parallelism or Parallelism()
    if workload.worker is not None and not (parallelism.pipeline or parallelism.data or parallelism.data_local):
        raise SpecInvalid(field=f"{field}.worker", why="needs parallelism.pipeline, or parallelism.data and dataLocal")
    _parallelism(parallelism, f"{field}.parallelism")
    if workload.rollout_strategy is not None:
        _rollout(workload.rollout_strategy, f"{field}.rolloutStrategy", groups=workload.worker is not None)
    if workload.kv_cache_offloading is not None:
        _kv_cache(workload.kv_cache_offloading, f"{field}.kvCacheOffloading")
    if workload.scaling is not None:
        _scaling(workload.scaling, f"{field}.scaling")


def _parallelism(parallelism: Parallelism, field: str) -> None:
    data, local = parallelism.data, parallelism.data_local
    if parallelism.pipeline is not None and (data is not None or local is not None):
        raise SpecInvalid(field=field, why="set pipeline, or data and dataLocal, and not both")
    if data is not None and local is None:
        raise SpecInvalid(field=f"{field}.dataLocal", why="is required with data")
    if local is not None and data is None:
        raise SpecInvalid(field=f"{field}.data", why="is required with dataLocal")
    if data is not None and local is not None and data % local:
        raise SpecInvalid(field=f"{field}.data", why=f"`{data}` is not a multiple of dataLocal `{local}`")


def _rollout(rollout: RolloutStrategy, field: str, *, groups: bool) -> None:
    for name, share in (("maxUnavailable", rollout.max_unavailable), ("maxSurge", rollout.max_surge)):
        if isinstance(share, int) and share < 0:
            raise SpecInvalid(field=f"{field}.{name}", why="must not be negative")
    if rollout.max_unavailable not in (0, "0%"):
        return
    if rollout.max_surge in (0, "0%"):
        raise SpecInvalid(
            field=field, why="maxUnavailable and maxSurge must not both be zero, because then no pod could be replaced"
        )
    if groups and rollout.max_surge is None:
        raise SpecInvalid(field=f"{field}.maxSurge", why="is required with maxUnavailable 0 for groups of pods")


def _kv_cache(offloading: KvCacheOffloading, field: str) -> None:
    if offloading.secondary and offloading.cpu is None:
        raise SpecInvalid(field=f"{field}.cpu", why="is required with secondary tiers")
    for index, tier in enumerate(offloading.secondary):
        files = tier.file_system
        where = f"{field}.secondary[{index}].fileSystem"
        if (files.empty_dir is None) == (files.pvc is None):
            raise SpecInvalid(field=where, why="set emptyDir or pvc, and not both")
        if files.pvc is not None and (files.pvc.spec is None) == (files.pvc.ref is None):
            raise SpecInvalid(field=f"{where}.pvc", why="set spec or ref, and not both")


def _scaling(scaling: Scaling, field: str) -> None:
    if (scaling.wva is None) == (scaling.keda is None):
        raise SpecInvalid(field=field, why="set wva or keda, and not both")
    if scaling.min_replicas > scaling.max_replicas:
        raise SpecInvalid(field=field, why="minReplicas must not be greater than maxReplicas")
    if scaling.wva is not None:
        if (scaling.wva.hpa is None) == (scaling.wva.keda is None):
            raise SpecInvalid(field=f"{field}.wva", why="set hpa or keda, and not both")
        keda, where = scaling.wva.keda, f"{field}.wva.keda"
        if keda is not None and keda.advanced is not None and keda.advanced.scaling_modifiers is not None:
            raise SpecInvalid(
                field=f"{where}.advanced.scalingModifiers",
                why="must not be set, because the workload variant autoscaler sets the metric",
            )
        _keda(keda, scaling, where, field)
    _keda(scaling.keda, scaling, f"{field}.keda", field)


def _keda(keda: KedaSettings | None, scaling: Scaling, where: str, field: str) -> None:
    if keda is None:
        return
    if keda.idle_replica_count is not None and keda.idle_replica_count >= scaling.min_replicas:
        raise SpecInvalid(field=field, why="idleReplicaCount must be less than minReplicas")
    config = keda.advanced.horizontal_pod_autoscaler_config if keda.advanced is not None else None
    if config is not None and config.name:
        raise SpecInvalid(field=f"{where}.advanced.horizontalPodAutoscalerConfig.name", why="must not be set")


def _alike(decode: Scaling | None, prefill: Scaling | None) -> None:
    if decode is not None and prefill is not None and _mode(decode) != _mode(prefill):
        raise SpecInvalid(
            field="spec.prefill.scaling",
            why=f"must use the same autoscaler as spec.scaling, {_mode(decode)}",
        )


def _mode(scaling: Scaling) -> str:
    if scaling.wva is None:
        return "keda"
    return "wva with hpa" if scaling.wva.hpa is not None else "wva with keda"


def _router(router: Router) -> None:
    route = router.route or Routing()
    http_refs = route.http.refs if route.http is not None else []
    http_spec = route.http.spec if route.http is not None else None
    gateways = router.gateway.refs if router.gateway is not None else []
    if http_refs and http_spec is not None:
        raise SpecInvalid(
            field="spec.router.route.http",
            why="set refs (existing routes) or spec (a new route), and not both",
        )
    if http_refs and router.gateway is not None and not gateways:
        raise SpecInvalid(
            field="spec.router.route.http.refs",
            why="cannot be attached to the cluster's default Gateway; set spec.router.gateway.refs, or remove gateway",
        )
    parents = {_parent(ref) for ref in http_spec.parent_refs} if http_spec is not None else set()
    if parents and gateways and parents != {_parent(ref) for ref in gateways}:
        raise SpecInvalid(
            field="spec.router.route.http.spec",
            why="parentRefs and spec.router.gateway.refs name different gateways; remove one of the two fields",
        )
    _group(router, route)
    config = router.scheduler.config if router.scheduler is not None else None
    if config is not None and (config.inline is None) == (config.ref is None):
        raise SpecInvalid(field="spec.router.scheduler.config", why="set inline or ref, and not both")


def _parent(ref: ParentRef | GatewayRef) -> tuple[str, str, str]:
    return ref.namespace or "", ref.name, ref.section_name or ""


def _group(router: Router, route: Routing) -> None:
    if route.weight is not None and route.group is None:
        raise SpecInvalid(field="spec.router.route.group", why="is required with weight")
    if route.group is None:
        return
    if route.weight is None:
        raise SpecInvalid(field="spec.router.route.weight", why="is required with group")
    if router.ingress is not None:
        raise SpecInvalid(
            field="spec.router.route.group",
            why="an Ingress cannot split traffic; remove spec.router.ingress or spec.router.route.group",
        )
    if route.http is not None and route.http.refs:
        raise SpecInvalid(
            field="spec.router.route.group", why="a traffic split needs a route that Herdsman creates; remove http.refs"
        )


def _devices(annotations: Mapping[str, str]) -> None:
    asked: dict[str, Any] = {k: v for k, v in annotations.items() if k.startswith(DRA_PREFIX)}
    if not asked:
        return
    name = f"{DRA_PREFIX}device-class"
    device_class = asked.get(name, "")
    if not device_class:
        raise SpecInvalid(
            field=f"metadata.annotations[{name}]",
            why="is required, because another annotation of the same devices is set",
        )
    if not is_name(device_class):
        raise SpecInvalid(field=f"metadata.annotations[{name}]", why=f"`{device_class[:64]}` is not a DNS name")
    name = f"{DRA_PREFIX}device-count"
    count = asked.get(name, "1")
    if re.fullmatch(r"[1-9][0-9]{0,3}", count, re.ASCII) is None:
        raise SpecInvalid(field=f"metadata.annotations[{name}]", why=f"`{count[:64]}` is not a number from 1 to 9999")


_LISTS_OF_NAMED = ("containers", "initContainers", "volumes")
_OF_CONTAINER = {"env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
"""Lists of a container, with the required field of each entry."""
_TEXTS = ("command", "args")


def check_pod_spec(spec: Any, *, field: str) -> None:
    """Raise SpecInvalid with the path of the first value of a wrong type."""
    _object(spec, field)
    for name in _LISTS_OF_NAMED:
        for index, entry in _listed(spec, name, field):
            path = f"{field}.{name}[{index}]"
            _object(entry, path)
            if not isinstance(entry.get("name"), str) or not entry["name"]:
                raise SpecInvalid(field=f"{path}.name", why="is missing or is not a string")
            if name != "volumes":
                _container(entry, path)
    _text(spec, "serviceAccountName", field)
    check_fields(spec, POD_SPEC, field=field)


def check_route_spec(spec: Any, *, field: str) -> None:
    """Check the spec of an HTTPRoute in the same way."""
    _object(spec, field)
    list(_objects(spec, "parentRefs", field))
    for rule, path in _objects(spec, "rules", field):
        list(_objects(rule, "backendRefs", path))
        for match, where in _objects(rule, "matches", path):
            list(_objects(match, "headers", where))
            if match.get("path") is not None:
                _object(match["path"], f"{where}.path")


def _objects(holder: Any, name: str, field: str) -> Iterator[tuple[Any, str]]:
    for index, entry in _listed(holder, name, field):
        _object(entry, f"{field}.{name}[{index}]")
        yield entry, f"{field}.{name}[{index}]"


def _container(container: Any, field: str) -> None:
    _text(container, "image", field)
    for name, needed in _OF_CONTAINER.items():
        for index, entry in _listed(container, name, field):
            _object(entry, f"{field}.{name}[{index}]")
            value = entry.get(needed)
            if value is None or isinstance(value, bool | list | dict):
                raise SpecInvalid(field=f"{field}.{name}[{index}].{needed}", why="is missing or invalid")
            if name == "env" and entry.get("value") is not None and not isinstance(entry["value"], str):
                raise SpecInvalid(field=f"{field}.env[{index}].value", why="is not a string; put it in quotes")
            if needed == "containerPort" and not (isinstance(value, int) and 0 < value < 65536):
                raise SpecInvalid(field=f"{field}.{name}[{index}].{needed}", why="is not a port from 1 to 65535")
    for name in _TEXTS:
        for index, word in _listed(container, name, field):
            if not isinstance(word, str):
                raise SpecInvalid(field=f"{field}.{name}[{index}]", why="is not a string; put it in quotes")
    resources = container.get("resources")
    if resources is not None:
        _object(resources, f"{field}.resources")
        for name in ("requests", "limits"):
            if resources.get(name) is not None:
                _object(resources[name], f"{field}.resources.{name}")
        list(_listed(resources, "claims", f"{field}.resources"))
    if container.get("securityContext") is not None:
        _object(container["securityContext"], f"{field}.securityContext")


def _listed(holder: Any, name: str, field: str) -> Iterator[tuple[int, Any]]:
    value = holder.get(name)
    if value is None:
        return iter(())
    if not isinstance(value, list):
        raise SpecInvalid(field=f"{field}.{name}", why="is not a list")
    return enumerate(value)


def _object(value: Any, field: str) -> None:
    if not isinstance(value, dict):
        raise SpecInvalid(field=field, why="is not an object")


def _text(holder: Any, name: str, field: str) -> None:
    if holder.get(name) is not None and not isinstance(holder[name], str):
        raise SpecInvalid(field=f"{field}.{name}", why="is not a string")
