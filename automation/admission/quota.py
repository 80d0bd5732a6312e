"""The rule of GPUQuotas: decides whether a service may take its claim. Pure; `quota_ledger` records the claims.

An admitted service stays admitted: a quota that is made or lowered later stops growth, and evicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from components import demand
from components.engine_workloads import is_stopped
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem
from program.desired.keys import ANNOTATION_HOST, ANNOTATION_HOST_SELECTOR
from program.desired.priorities import PRIORITIES
from program.desired.quantities import bytes_of
from program.desired.service import DesiredService
from program.desired.workloads import Workloads

REASON = "QuotaExceeded"


@dataclass(frozen=True)
class QuotaClaim:
    """The most that a service can take, all replicas together."""

    gpus: int = 0
    gpu_memory_bytes: int = 0
    memory_bytes: int = 0
    """Memory that the pods request."""
    priority: int = 0
    created: str = ""
    """The custom resource's creationTimestamp. Of two services with equal priority that wait, the older is admitted
    first."""

    @property
    def is_nothing(self) -> bool:
        return not (self.gpus or self.gpu_memory_bytes or self.memory_bytes)

    def fits_in(self, other: QuotaClaim) -> bool:
        """Return whether this asks for no more of anything than `other`."""
        return (
            self.gpus <= other.gpus
            and self.gpu_memory_bytes <= other.gpu_memory_bytes
            and self.memory_bytes <= other.memory_bytes
        )


NOTHING = QuotaClaim()


def claim_of(
    desired: DesiredService, rendered: RenderedService | None = None, *, priority: int, created: str
) -> QuotaClaim:
    """Return the most that a service can take: nothing when it is suspended or on a host.

    An autoscaler counts with its maximum, also one of `rendered` that follows the requests. While the loop scales by
    requests itself, the present replicas count, and each further one is a new claim.
    Of a service with `Workloads`, all sets of pods count, and groups as a whole.
    """
    if desired.workloads is not None and desired.host_placement is None:
        described = _described(desired, desired.workloads, most=_most_by_requests(desired, rendered))
        return replace(described, priority=priority, created=created)
    if is_stopped(desired) or desired.host_placement is not None:
        replicas = 0
    elif desired.autoscaling is not None:
        replicas = desired.autoscaling.max_replicas
    else:
        replicas = max(desired.replicas, _most_by_requests(desired, rendered))
    memory_bytes = bytes_of(desired.pod.memory_request, field="spec.resources.memory") or 0
    return QuotaClaim(
        gpus=(desired.gpu.count if desired.gpu else 0) * replicas,
        gpu_memory_bytes=(desired.gpu_memory_bytes or 0) * replicas,
        memory_bytes=memory_bytes * replicas,
        priority=priority,
        created=created,
    )


def claim_without_model(cr: Json, *, priority: int, created: str) -> QuotaClaim:
    """Return the claim of an InferenceService whose Model is missing or not Ready, by the service's spec alone.

    Invalid fields count as nothing; the status reports them when the Model is Ready.
    """
    spec, annotations = cr.get("spec") or {}, cr["metadata"].get("annotations") or {}
    on_host = any(annotations.get(name) for name in (ANNOTATION_HOST, ANNOTATION_HOST_SELECTOR))
    scaling, resources = spec.get("autoscaling"), spec.get("resources") or {}
    replicas = scaling.get("maxReplicas") if isinstance(scaling, dict) else spec.get("replicas", 1)
    gpus = resources.get("gpu") if isinstance(resources, dict) else None
    counts = [each if isinstance(each, int) and not isinstance(each, bool) else 0 for each in (gpus, replicas)]
    if on_host or spec.get("suspend") is True or spec.get("replicas") == 0 or min(counts) <= 0:
        return NOTHING
    return QuotaClaim(gpus=counts[0] * counts[1], priority=priority, created=created)


def _most_by_requests(desired: DesiredService, rendered: RenderedService | None) -> int:
    """Return the maximum of the autoscaler that follows the requests; 0 without one."""
    if desired.by_requests is None or rendered is None:
        return 0
    scalers = (each.manifest["spec"] for each in rendered.objects if each.kind == kinds.AUTOSCALERS.kind)
    return max((int(spec["maxReplicas"]) for spec in scalers), default=0)


def _described(desired: DesiredService, workloads: Workloads, *, most: int) -> QuotaClaim:
    """Add up all sets of pods. The first one serves; an autoscaler outside of `workloads` gives it `most` replicas."""
    if desired.suspended:
        return NOTHING
    main, *others = workloads.pods
    counted = [(main, max(most, demand.most_replicas(main))), *((pods, demand.most_replicas(pods)) for pods in others)]
    return QuotaClaim(
        gpus=int(sum(demand.of_replica(pods, demand.gpus) * count for pods, count in counted)),
        gpu_memory_bytes=(desired.gpu_memory_bytes or 0) * counted[0][1],
        memory_bytes=int(sum(demand.of_replica(pods, demand.memory) * count for pods, count in counted)),
    )


class QuotaName(NamedTuple):
    namespace: str
    name: str


@dataclass(frozen=True)
class Quota:
    """One GPUQuota. None as a limit means no limit."""

    name: QuotaName
    namespace_ref: str = ""
    selector: Json | None = None
    """A label selector on namespaces, as the API has it; used when there is no `namespace_ref`."""
    gpus: int | None = None
    gpu_memory_bytes: int | None = None
    memory_bytes: int | None = None
    min_priority: str = ""

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether services of a namespace count against this quota."""
        if self.namespace_ref:
            return namespace == self.namespace_ref
        return self.selector is not None and selects(self.selector, labels)


