"""Which hosts a service may run on, and why not on the others. Pure; `host_allocations` calls it and picks a host.

The rules are the scheduler's for pods as far as they apply to machines: labels, taints, accelerators, runtimes. Memory
is the book's business, since it depends on what else is placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from program.runtimes.host_rules import DEFAULT, Allowance, Need

LABEL_ACCELERATOR = "herdsman.dev/accelerator"
"""On a Host: an accelerator that it has although its status does not say so."""

Pairs = tuple[tuple[str, str], ...]
"""Labels as they can be hashed: sorted pairs."""

_BINARIES = {"llamacpp": "llama-server"}
"""What `status.runtimes` calls a runtime, where that is not its own name."""
_WITHOUT_BINARY = frozenset({"generic"})
GIB = 1 << 30


@dataclass(frozen=True)
class Taint:
    """Keeps services off a host that do not tolerate it."""

    key: str
    effect: str
    """NoSchedule, PreferNoSchedule or NoExecute."""
    value: str = ""


@dataclass(frozen=True)
class Toleration:
    """What a service puts up with. An empty key tolerates every key, an empty effect every effect."""

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
"""Runtimes that are daemons which an agent shares among services."""


@dataclass(frozen=True)
class HostCapacity:
    """What a Host object says; nothing but the name for a host that is known by its Lease only."""

    name: str
    labels: Pairs = ()
    os: str = ""
    """Empty while nothing is known of the machine: then it is not asked what it has."""
    accelerators: frozenset[str] = frozenset()
    binaries: frozenset[str] = frozenset()
    """Engines found on it."""
    runtimes: frozenset[str] = frozenset()
    """The only ones that may be placed on it; empty for all."""
    taints: tuple[Taint, ...] = ()
    memory_bytes: int | None = None
    """What all processes may take together."""
    total_memory_bytes: int | None = None
    """What the machine has."""
    unschedulable: bool = False
    draining: bool = False
    awaited: bool = False
    """Nothing is known yet, and the host is about to say it: until then it is taken to have no accelerator."""
    allowance: Allowance = DEFAULT
    """What services may ask of it."""
    as_root: bool = False
    """Processes would run there as root, which its owner has not allowed."""
    by_ssh: bool = False
    """No agent is there: what only an agent can do is not done."""


@dataclass(frozen=True)
class Requirements:
    """What a host must have for a service. Hashable: services that ask for the same share one answer."""

    accelerator: str = "cpu"
    runtime: str = "llamacpp"
    labels: Pairs = ()
    tolerations: tuple[Toleration, ...] = ()
    excluded: frozenset[str] = frozenset()
    needs: tuple[Need, ...] = ()
    """What only the host's owner can allow."""

    def tolerate(self, taint: Taint) -> bool:
        return any(toleration.tolerates(taint) for toleration in self.tolerations)


@dataclass(frozen=True)
class PlacementRequest:
    """What a service requests of hosts."""

    requirements: Requirements = Requirements()
    replicas: int = 1
    memory_bytes: int | None = None
    """Of one replica; None while it is not known, which counts as nothing: the agent decides once it has the file."""
    memory_enforced: bool = True
    """False: a host that has too little is only the second choice."""
    budget_bytes: int | None = None
    """Instead of the host's own memory for processes."""
    budget_fraction: float | None = None
    pinned: str | None = None
    """The one host, whatever it has and whether it lives or not."""
    preferred: tuple[str, ...] = ()
    strategy: Literal["spread", "pack"] = "spread"
    group: tuple[str, str] | None = None
    """Namespace and name of the group whose members share memory in turns."""
    stays_in_memory: bool = True
    """False for a member of a group that gives way to others."""
    may_move: bool = True
    priority: int = 0
    created: str = ""

    @property
    def limits_itself(self) -> bool:
        """Whether what is free on a host is another amount for this service than for the others."""
        return self.group is not None or self.budget_bytes is not None or self.budget_fraction is not None

    def limit_bytes(self, host: HostCapacity) -> int | None:
        """How much all processes of a host may take in the eyes of this service; None where nobody knows."""
        if self.budget_bytes is not None:
            return self.budget_bytes
        if self.budget_fraction is not None and host.total_memory_bytes is not None:
            return int(self.budget_fraction * host.total_memory_bytes)
        return host.memory_bytes


@dataclass(frozen=True)
class Refusals:
    """Why no host fits: how many hosts for each reason."""

    hosts: int
    reasons: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """One sentence, as the scheduler writes it; the most frequent reason first."""
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
    """Say in a few words why a host is not for a service; empty when it is. What it lacks for good comes first."""
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
        return f"has no {requirements.accelerator}" if known else "has not said yet what it has"
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
    """Say of a host that it is not for services of a namespace."""
    return f"does not allow namespace {namespace}"


def is_discouraged(host: HostCapacity, requirements: Requirements) -> bool:
    """Tell whether a host is only for services that find no other."""
    return any(t.effect == "PreferNoSchedule" and not requirements.tolerate(t) for t in host.taints)


def why_leave(host: HostCapacity, requirements: Requirements) -> str:
    """Say why a replica must leave the host that it runs on; empty when it may stay.

    As with pods, labels that change and a host that takes nothing new do not drive away what runs.
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
    """Name the memory that a host lacks, or that several lack, from the least to the most."""
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
    """Make labels hashable."""
    return tuple(sorted((str(k), str(v)) for k, v in (labels or {}).items()))


def tolerations_of(written: Iterable[Mapping[str, Any]]) -> tuple[Toleration, ...]:
    """Read tolerations as they stand in a custom resource; what cannot be read tolerates nothing."""
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
