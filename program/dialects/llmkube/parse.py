"""Parse an InferenceService once, strictly, into desired state; `parse_model` does the same for its Model. Pure.

The controller, the static fleet and `herdsman render` call this; everything past it sees frozen models only.
"""

from __future__ import annotations

import re
from math import gcd
from typing import Any

from program.desired.base import JsonObject
from program.desired.errors import SpecInvalid
from program.desired.keys import (
    ANNOTATION_ADOPT,
    ANNOTATION_HOST,
    Owner,
    ServiceKey,
    is_dns_label,
    is_label_value,
    service_dns_name,
)
from program.desired.model import (
    DesiredModel,
    Gpu,
    GpuVendor,
    ModelFormat,
    ModelGpu,
    SourceKind,
)
from program.desired.priorities import class_name
from program.desired.service import (
    Autoscaling,
    DesiredService,
    Endpoint,
    HostPlacement,
    PodSettings,
    ScalingMetric,
)
from program.dialects.llmkube.engine_settings import engine_settings
from program.dialects.llmkube.service_schema import AutoscalingSpec, ResourcesSpec, ServiceSpec
from program.dialects.llmkube.unhonoured import unhonoured as unhonoured
from program.dialects.quantities import check_quantity
from program.dialects.reading import read, without_nulls

DIALECT = "llmkube"
HOST_RUNTIMES = ("llamacpp", "generic")
"""Runtimes that an agent can run as a process."""

_SPLIT_MODES = {"layer": "layer", "tensor": "row", "row": "row", "pipeline": "layer", "none": "none"}
_LAYERS = re.compile(r"(\d{1,5})-(\d{1,5})", re.ASCII)


def parse_service(
    cr: JsonObject,
    model: DesiredModel,
    *,
    placed_host: str | None = None,
    draft: DesiredModel | None = None,
) -> DesiredService:
    """Parse an InferenceService with its Model resolved.

    `placed_host` is the host chosen for a service that runs as a process; an annotation overrules it. `draft` is the
    Model that vllmConfig.speculative.model names. Raises SpecInvalid with the path of the field that makes no sense,
    NotYet while a draft model that is asked for does not exist.
    """
    metadata = cr["metadata"]
    raw: dict[str, Any] = without_nulls(cr.get("spec") or {})
    spec = read(ServiceSpec, raw, field="spec")
    _check_names(str(metadata["name"]), spec.model_ref)
    annotations = metadata.get("annotations") or {}
    pinned = annotations.get(ANNOTATION_HOST) or None
    on_host = pinned is not None or model.accelerator == "metal"
    if on_host:
        _check_host(spec, model, pinned)
    elif spec.runtime in ("generic", "personaplex") and not spec.image:
        raise SpecInvalid(field="spec.image", why=f"runtime {spec.runtime} has no image of its own; name one")
    gpu = _gpu(spec.resources, model)
    return DesiredService(
        key=ServiceKey(DIALECT, str(metadata.get("namespace") or "default"), str(metadata["name"])),
        owner=_owner(cr),
        generation=int(metadata.get("generation") or 0),
        model=model,
        engine=engine_settings(spec, model=model, gpu=gpu, draft=draft),
        image=spec.image or None,
        command=tuple(spec.command),
        replicas=min(spec.replicas, 1) if on_host else spec.replicas,
        autoscaling=None if on_host or spec.autoscaling is None else _autoscaling(spec.autoscaling),
        endpoint=_endpoint(spec),
        container_port=spec.container_port,
        gpu=gpu,
        pod=_pod(spec, raw, on_host=on_host),
        skip_model_init=bool(spec.skip_model_init),
        priority=spec.priority,
        eviction_protection=bool(spec.eviction_protection),
        host_placement=HostPlacement(host=pinned or placed_host) if on_host else None,
        adopt=annotations.get(ANNOTATION_ADOPT) == "true",
    )


