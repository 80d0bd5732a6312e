"""Parses an InferenceService and its Model into desired state. Pure.

The result is frozen. Later steps do not read the custom resource's spec.
"""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.desired.engines import SecretKey
from program.desired.errors import SpecInvalid
from program.desired.keys import (
    ANNOTATION_ADOPT,
    ANNOTATION_HOST,
    ANNOTATION_HOST_SELECTOR,
    ServiceKey,
    engine_key_secret,
    is_dns_label,
    is_label_value,
    owner_of,
    service_dns_name,
)
from program.desired.model import DesiredModel, ModelFormat, SourceKind
from program.desired.service import DesiredService, Endpoint, HostPlacement
from program.dialects.annotations import API_KEY, Annotated, read_annotations
from program.dialects.crds.reading import check_shape, read, without_nulls
from program.dialects.llmkube.parse import policies
from program.dialects.llmkube.parse.engines import draft_of, engine_settings
from program.dialects.llmkube.parse.gpu import gpu_memory_of, gpu_of
from program.dialects.llmkube.parse.pod import pod_settings
from program.dialects.llmkube.schema.service import ServiceSpec
from program.dialects.llmkube.unsupported.service import unsupported_fields as unsupported_fields
from program.dialects.request_scaling import request_scaling
from program.runtimes import runtime_for

DIALECT = "llmkube"
HOST_RUNTIMES = ("llamacpp", "vllm", "ollama", "omlx", "generic")
"""Runtimes that an agent can run as a process."""
HOST_ONLY_RUNTIMES = ("omlx",)
"""Runtimes that cannot run in pods, because they need a Mac."""


def parse_service(
    cr: Json,
    model: DesiredModel,
    *,
    draft: DesiredModel | None = None,
) -> DesiredService:
    """Parse an InferenceService with its Model resolved.

    For a service that runs on hosts, `host_placement` has its wishes. The caller chooses the hosts, unless the user
    pinned one. `draft` is the Model that `draft_reference` names. Raises SpecInvalid with the path of an invalid field,
    NotYet while the named draft model does not exist.
    """
    check_shape(cr)
    metadata = cr["metadata"]
    raw: dict[str, Any] = without_nulls(cr.get("spec") or {})
    spec = read(ServiceSpec, raw, field="spec")
    _check_names(str(metadata["name"]), spec.model_ref)
    annotations = metadata.get("annotations") or {}
    annotated = read_annotations(annotations)
    hosting = annotated.hosting
    on_host = hosting.pinned or bool(hosting.selector) or model.accelerator == "metal"
    if on_host:
        _check_host(spec, model, hosting)
    elif spec.runtime in HOST_ONLY_RUNTIMES:
        raise SpecInvalid(
            field="spec.runtime",
            why=f"{spec.runtime} runs on hosts only: name a host by annotation {ANNOTATION_HOST}, select hosts by "
            f"{ANNOTATION_HOST_SELECTOR}, or give Model `{model.name}` the accelerator metal",
        )
    elif spec.runtime in ("generic", "personaplex") and not spec.image:
        raise SpecInvalid(field="spec.image", why=f"runtime {spec.runtime} has no default image; set spec.image")
    gpu = gpu_of(spec.resources, model)
    desired = DesiredService(
        key=ServiceKey(DIALECT, str(metadata.get("namespace") or "default"), str(metadata["name"])),
        owner=owner_of(cr),
        generation=int(metadata.get("generation") or 0),
        model=model,
        engine=engine_settings(spec, model=model, gpu=gpu, draft=draft, idle_path=annotated.idle_path),
        image=spec.image or None,
        command=tuple(spec.command),
        replicas=min(spec.replicas, 1) if hosting.pinned else spec.replicas,
        endpoint=_endpoint(spec),
        container_port=spec.container_port,
        gpu=gpu,
        pod=pod_settings(spec, raw, on_host=on_host),
        skip_model_init=bool(spec.skip_model_init),
        priority=spec.priority,
        eviction_protection=bool(spec.eviction_protection),
        host_placement=hosting if on_host else None,
        mode=spec.mode or "chat",
        suspended=spec.suspend,
        draft=draft_of(spec, model=model, draft=draft),
        bind_address=_bind_address(spec),
        gpu_memory_bytes=gpu_memory_of(spec.resources, model, gpu),
        engine_key=_engine_key(str(metadata["name"]), annotated.engine_key),
        completion_check=annotated.completion_check,
        sleep=annotated.sleep,
        served_name=annotated.served_name,
        drain_s=annotated.drain_s,
        drift=annotated.drift,
        adopt=annotations.get(ANNOTATION_ADOPT) == "true",
    )
    # Checked for hosts too, so that a service can move between hosts and pods without new errors.
    of_pods = _of_pods(desired, spec, annotated)
    chosen = desired if on_host else of_pods
    bounds = of_pods.autoscaling
    by_requests = request_scaling(
        annotations, annotated, replicas=chosen.replicas, autoscaling=bounds, pinned=hosting.pinned
    )
    if by_requests is None:
        return chosen
    # Zero replicas with a minimum of zero are an initial number, as for an autoscaler. They stop other services.
    first = 1 if chosen.replicas == 0 and bounds is not None and bounds.min_replicas == 0 else chosen.replicas
    return chosen.model_copy(update={"autoscaling": None, "by_requests": by_requests, "replicas": first})


