"""Adapts services to a static fleet: lists the fields that need the loop, and makes autoscalers scale pods. Pure.

`reading` calls it and adds a note for each field.
"""

from __future__ import annotations

from collections.abc import Iterator

from program.desired import keys
from program.desired.facts import Problem
from program.desired.service import DesiredService
from program.dialects.registry import LLMKUBE
from program.host_context import PENDING, takes_default
from program.runtimes.llamacpp import HOST_CONTEXT_SIZE

_LOOP_ONLY = {
    keys.ANNOTATION_ROLLBACK: "only the loop rolls back a failed rollout",
    keys.ANNOTATION_MODE: "use `pulumi preview` to see a change first",
    keys.ANNOTATION_APPROVED: "use `pulumi preview` to see a change first",
    keys.ANNOTATION_DRIFT: "`pulumi preview` reports changes by others, and `pulumi up` reverts them",
    keys.ANNOTATION_CONTROLLER: "the stack that lists the file manages the service",
    keys.ANNOTATION_KEPT_TEMPLATE: "a static fleet adopts nothing from another controller",
    keys.ANNOTATION_HOST_SELECTOR: f"only the loop chooses a host; name one by {keys.ANNOTATION_HOST}",
    keys.ANNOTATION_PREFERRED_HOSTS: f"only the loop chooses a host; name one by {keys.ANNOTATION_HOST}",
    keys.ANNOTATION_EXCLUDED_HOSTS: f"only the loop chooses a host; name one by {keys.ANNOTATION_HOST}",
    keys.ANNOTATION_HOST_STRATEGY: f"only the loop chooses a host; name one by {keys.ANNOTATION_HOST}",
    keys.ANNOTATION_HOST_MOVES: "only the loop moves services",
}
_SLEEP = (keys.ANNOTATION_IDLE_TIMEOUT, keys.ANNOTATION_WAKE_TIMEOUT, keys.ANNOTATION_MAX_HELD_REQUESTS)
_OVER_SSH = (*_SLEEP, keys.ANNOTATION_MODEL_GROUP, keys.ANNOTATION_MEMORY_CHECK)


def unsupported_without_loop(
    annotations: dict[str, str], desired: DesiredService, *, connected: bool = False, over_ssh: bool = False
) -> Iterator[Problem]:
    """Yield the fields that have no effect without a loop.

    `connected`: the plugin reaches the host, over SSH or by its agent. `over_ssh`: also yield the fields that need an
    agent on the host.
    """
    for name, why in _LOOP_ONLY.items():
        if annotations.get(name):
            yield _problem(name, why)
    for name in (keys.ANNOTATION_SCALE_BY, keys.ANNOTATION_TARGET_REQUESTS, keys.ANNOTATION_MAX_REPLICAS):
        if annotations.get(name):
            yield _problem(name, "only the loop scales by the requests at the gateways")
    if takes_default(desired) and not connected:
        written = desired.host_placement.written if desired.host_placement is not None else None
        arguments = written.arguments_field if written is not None else "spec"
        yield Problem(
            reason="NotHonoured",
            field="spec.contextSize" if desired.key.dialect == LLMKUBE else arguments,
            message="sets no context, and the fleet has no connection to the host, whose memory it needs to choose "
            f"one: it uses {HOST_CONTEXT_SIZE:,} tokens",
        )
    in_pods = desired.host_placement is None
    for name in _SLEEP if in_pods else _OVER_SSH if over_ssh else ():
        if annotations.get(name):
            yield _problem(name, "only the loop wakes pods" if in_pods else "only an agent on the host applies it")
    if in_pods and desired.readiness_gate:
        # No loop would open the gate, and no replica would get a request.
        why = "only the loop opens the gate, so no replica would get a request; remove the annotation"
        yield _problem(keys.ANNOTATION_READINESS_GATE, why)
    if desired.workloads is not None and (certificate := desired.workloads.certificate) is not None:
        why = (
            f"only the loop issues its certificate; create Secret `{certificate.secret}` of type kubernetes.io/tls "
            f"yourself"
        )
        yield Problem(reason="NotHonoured", field="spec", message=_words(why))
    if (key := desired.engine_key) is not None:
        why = f"only the loop makes the key; create Secret `{key.name}` with a long random value `{key.key}` yourself"
        yield _problem(keys.ANNOTATION_ENGINE_KEY, why)
    if desired.max_pod_lifetime_s:
        yield Problem(
            reason="NotHonoured", field="spec.maxPodLifetimeSeconds", message=_words("only the loop replaces old pods")
        )


def _problem(annotation: str, why: str) -> Problem:
    return Problem(reason="NotHonoured", field=f"metadata.annotations[{annotation}]", message=_words(why))


def _words(why: str) -> str:
    return f"has no effect in a static fleet: {why}"


def with_default_contexts(desired: DesiredService) -> DesiredService:
    """Have the plugin choose the context of each replica on a host, if the service sets none."""
    hosting = desired.host_placement
    if hosting is None or not takes_default(desired):
        return desired
    contexts = (PENDING,) * max(1, desired.replicas)
    return desired.model_copy(update={"host_placement": hosting.model_copy(update={"contexts": contexts})})


def scaled_without_loop(desired: DesiredService) -> DesiredService:
    """Make a service's autoscalers scale its sets of pods. A fleet has no custom resource that they could scale."""
    workloads = desired.workloads
    if workloads is None or all(pods.scaler is None or pods.scaler.target is None for pods in workloads.pods):
        return desired
    pods = tuple(
        each
        if each.scaler is None or each.scaler.target is None
        else each.model_copy(update={"scaler": each.scaler.model_copy(update={"target": None})})
        for each in workloads.pods
    )
    return desired.model_copy(update={"workloads": workloads.model_copy(update={"pods": pods})})