# --- InferenceService -------------------------------------------------------------------------------------------------


def _owner(cr: JsonObject) -> Owner | None:
    """Name the custom resource as the owner. None for one that comes from a file: a reference needs a live uid."""
    metadata = cr["metadata"]
    if not metadata.get("uid"):
        return None
    return Owner(
        api_version=str(cr["apiVersion"]), kind=str(cr["kind"]), name=str(metadata["name"]), uid=str(metadata["uid"])
    )


def _check_names(name: str, model_ref: str) -> None:
    if not is_label_value(name):
        raise SpecInvalid(
            field="metadata.name", why=f"`{name}` has {len(name)} characters; labels carry the name and hold at most 63"
        )
    if not is_dns_label(service_dns_name(name)):
        raise SpecInvalid(
            field="metadata.name",
            why=f"the Service of `{name}` would be `{service_dns_name(name)}`, which is not a DNS label of up to 63 "
            "characters; choose another name",
        )
    if not is_label_value(model_ref):
        raise SpecInvalid(
            field="spec.modelRef", why=f"`{model_ref[:64]}` is not the name of a Model of up to 63 characters"
        )


def _check_host(spec: ServiceSpec, model: DesiredModel, pinned: str | None) -> None:
    cause = f"annotation {ANNOTATION_HOST}" if pinned else f"accelerator metal of Model `{model.name}`"
    if pinned is not None and not is_label_value(pinned):
        raise SpecInvalid(
            field=f"metadata.annotations[{ANNOTATION_HOST}]", why=f"`{pinned[:64]}` is not the name of a host"
        )
    if spec.runtime not in HOST_RUNTIMES:
        raise SpecInvalid(
            field="spec.runtime",
            why=f"{spec.runtime} does not run on a host, where the {cause} places the service; "
            f"use {' or '.join(HOST_RUNTIMES)}",
        )
    if spec.runtime == "generic" and not spec.command:
        raise SpecInvalid(field="spec.command", why="runtime generic needs a command on a host, which has no image")
    if spec.runtime == "llamacpp" and model.format is ModelFormat.MLX:
        raise SpecInvalid(
            field="spec.modelRef", why=f"Model `{model.name}` has format mlx, which llama-server cannot read"
        )
    if model.source.kind is SourceKind.CLAIM:
        raise SpecInvalid(
            field="spec.modelRef",
            why=f"Model `{model.name}` is on a PersistentVolumeClaim, which the host of the {cause} cannot mount",
        )


def _gpu(resources: ResourcesSpec | None, model: DesiredModel) -> Gpu | None:
    """Resolve the GPUs of one replica: the Model's count, else the service's, else one where the Model says enabled."""
    wish = model.gpu or ModelGpu(vendor=GpuVendor.AMD if model.accelerator == "rocm" else GpuVendor.NVIDIA)
    asked = resources.gpu if resources else None
    if model.accelerator == "metal":
        count = 1
    elif wish.count and wish.enabled is not False:
        count = wish.count
    elif asked is not None:
        count = asked
    else:
        count = 1 if wish.enabled else 0
    if count == 0:
        return None
    return Gpu(
        count=count,
        vendor=wish.vendor,
        layers=wish.layers,
        split_mode=_SPLIT_MODES[wish.strategy],
        tensor_split=_tensor_split(wish, count=count, model_name=model.name),
    )