def _engine_key(service: str, generation: int | None) -> SecretKey | None:
    return SecretKey(name=engine_key_secret(service, generation), key=API_KEY) if generation is not None else None


def draft_reference(cr: Json) -> str:
    """Return the name of the draft Model for speculative decoding, in the service's namespace; empty if there is none.

    Reads the object as it is written, even if it is invalid.
    """
    spec = cr.get("spec")
    by_vllm = isinstance(spec, dict) and spec.get("runtime") == "vllm"
    steps = ("vllmConfig", "speculative", "model") if by_vllm else ("speculativeDecoding", "draftModelRef")
    at: Any = spec
    for step in steps:
        at = at.get(step) if isinstance(at, dict) else None
    return at if isinstance(at, str) else ""


def _of_pods(desired: DesiredService, spec: ServiceSpec, annotated: Annotated) -> DesiredService:
    """Add the settings that only services in pods have."""
    scaling = spec.autoscaling
    runtime = runtime_for(desired.engine)
    # An engine that takes no key would answer everyone, so the desired state must not contain one.
    key = annotated.api_key or desired.engine_key
    kept = desired.model_copy(update={"api_key": key if runtime.api_key_env else None})
    return kept.model_copy(
        update={
            "autoscaling": scaling and policies.autoscaling(scaling, query=annotated.scale_query),
            "expose": policies.exposure(annotated, spec.endpoint, model_ref=spec.model_ref),
            "network": annotated.network,
            "disruption": policies.disruption(spec.disruption, annotated),
            "rollout": policies.rollout(spec.rollout_policy, annotated),
            "storage": policies.storage(spec.model_cache),
            "slo": policies.objective(spec.slo),
            "revision_history_limit": spec.revision_history_limit,
            "max_pod_lifetime_s": spec.max_pod_lifetime_seconds,
            "pod_lifetime_idle_timeout_s": policies.pod_lifetime_idle_timeout(spec),
            # Without a completion request, nothing can open the gate, and the pods would never get a request.
            "readiness_gate": annotated.readiness_gate and runtime.completion(kept) is not None,
        }
    )


# --- InferenceService -------------------------------------------------------------------------------------------------


def _check_names(name: str, model_ref: str) -> None:
    if not is_label_value(name):
        raise SpecInvalid(
            field="metadata.name",
            why=f"`{name}` has {len(name)} characters; its labels contain the name, and a label has at most 63",
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


def _check_host(spec: ServiceSpec, model: DesiredModel, hosting: HostPlacement) -> None:
    cause = f"accelerator metal of Model `{model.name}`"
    if hosting.pinned or hosting.selector:
        cause = f"annotation {ANNOTATION_HOST if hosting.pinned else ANNOTATION_HOST_SELECTOR}"
    if hosting.host is not None and not is_label_value(hosting.host):
        raise SpecInvalid(
            field=f"metadata.annotations[{ANNOTATION_HOST}]", why=f"`{hosting.host[:64]}` is not the name of a host"
        )
    if spec.runtime not in HOST_RUNTIMES:
        raise SpecInvalid(
            field="spec.runtime",
            why=f"{spec.runtime} does not run on a host, where the {cause} places the service; "
            f"use {' or '.join(HOST_RUNTIMES)}",
        )
    if spec.runtime == "generic" and not spec.command:
        raise SpecInvalid(
            field="spec.command", why="is required for runtime generic on a host, because no image supplies a command"
        )
    if spec.runtime in ("llamacpp", "ollama") and model.format is ModelFormat.MLX:
        engine = "llama-server" if spec.runtime == "llamacpp" else "Ollama"
        why = f"Model `{model.name}` has format mlx, which {engine} cannot read; use runtime omlx"
        raise SpecInvalid(field="spec.modelRef", why=why)
    if spec.runtime == "omlx" and not _is_directory(model):
        raise SpecInvalid(
            field="spec.modelRef",
            why=f"oMLX serves a directory of MLX weights: give Model `{model.name}` format mlx and as its source a "
            "repository or a directory of the host",
        )
    if model.source.kind is SourceKind.CLAIM:
        raise SpecInvalid(
            field="spec.modelRef",
            why=f"Model `{model.name}` is on a PersistentVolumeClaim, which the host of the {cause} cannot mount",
        )


def _is_directory(model: DesiredModel) -> bool:
    kind = model.source.kind
    return model.format is ModelFormat.MLX and (kind in (SourceKind.FILE, SourceKind.REPOSITORY) or bool(model.files))


def _endpoint(spec: ServiceSpec) -> Endpoint:
    wish = spec.endpoint
    if wish is None:
        return Endpoint()
    path = wish.path if wish.path.startswith("/") else f"/{wish.path}"
    return Endpoint(
        port=wish.port, path=path, type=wish.type, node_port=wish.node_port if wish.type == "NodePort" else None
    )


def _bind_address(spec: ServiceSpec) -> str:
    address = spec.bind_address or ""
    if address != address.strip() or any(c.isspace() for c in address) or address.startswith("-"):
        raise SpecInvalid(field="spec.bindAddress", why=f"`{address[:64]}` is not an address such as `::` or `0.0.0.0`")
    return address
