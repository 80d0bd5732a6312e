"""Decides which hosts a service may run on, and why not on others. Without I/O; `host_allocations` picks the host.

The rules follow the Kubernetes scheduler as far as they apply to machines: labels, taints, accelerators, runtimes.
`host_allocations` handles memory, which depends on other placements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from program.runtimes.host_rules import DEFAULT, Allowance, Need

LABEL_ACCELERATOR = "herdsman.dev/accelerator"
"""On a Host: an accelerator that it has, in addition to those in its status."""

Pairs = tuple[tuple[str, str], ...]
"""Labels in hashable form: sorted pairs."""

_BINARIES = {"llamacpp": "llama-server"}
"""Names of runtimes in `status.runtimes` that differ from the runtime's name."""
_WITHOUT_BINARY = frozenset({"generic"})
GIB = 1 << 30


@dataclass(frozen=True)
class Taint:
    """Excludes services that do not tolerate it."""

    key: str
    effect: str
    """NoSchedule, PreferNoSchedule or NoExecute."""
    value: str = ""


@dataclass(frozen=True)
class Toleration:
    """A tolerated taint of a service. An empty key tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Match as Kubernetes does for pods."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


AGENT_ONLY = frozenset({"ollama", "omlx"})
"""Runtimes with a daemon that an agent shares among services."""


@dataclass(frozen=True)
class HostCapacity:
    """The properties of a Host object. A host that is known only by its Lease has nothing but a name."""

    name: str
    labels: Pairs = ()
    os: str = ""
    """Empty while the machine is unknown. Its accelerators and engines are then not checked."""
    accelerators: frozenset[str] = frozenset()
    binaries: frozenset[str] = frozenset()
    """Installed engines."""
    runtimes: frozenset[str] = frozenset()
    """The only runtimes that may be placed on it. Empty: all."""
    taints: tuple[Taint, ...] = ()
    memory_bytes: int | None = None
    """Memory that all processes may use together."""
    total_memory_bytes: int | None = None
    """Memory of the machine."""
    gpu_memory_bytes: int | None = None
    """Memory of all separate GPUs that processes may use. None: there are none."""
    unschedulable: bool = False
    draining: bool = False
    awaited: bool = False
    """The host has not reported its properties yet, but will. Until then it counts as having no accelerator."""
    allowance: Allowance = DEFAULT
    """Requests of services that its owner allows."""
    as_root: bool = False
    """Processes would run as root, which the host's owner has not allowed."""
    by_ssh: bool = False
    """The host has no agent, so features that need one are missing."""


@dataclass(frozen=True)
class Requirements:
    """The properties that a host must have for a service. Hashable: equal requirements share one result."""

    accelerator: str = "cpu"
    runtime: str = "llamacpp"
    labels: Pairs = ()
    tolerations: tuple[Toleration, ...] = ()
    excluded: frozenset[str] = frozenset()
    needs: tuple[Need, ...] = ()
    """Needs that only the host's owner can allow."""

    def tolerate(self, taint: Taint) -> bool:
        return any(toleration.tolerates(taint) for toleration in self.tolerations)


@dataclass(frozen=True)
class PlacementRequest:
    """The request of a service for hosts."""

    requirements: Requirements = Requirements()
    replicas: int = 1
    memory_bytes: int | None = None
    """Memory of one replica. None: unknown, which counts as 0; the agent decides once it has the file."""
    memory_enforced: bool = True
    """False: a host with too little memory is only the second choice."""
    budget_bytes: int | None = None
    """Used instead of the host's own memory budget."""
    budget_fraction: float | None = None
    pinned: str | None = None
    """The only permitted host, regardless of its capacity and liveness."""
    preferred: tuple[str, ...] = ()
    strategy: Literal["spread", "pack"] = "spread"
    group: tuple[str, str] | None = None
    """Namespace and name of the group whose members take turns in memory."""
    stays_in_memory: bool = True
    """False for a member of a group that leaves memory for others."""
    may_move: bool = True
    priority: int = 0
    created: str = ""

    @property
    def limits_itself(self) -> bool:
        """Whether the free memory of a host for this service differs from that for others."""
        return self.group is not None or self.budget_bytes is not None or self.budget_fraction is not None

    def limit_bytes(self, host: HostCapacity) -> int | None:
        """Return the memory limit for all processes of a host that applies to this service. None: unknown."""
        if self.budget_bytes is not None:
            return self.budget_bytes
        if self.budget_fraction is not None and host.total_memory_bytes is not None:
            return int(self.budget_fraction * host.total_memory_bytes)
        return host.memory_bytes