@dataclass(frozen=True)
class Denial:
    """One refusal."""

    service: str
    """The service, as `namespace/name`."""
    message: str
    time: str
    """The time, RFC 3339."""


@dataclass(frozen=True)
class QuotaUsage:
    """The sum of the claims of a quota's services, and the number of its denials."""

    gpus: int = 0
    gpu_memory_bytes: int = 0
    memory_bytes: int = 0
    denials: int = 0
    last_denial: Denial | None = None


def quota_of(cr: Json) -> Quota:
    """Parse a GPUQuota. A value that the schema refuses, and that older CRDs accept, counts as absent."""
    spec = cr.get("spec") or {}
    metadata = cr["metadata"]
    return Quota(
        name=QuotaName(metadata["namespace"], metadata["name"]),
        namespace_ref=str(spec.get("namespaceRef") or ""),
        selector=spec.get("selector") if isinstance(spec.get("selector"), dict) else None,
        gpus=_limit(spec.get("gpuCount"), zero_is_none=False),
        gpu_memory_bytes=_limit(spec.get("vramBytes"), zero_is_none=True),
        memory_bytes=_memory(spec.get("memory")),
        min_priority=str(spec.get("minPriority") or ""),
    )


def over_use(quota: Quota, used: QuotaUsage) -> str:
    """Describe the resources of which the services use more than the quota allows; empty when there are none."""
    parts = [
        f"{taken} {what} of {limit}"
        for what, limit, taken in (
            ("GPUs", quota.gpus, used.gpus),
            ("bytes of GPU memory", quota.gpu_memory_bytes, used.gpu_memory_bytes),
            ("bytes of memory", quota.memory_bytes, used.memory_bytes),
        )
        if limit is not None and taken > limit
    ]
    return ", ".join(parts)


def _memory(text: object) -> int | None:
    try:
        return bytes_of(str(text), field="spec.memory") if text is not None else None
    except SpecInvalid:
        return None


def _limit(value: object, *, zero_is_none: bool) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    return None if zero_is_none and value == 0 else value


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Apply a Kubernetes label selector. An empty one selects everything; an unknown operator nothing."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or ():
        key, values = expression.get("key"), expression.get("values") or ()
        met = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }.get(expression.get("operator"), False)
        if not met:
            return False
    return True


def admit(
    quotas: Iterable[Quota], usages: Mapping[QuotaName, QuotaUsage], claim: QuotaClaim, held: QuotaClaim = NOTHING
) -> Problem | None:
    """Decide whether a service may take `claim`; None when it may.

    `usages` are the claims of the other services; `held` is the claim that this service was admitted with. A claim that
    is no larger than `held` is always admitted.
    """
    denial = first_denial(quotas, usages, claim, held)
    return denial[1] if denial is not None else None


def first_denial(
    quotas: Iterable[Quota], usages: Mapping[QuotaName, QuotaUsage], claim: QuotaClaim, held: QuotaClaim
) -> tuple[QuotaName, Problem] | None:
    """As `admit`, with the quota that denies."""
    for quota in quotas:
        if why := _denial(quota, usages.get(quota.name, QuotaUsage()), claim, held):
            message = f"GPUQuota {quota.name.namespace}/{quota.name.name}: {why}"
            return quota.name, Problem(reason=REASON, message=message)
    return None


def _denial(quota: Quota, used: QuotaUsage, claim: QuotaClaim, held: QuotaClaim) -> str:
    least = PRIORITIES.get(quota.min_priority)
    if least is not None and not claim.fits_in(held) and claim.priority < least:
        return (
            f"admits priority {quota.min_priority} ({least}) and above, and this service has {claim.priority}; "
            "raise spec.priority or use another quota"
        )
    for what, limit, taken, asked, had in (
        ("GPUs", quota.gpus, used.gpus, claim.gpus, held.gpus),
        (
            "bytes of GPU memory",
            quota.gpu_memory_bytes,
            used.gpu_memory_bytes,
            claim.gpu_memory_bytes,
            held.gpu_memory_bytes,
        ),
        ("bytes of memory", quota.memory_bytes, used.memory_bytes, claim.memory_bytes, held.memory_bytes),
    ):
        if limit is not None and asked > had and taken + asked > limit:
            having = f" (it has {had})" if had else ""
            return (
                f"{what}: {asked} requested{having}, {taken} of {limit} used by others; request less, stop other "
                f"services, or raise the quota"
            )
    return ""
