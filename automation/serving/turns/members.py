"""Which services take turns in which pool, and why others do not. Without I/O. Called by `pools`.

A service that takes no turns runs as its spec says, and the other members take turns without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from program.desired.pool import Pool

Role = Literal["turns", "host", "stopped", "refused"]


@dataclass(frozen=True)
class ServiceFacts:
    """An InferenceService as the caches hold it."""

    managed: bool = True
    """This loop reconciles it."""
    autoscaled: bool = False
    """It has `spec.autoscaling`."""
    by_requests: bool = False
    """It has annotation `herdsman.dev/scale-by`."""
    scaled_by: str = ""
    """The autoscaler that sets the replicas of its Deployment; empty for none."""
    stopped: bool = False
    """It has `spec.replicas: 0` or `spec.suspend`."""
    hosted: bool = False
    """It runs as processes on hosts."""
    own_group: str = ""
    """Its annotation `herdsman.dev/model-group`."""
    gpus: int = 0
    """The GPUs that all its replicas request; 0 while they are not known."""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Its `spec.nodeSelector`."""


@dataclass(frozen=True)
class Place:
    """A member of a pool: whether it takes turns, and what people should know about it."""

    name: str
    role: Role
    reason: str = ""
    """For a refused member: why, as one CamelCase word."""
    message: str = ""


@dataclass(frozen=True)
class AgedPool:
    """A pool with its age. The oldest pool that names a service has it."""

    pool: Pool
    created: str

    @property
    def rank(self) -> tuple[str, str]:
        return self.created, self.pool.name


def places(pools: Sequence[AgedPool], facts: Callable[[str], ServiceFacts | None]) -> dict[str, tuple[Place, ...]]:
    """Return the members of each pool of one namespace, by the pool's name, in the order of its spec.

    `facts` returns an InferenceService of the namespace, None where there is none.
    """
    owners: dict[str, str] = {}
    found: dict[str, tuple[Place, ...]] = {}
    for each in sorted(pools, key=lambda aged: aged.rank):
        for name in each.pool.members:
            owners.setdefault(name, each.pool.name)
        found[each.pool.name] = tuple(_place(each.pool, name, owners[name], facts(name)) for name in each.pool.members)
    return found


def _place(pool: Pool, name: str, owner: str, facts: ServiceFacts | None) -> Place:
    if facts is None:
        return _refused(
            name, "MemberNotFound", f"there is no InferenceService `{name}` in namespace `{pool.namespace}`"
        )
    if owner != pool.name:
        return _refused(name, "InAnotherPool", f"it is a member of ModelPool `{owner}` already; remove it from one")
    if not facts.managed:
        return _refused(name, "NotManaged", "another controller reconciles it, or a static fleet does")
    if facts.autoscaled:
        return _refused(name, "MemberAutoscaled", "it has spec.autoscaling; remove that, or remove it from the pool")
    if facts.scaled_by:
        why = f"`{facts.scaled_by}` sets the replicas of its Deployment; delete that autoscaler"
        return _refused(name, "MemberAutoscaled", why)
    if facts.by_requests and not facts.hosted:
        why = "the gateways' requests scale it by annotation herdsman.dev/scale-by; remove the annotation"
        return _refused(name, "MemberAutoscaled", f"{why}, or remove it from the pool")
    if facts.hosted and facts.own_group:
        why = f"it is in model group `{facts.own_group}` by annotation herdsman.dev/model-group; remove the annotation"
        return _refused(name, "InModelGroup", why)
    if facts.hosted:
        return Place(name, "host", message="on hosts it takes turns by the host's memory")
    if facts.stopped:
        return Place(name, "stopped", message="spec.replicas is 0 or spec.suspend is set, so it takes no turns")
    return Place(name, "turns", message=_notice(pool, facts))


def _refused(name: str, reason: str, why: str) -> Place:
    return Place(name, "refused", reason, why)


def _notice(pool: Pool, facts: ServiceFacts) -> str:
    """Return what makes it doubtful that the member uses the GPUs of the pool; empty for nothing."""
    missing = [
        f"{key}={value}" for key, value in sorted(pool.node_labels.items()) if facts.node_labels.get(key) != value
    ]
    if missing:
        return f"its nodeSelector lacks {', '.join(missing)} of the pool, so it may run on other nodes"
    if facts.gpus > pool.gpus:
        return f"its replicas request {facts.gpus} GPUs, and the pool has {pool.gpus}"
    return ""