@dataclass(frozen=True)
class Refusals:
    """Why no host fits: the number of hosts for each reason."""

    hosts: int
    reasons: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Format as one sentence like the scheduler, most frequent reason first."""
        told = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        listed = [f"{count} {_plural(reason, count)}" for reason, count in told[:MOST_REASONS]]
        if rest := sum(count for _, count in told[MOST_REASONS:]):
            listed.append(f"{rest} for other reasons")
        return f"0/{self.hosts} hosts fit" + (f": {', '.join(listed)}" if listed else "")


MOST_REASONS = 6
LOST = "is lost"
EXCLUDED = "is excluded"
DRAINING = "is being drained"
UNSCHEDULABLE = "is unschedulable"
OTHER_LABELS = "lacks the labels"
TAKEN = "runs another replica"
AS_ROOT = "does not allow processes as root, and has no other user"


def refusal(host: HostCapacity, requirements: Requirements) -> str:
    """Return in a few words why a host does not fit, or an empty string. Permanent reasons come first."""
    if host.name in requirements.excluded:
        return EXCLUDED
    if requirements.labels and not set(requirements.labels) <= set(host.labels):
        return OTHER_LABELS
    known = bool(host.os or host.accelerators)
    if (
        requirements.accelerator != "cpu"
        and requirements.accelerator not in host.accelerators
        and (known or host.awaited)
    ):
        return f"has no {requirements.accelerator}" if known else "has not reported its devices yet"
    if host.runtimes and requirements.runtime not in host.runtimes:
        return f"does not allow runtime {requirements.runtime}"
    if (need := host.allowance.refused(requirements.needs)) is not None:
        return f"does not allow {need}"
    if host.as_root:
        return AS_ROOT
    if host.by_ssh and requirements.runtime in AGENT_ONLY:
        return f"has no agent for {requirements.runtime}"
    binary = _BINARIES.get(requirements.runtime, requirements.runtime)
    if host.os and requirements.runtime not in _WITHOUT_BINARY and binary not in host.binaries:
        return f"has no {binary}"
    for taint in host.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not requirements.tolerate(taint):
            return f"has taint {taint.key}"
    if host.draining:
        return DRAINING
    return UNSCHEDULABLE if host.unschedulable else ""


def other_namespace(namespace: str) -> str:
    """Return the reason of a host that does not accept a namespace."""
    return f"does not allow namespace {namespace}"


def is_discouraged(host: HostCapacity, requirements: Requirements) -> bool:
    """Return whether a host is only for services without another host."""
    return any(t.effect == "PreferNoSchedule" and not requirements.tolerate(t) for t in host.taints)


def why_leave(host: HostCapacity, requirements: Requirements) -> str:
    """Return why a replica must leave its host. Empty if it may stay.

    As for pods, changed labels and an unschedulable host do not remove running replicas.
    """
    if host.name in requirements.excluded:
        return "is excluded by the service"
    if host.draining:
        return DRAINING
    for taint in host.taints:
        if taint.effect == "NoExecute" and not requirements.tolerate(taint):
            return f"has taint {taint.key} with effect NoExecute"
    need = host.allowance.refused(requirements.needs)
    return f"does not allow {need}" if need is not None else ""


def lack(least_bytes: int, most_bytes: int | None = None) -> str:
    """Return the reason of hosts that lack memory, from the smallest to the largest lack."""
    most = _amount(least_bytes if most_bytes is None else most_bytes)
    least = _amount(least_bytes)
    return f"lacks {least} of memory" + ("" if least == most else " or more")


def _amount(missing_bytes: int) -> str:
    if missing_bytes < GIB // 10:
        return f"{max(1, -(-missing_bytes // (1 << 20)))} MiB"
    return f"{missing_bytes / GIB:.1f} GiB"


def _plural(reason: str, count: int) -> str:
    if count == 1:
        return reason
    verb, _, rest = reason.partition(" ")
    return f"{_PLURALS.get(verb, verb)} {rest}"


_PLURALS = {"is": "are", "has": "have", "lacks": "lack", "does": "do", "runs": "run"}


def pairs(labels: Mapping[str, str] | None) -> Pairs:
    """Return labels in hashable form."""
    return tuple(sorted((str(k), str(v)) for k, v in (labels or {}).items()))


def tolerations_of(written: Iterable[Mapping[str, Any]]) -> tuple[Toleration, ...]:
    """Parse the tolerations of a custom resource. Invalid ones tolerate nothing."""
    return tuple(
        Toleration(
            key=str(each.get("key") or ""),
            operator=str(each.get("operator") or "Equal"),
            value=str(each.get("value") or ""),
            effect=str(each.get("effect") or ""),
        )
        for each in written
        if isinstance(each, Mapping)
    )
