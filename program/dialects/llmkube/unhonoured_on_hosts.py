"""Fields of an InferenceService that mean nothing to a process on a host. Pure; `unhonoured` calls it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from program.desired import keys
from program.desired.facts import Problem
from program.desired.service import DesiredService
from program.dialects.annotations import POD_ONLY_ANNOTATIONS
from program.dialects.hosted_env import lost_env
from program.dialects.llmkube.service_schema import ResourcesSpec, ServiceSpec
from program.dialects.llmkube.unhonoured_by_runtime import wire_name

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
    "skip_model_init",
    "slo",
    "topology_spread_constraints",
)
_POD_ONLY_RESOURCES = {
    "cpu": "cpu",
    "ephemeral_storage": "ephemeralStorage",
    "gpu_memory": "gpuMemory",
    "gpu_sharing": "gpuSharing",
}
_WHY = "has no effect on a host, where the service runs as a process"


def on_hosts(spec: ServiceSpec, annotations: Mapping[str, str], desired: DesiredService) -> Iterator[Problem]:
    """Name what a host's process cannot have."""
    for field in _POD_ONLY:
        if getattr(spec, field):
            yield _problem(wire_name(field), _WHY)
    if spec.command and spec.runtime != "generic":
        yield _problem("spec.command", f"has no effect on a host with runtime {spec.runtime}")
    env = [variable.model_dump(by_alias=True, exclude_none=True) for variable in spec.env]
    yield from lost_env(env, field="spec.env", engine=spec.runtime)
    if spec.replicas > 1 and desired.host_placement is not None and desired.host_placement.pinned:
        why = f"a host runs one replica of a service, and {keys.ANNOTATION_HOST} names one host, not {spec.replicas}"
        yield _problem("spec.replicas", why)
    for index, toleration in enumerate(desired.pod.tolerations):
        if toleration.get("tolerationSeconds") is not None:
            yield _problem(f"spec.tolerations[{index}].tolerationSeconds", "is not counted on hosts: it is without end")
    if spec.endpoint and spec.endpoint.type != "ClusterIP":
        yield _problem("spec.endpoint.type", "on a host is always ClusterIP")
    if spec.endpoint and spec.endpoint.gateway and spec.endpoint.gateway.enabled:
        yield _problem("spec.endpoint.gateway", _WHY)
    resources = spec.resources or ResourcesSpec()
    for name, wire in _POD_ONLY_RESOURCES.items():
        # Without a GPU `unhonoured` has said it of gpuMemory already.
        if getattr(resources, name) and (name != "gpu_memory" or desired.gpu is not None):
            yield _problem(f"spec.resources.{wire}", "has no effect on a host")
    if spec.flash_attention and spec.runtime == "llamacpp" and desired.model.accelerator == "cpu":
        yield _problem("spec.flashAttention", "has no effect without a GPU")
    yield from _of_files(desired)
    for name in POD_ONLY_ANNOTATIONS:
        if annotations.get(name, "") not in ("", "false"):
            yield _problem(f"metadata.annotations[{name}]", _WHY)


def _of_files(desired: DesiredService) -> Iterator[Problem]:
    """A host fetches with credentials of its own: no Secret of the cluster is sent to it."""
    for model in (desired.model, desired.draft):
        if model is not None and model.source_secret:
            yield _problem(
                f"Model/{model.name} spec.sourceSecretRef",
                "does not reach a host, which fetches with credentials of its own (`herdsman agent run --credentials`)",
            )


def _problem(field: str, message: str) -> Problem:
    return Problem(reason="NotHonoured", message=message, field=field, terminal=True)
