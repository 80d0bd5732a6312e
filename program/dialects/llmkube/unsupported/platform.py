"""Lists the fields of an InferenceService that pods, or a process on a host, do not support. Pure.

`components.extensions` lists the fields that need an extension of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from program.desired import keys
from program.desired.facts import Problem, unsupported_field
from program.desired.service import DesiredService
from program.dialects.annotations import EXPOSE_DETAILS, POD_ONLY_ANNOTATIONS
from program.dialects.hosts.env import lost_env
from program.dialects.llmkube.parse.policies import autoscaling_faults
from program.dialects.llmkube.parse.source import needs_cache
from program.dialects.llmkube.schema.service import ResourcesSpec, ServiceSpec
from program.runtimes import runtime_for


def wire_name(field: str) -> str:
    """Return the path of a field of the spec, as users write it."""
    return f"spec.{ServiceSpec.model_fields[field].alias}"


# --- pods --------------------------------------------------------------------------------------------------------

_HOST_ONLY = {"eviction_protection": "has an effect on hosts only; for pods, set spec.priority"}

# The kind of route of each annotation. The host name belongs to both kinds.
_DETAIL_OF = {
    keys.ANNOTATION_EXPOSE_GATEWAY: "gateway",
    keys.ANNOTATION_EXPOSE_CLASS: "ingress",
    keys.ANNOTATION_EXPOSE_TLS_SECRET: "ingress",
}


def in_pods(spec: ServiceSpec, annotations: Mapping[str, str], desired: DesiredService) -> Iterator[Problem]:
    """List the fields without effect in pods: engine, storage, rollouts, access, checks and scaling."""
    for field, why in _HOST_ONLY.items():
        if getattr(spec, field):
            yield unsupported_field(wire_name(field), why)
    if spec.runtime == "llamacpp" and spec.flash_attention is not None:
        if spec.flash_attention and desired.gpu is None:
            yield unsupported_field("spec.flashAttention", "has no effect without a GPU")
        if not spec.flash_attention and desired.gpu is not None:
            yield unsupported_field(
                "spec.flashAttention",
                "false leaves the choice to llama.cpp; to turn it off, set extraArgs --flash-attn off",
            )
    yield from _of_storage(spec, desired)
    yield from _of_rollouts(spec, desired)
    yield from _of_access(spec, annotations, desired)
    yield from _of_checks(annotations, desired)
    yield from _of_scaling(spec, desired)
    if annotations.get(keys.ANNOTATION_SCALE_QUERY) and desired.autoscaling is None:
        yield unsupported_field(
            f"metadata.annotations[{keys.ANNOTATION_SCALE_QUERY}]", "has no effect without spec.autoscaling"
        )


def _of_scaling(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    scaling = desired.autoscaling
    if scaling is None or spec.autoscaling is None:
        return
    if spec.replicas > 1:
        yield unsupported_field(
            "spec.replicas", "has no effect together with spec.autoscaling, which sets the number of replicas"
        )
    for field, why in autoscaling_faults(spec.autoscaling):
        yield unsupported_field(field, why)
    follows_cpu = not (scaling.metrics or scaling.query or runtime_for(desired.engine).default_hpa_metric)
    if follows_cpu and desired.pod.cpu_request is None:
        yield unsupported_field(
            "spec.autoscaling.metrics",
            f"is empty, and runtime {spec.runtime} has no default metric, so the autoscaler uses the CPU as a share "
            f"of spec.resources.cpu; set spec.resources.cpu, or name a metric",
        )


def _of_storage(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    model = desired.model
    downloads = needs_cache(model.source, model.files) and not desired.skip_model_init
    if spec.model_cache and not (downloads and runtime_for(desired.engine).needs_model_init):
        yield unsupported_field("spec.modelCache", "has no effect: no weights are downloaded into these pods")


def _of_rollouts(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    policy = spec.rollout_policy
    waits = bool(policy and policy.wait_for_idle)
    if waits and runtime_for(desired.engine).idle_probe(desired) is None:
        why = "with an API key" if desired.api_key else f"of runtime {spec.runtime}"
        yield unsupported_field(
            "spec.rolloutPolicy.waitForIdle",
            f"has no effect: replicas {why} have no endpoint that reports whether they are idle",
        )
    if spec.max_pod_lifetime_idle_timeout_seconds is not None:
        at = "spec.maxPodLifetimeIdleTimeoutSeconds"
        if spec.max_pod_lifetime_seconds is None:
            yield unsupported_field(at, "has no effect without maxPodLifetimeSeconds")
        elif not waits:
            yield unsupported_field(at, "has no effect without rolloutPolicy.waitForIdle")


def _of_access(spec: ServiceSpec, annotations: Mapping[str, str], desired: DesiredService) -> Iterator[Problem]:
    endpoint = spec.endpoint
    if endpoint and endpoint.node_port is not None and endpoint.type != "NodePort":
        yield unsupported_field("spec.endpoint.nodePort", f"has no effect with type {endpoint.type}")
    way = annotations.get(keys.ANNOTATION_EXPOSE, "")
    for name in EXPOSE_DETAILS:
        if annotations.get(name) and way == "":
            yield unsupported_field(f"metadata.annotations[{name}]", f"has no effect without {keys.ANNOTATION_EXPOSE}")
        elif annotations.get(name) and _DETAIL_OF.get(name, way) != way:
            yield unsupported_field(
                f"metadata.annotations[{name}]", f"has no effect with {keys.ANNOTATION_EXPOSE}: {way}"
            )
    for name in (keys.ANNOTATION_API_KEY_SECRET, keys.ANNOTATION_ENGINE_KEY):
        if annotations.get(name, "") not in ("", "false") and desired.api_key is None:
            yield unsupported_field(
                f"metadata.annotations[{name}]",
                f"runtime {spec.runtime} takes no API key from its environment, so requests need no key",
            )


def _of_checks(annotations: Mapping[str, str], desired: DesiredService) -> Iterator[Problem]:
    if runtime_for(desired.engine).completion(desired) is not None:
        return
    why = "the check has no API key" if desired.api_key else f"runtime {desired.engine.kind} has no known request"
    for name in (keys.ANNOTATION_COMPLETION_CHECK, keys.ANNOTATION_READINESS_GATE):
        if annotations.get(name) == "true":
            yield unsupported_field(f"metadata.annotations[{name}]", f"the completion check cannot run: {why}")


# --- hosts --------------------------------------------------------------------------------------------------------

_POD_ONLY = (
    "affinity",
    "autoscaling",
    "bind_address",
    "container_port",
    "disruption",
    "extra_volume_mounts",
    "extra_volumes",
    "image",
    "image_pull_secrets",
    "max_pod_lifetime_idle_timeout_seconds",
    "max_pod_lifetime_seconds",
    "model_cache",
    "pod_annotations",
    "pod_labels",
    "pod_security_context",
    "priority_class_name",
    "probe_overrides",
    "revision_history_limit",
    "rollout_policy",
    "runtime_class_name",
    "security_context",
    "slo",
    "topology_spread_constraints",
)
_POD_ONLY_RESOURCES = {
    "cpu": "cpu",
    "ephemeral_storage": "ephemeralStorage",
    "gpu_memory": "gpuMemory",
    "gpu_sharing": "gpuSharing",
}
_GATEWAY = "spec.endpoint.gateway"
_WHY = "has no effect on a host, where the service runs as a process"


def on_hosts(spec: ServiceSpec, annotations: Mapping[str, str], desired: DesiredService) -> Iterator[Problem]:
    """List the fields without effect on a process on a host."""
    for field in _POD_ONLY:
        # The requests at the gateways need the bounds on hosts too.
        if getattr(spec, field) and not (field == "autoscaling" and desired.by_requests is not None):
            yield unsupported_field(wire_name(field), _WHY)
    if spec.command and spec.runtime != "generic":
        yield unsupported_field("spec.command", f"has no effect on a host with runtime {spec.runtime}")
    env = [variable.model_dump(by_alias=True, exclude_none=True) for variable in spec.env]
    yield from lost_env(env, field="spec.env", engine=spec.runtime)
    if spec.replicas > 1 and desired.host_placement is not None and desired.host_placement.pinned:
        why = f"a host runs one replica of a service, and {keys.ANNOTATION_HOST} names one host, not {spec.replicas}"
        yield unsupported_field("spec.replicas", why)
    for index, toleration in enumerate(desired.pod.tolerations):
        if toleration.get("tolerationSeconds") is not None:
            yield unsupported_field(
                f"spec.tolerations[{index}].tolerationSeconds", "has no effect on a host: the toleration does not end"
            )
    if spec.endpoint and spec.endpoint.type != "ClusterIP":
        yield unsupported_field(
            "spec.endpoint.type", "has no effect on a host, where the Service is always of type ClusterIP"
        )
    if spec.endpoint and spec.endpoint.gateway and spec.endpoint.gateway.enabled:
        yield unsupported_field(_GATEWAY, _WHY)
    resources = spec.resources or ResourcesSpec()
    for name, wire in _POD_ONLY_RESOURCES.items():
        # Without a GPU `unsupported.service` already lists gpuMemory.
        if getattr(resources, name) and (name != "gpu_memory" or desired.gpu is not None):
            yield unsupported_field(f"spec.resources.{wire}", "has no effect on a host")
    if spec.flash_attention and spec.runtime == "llamacpp" and desired.model.accelerator == "cpu":
        yield unsupported_field("spec.flashAttention", "has no effect without a GPU")
    yield from _of_files(desired)
    for name in POD_ONLY_ANNOTATIONS:
        if annotations.get(name, "") not in ("", "false"):
            yield unsupported_field(f"metadata.annotations[{name}]", _WHY)


def _of_files(desired: DesiredService) -> Iterator[Problem]:
    """Yield the Secrets of Models: a host uses credentials of the host, and the loop sends it no Secret."""
    for model in (desired.model, desired.draft):
        if model is not None and model.source_secret:
            yield unsupported_field(
                f"Model/{model.name} spec.sourceSecretRef",
                "has no effect on a host, which fetches with the host's credentials (`herdsman agent run "
                "--credentials`)",
            )