def _tensor_split(wish: ModelGpu, *, count: int, model_name: str) -> tuple[int, ...]:
    """Turn layer ranges into proportions: their sizes, divided by the greatest common divisor."""
    if not wish.layer_split or count == 1 or wish.strategy == "none":
        return ()
    field = f"Model/{model_name} spec.hardware.gpu.sharding.layerSplit"
    if len(wish.layer_split) != count:
        raise SpecInvalid(field=field, why=f"has {len(wish.layer_split)} ranges for {count} GPUs; name one for each")
    sizes, end = [], -1
    for index, text in enumerate(wish.layer_split):
        match = _LAYERS.fullmatch(text)
        first, last = (int(match[1]), int(match[2])) if match else (0, -1)
        if last < first:
            raise SpecInvalid(field=f"{field}[{index}]", why=f"`{text[:64]}` is not a range of layers such as `0-19`")
        if first <= end:
            raise SpecInvalid(field=f"{field}[{index}]", why=f"`{text}` begins before the range in front of it ends")
        sizes.append(last - first + 1)
        end = last
    shared = gcd(*sizes)
    return tuple(size // shared for size in sizes)


def _autoscaling(spec: AutoscalingSpec) -> Autoscaling:
    at = "spec.autoscaling"
    if spec.min_replicas > spec.max_replicas:
        raise SpecInvalid(
            field=f"{at}.minReplicas", why=f"{spec.min_replicas} is more than maxReplicas {spec.max_replicas}"
        )
    metrics = []
    for index, metric in enumerate(spec.metrics):
        path = f"{at}.metrics[{index}]"
        if metric.type == "Pods":
            if metric.target_average_value is None:
                raise SpecInvalid(field=f"{path}.targetAverageValue", why="is needed for a metric of type Pods")
            check_quantity(metric.target_average_value, field=f"{path}.targetAverageValue", unit="cpu")
        else:
            if metric.name not in ("cpu", "memory"):
                raise SpecInvalid(
                    field=f"{path}.name", why=f"`{metric.name[:64]}` is not a resource; use cpu or memory"
                )
            if metric.target_average_utilization is None or metric.target_average_utilization < 1:
                raise SpecInvalid(
                    field=f"{path}.targetAverageUtilization", why="must be at least 1 for a metric of type Resource"
                )
        metrics.append(
            ScalingMetric(
                type=metric.type,
                name=metric.name,
                target_average_value=metric.target_average_value,
                target_average_utilization=metric.target_average_utilization,
            )
        )
    return Autoscaling(min_replicas=spec.min_replicas, max_replicas=spec.max_replicas, metrics=tuple(metrics))


def _endpoint(spec: ServiceSpec) -> Endpoint:
    wish = spec.endpoint
    if wish is None:
        return Endpoint()
    path = wish.path if wish.path.startswith("/") else f"/{wish.path}"
    return Endpoint(port=wish.port, path=path, type=wish.type)


def _pod(spec: ServiceSpec, raw: dict[str, Any], *, on_host: bool) -> PodSettings:
    resources = spec.resources or ResourcesSpec()
    at = "spec.resources"
    cpu = check_quantity(resources.cpu, field=f"{at}.cpu", unit="cpu")
    memory = check_quantity(resources.memory, field=f"{at}.memory", unit="memory")
    host_memory = check_quantity(resources.host_memory, field=f"{at}.hostMemory", unit="memory")
    check_quantity(resources.gpu_memory, field=f"{at}.gpuMemory", unit="memory")
    env = tuple(raw.get("env", ()))
    if on_host:
        return PodSettings(env=tuple(v for v in env if "valueFrom" not in v), memory_request=host_memory or memory)
    probes = raw.get("probeOverrides", {})
    return PodSettings(
        labels=spec.pod_labels,
        annotations=spec.pod_annotations,
        node_selector=spec.node_selector,
        tolerations=tuple(raw.get("tolerations", ())),
        runtime_class_name=spec.runtime_class_name or None,
        pod_security_context=raw.get("podSecurityContext"),
        security_context=raw.get("securityContext"),
        image_pull_secrets=tuple(raw.get("imagePullSecrets", ())),
        env=env,
        startup_probe=probes.get("startup"),
        liveness_probe=probes.get("liveness"),
        readiness_probe=probes.get("readiness"),
        priority_class_name=spec.priority_class_name or class_name(spec.priority),
        cpu_request=cpu,
        memory_request=host_memory or memory,
    )
