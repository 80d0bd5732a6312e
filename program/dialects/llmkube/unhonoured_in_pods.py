"""Fields of an InferenceService that pods cannot honour, whatever the cluster has. Pure; `unhonoured` calls it.

What only a missing extension of the cluster stands in the way of, `components.extensions` tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from program.desired import keys
from program.desired.facts import Problem
from program.desired.service import DesiredService
from program.dialects.annotations import EXPOSE_DETAILS
from program.dialects.llmkube.parse_policies import autoscaling_faults
from program.dialects.llmkube.service_schema import ServiceSpec
from program.dialects.llmkube.source import needs_cache
from program.runtimes import runtime_for

# Which annotation about the way in belongs to which way; the host name belongs to both.
_DETAIL_OF = {
    keys.ANNOTATION_EXPOSE_GATEWAY: "gateway",
    keys.ANNOTATION_EXPOSE_CLASS: "ingress",
    keys.ANNOTATION_EXPOSE_TLS_SECRET: "ingress",
}


def in_pods(spec: ServiceSpec, annotations: Mapping[str, str], desired: DesiredService) -> Iterator[Problem]:
    """Name what pods cannot have: of the engine, storage, rollouts, the way in, checks and scaling."""
    if spec.eviction_protection:
        yield _problem("spec.evictionProtection", "protects processes on hosts; pods are kept by spec.priority")
    if spec.runtime == "llamacpp" and spec.flash_attention is not None:
        if spec.flash_attention and desired.gpu is None:
            yield _problem("spec.flashAttention", "has no effect without a GPU")
        if not spec.flash_attention and desired.gpu is not None:
            yield _problem(
                "spec.flashAttention", "false leaves the choice to llama.cpp; set extraArgs --flash-attn off"
            )
    yield from _of_storage(spec, desired)
    yield from _of_rollouts(spec, desired)
    yield from _of_access(spec, annotations, desired)
    yield from _of_checks(annotations, desired)
    yield from _of_scaling(spec, desired)
    if annotations.get(keys.ANNOTATION_SCALE_QUERY) and desired.autoscaling is None:
        yield _problem(f"metadata.annotations[{keys.ANNOTATION_SCALE_QUERY}]", "has no effect without spec.autoscaling")


def _of_scaling(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    scaling = desired.autoscaling
    if scaling is None or spec.autoscaling is None:
        return
    if spec.replicas > 1:
        yield _problem("spec.replicas", "has no effect beside spec.autoscaling, which sets the number of replicas")
    for field, why in autoscaling_faults(spec.autoscaling):
        yield _problem(field, why)
    follows_cpu = not (scaling.metrics or scaling.query or runtime_for(desired.engine).default_hpa_metric)
    if follows_cpu and desired.pod.cpu_request is None:
        yield _problem(
            "spec.autoscaling.metrics",
            f"is empty, and runtime {spec.runtime} has no metric of its own, so the autoscaler follows the CPU; "
            "set spec.resources.cpu, of which it takes the share, or name a metric",
        )


def _of_storage(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    model = desired.model
    downloads = needs_cache(model.source, model.files) and not desired.skip_model_init
    if spec.model_cache and not (downloads and runtime_for(desired.engine).needs_model_init):
        yield _problem("spec.modelCache", "has no effect: no weights are downloaded into these pods")


def _of_rollouts(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    policy = spec.rollout_policy
    waits = bool(policy and policy.wait_for_idle)
    if waits and runtime_for(desired.engine).idle_probe(desired) is None:
        why = "with an API key" if desired.api_key else f"of runtime {spec.runtime}"
        yield _problem("spec.rolloutPolicy.waitForIdle", f"replicas {why} cannot be asked whether they are idle")
    if spec.max_pod_lifetime_idle_timeout_seconds is not None:
        at = "spec.maxPodLifetimeIdleTimeoutSeconds"
        if spec.max_pod_lifetime_seconds is None:
            yield _problem(at, "has no effect without maxPodLifetimeSeconds")
        elif not waits:
            yield _problem(at, "has no effect without rolloutPolicy.waitForIdle")


def _of_access(spec: ServiceSpec, annotations: Mapping[str, str], desired: DesiredService) -> Iterator[Problem]:
    endpoint = spec.endpoint
    if endpoint and endpoint.node_port is not None and endpoint.type != "NodePort":
        yield _problem("spec.endpoint.nodePort", f"has no effect with type {endpoint.type}")
    way = annotations.get(keys.ANNOTATION_EXPOSE, "")
    for name in EXPOSE_DETAILS:
        if annotations.get(name) and way == "":
            yield _problem(f"metadata.annotations[{name}]", f"has no effect without {keys.ANNOTATION_EXPOSE}")
        elif annotations.get(name) and _DETAIL_OF.get(name, way) != way:
            yield _problem(f"metadata.annotations[{name}]", f"has no effect with {keys.ANNOTATION_EXPOSE}: {way}")
    if annotations.get(keys.ANNOTATION_API_KEY_SECRET) and desired.api_key is None:
        yield _problem(
            f"metadata.annotations[{keys.ANNOTATION_API_KEY_SECRET}]",
            f"runtime {spec.runtime} takes no API key from its environment: requests need none",
        )


def _of_checks(annotations: Mapping[str, str], desired: DesiredService) -> Iterator[Problem]:
    if runtime_for(desired.engine).completion(desired) is not None:
        return
    why = "it would need the API key" if desired.api_key else f"runtime {desired.engine.kind} has no known request"
    for name in (keys.ANNOTATION_COMPLETION_CHECK, keys.ANNOTATION_READINESS_GATE):
        if annotations.get(name) == "true":
            yield _problem(f"metadata.annotations[{name}]", f"no completion can be asked for: {why}")


def _problem(field: str, message: str) -> Problem:
    return Problem(reason="NotHonoured", message=message, field=field, terminal=True)
