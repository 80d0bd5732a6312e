"""Services of a namespace with the same `route.group` share the requests for their model by weight. Pure.

The route of each member sends requests to all members. A member takes part while one of its pods serves. A change of
its weight or route, or the state of its gateway, does not exclude it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.dialects.kserve import naming
from program.dialects.kserve.configuration.combine import combined
from program.dialects.kserve.parse.subject import Subject, is_stopped, value_at
from program.dialects.kserve.router.pool_group import POOL_GROUP

PORT = 8000


@dataclass(frozen=True)
class Member:
    """One service of a group."""

    name: str
    model_name: str
    weight: int
    backend: Json
    """A `backendRef` of a route, without its weight."""


def group_of(subject: Subject) -> str:
    """Return the group of a service's route; empty for none."""
    return str(subject.at("router", "route", "group") or "")


def members(subject: Subject) -> tuple[Member, ...]:
    """List the members of the service's group that share its model's requests, by name.

    The service itself is always one.
    """
    group = group_of(subject)
    own = Member(
        name=subject.name,
        model_name=subject.model_name,
        weight=_weight(subject.spec),
        backend=backend_of(subject.name, subject.spec),
    )
    found = {own.name: own}
    for cr in subject.look.listed(kinds.LLM_SERVICES, subject.namespace):
        other = _member(cr, group, subject) if cr["metadata"]["name"] != own.name else None
        if other is not None and other.model_name == own.model_name:
            found[other.name] = other
    return tuple(found[name] for name in sorted(found))


def backend_of(service: str, spec: Json) -> Json:
    """Return the backend of a service: its pool, or its Service if it has no endpoint picker."""
    scheduler = value_at(spec, "router", "scheduler")
    if scheduler is None:
        return {"group": "", "kind": "Service", "name": naming.workload_service(service), "port": PORT}
    pool = value_at(scheduler, "pool", "ref", "name") or naming.pool(service)
    return {"group": POOL_GROUP, "kind": "InferencePool", "name": str(pool), "port": PORT}


def _member(cr: Json, group: str, subject: Subject) -> Member | None:
    if is_stopped(cr) or cr["metadata"].get("deletionTimestamp") or not _serves(cr):
        return None
    spec: Json = cr.get("spec") or {}
    if spec.get("baseRefs"):
        try:
            spec = combined(cr, subject.look).spec
        except DesiredError:
            # The status of that service reports the error.
            return None
    route = value_at(spec, "router", "route")
    if value_at(route, "group") != group or value_at(route, "http", "refs"):
        return None
    name = str(cr["metadata"]["name"])
    model_name = str(value_at(cr, "spec", "model", "name") or name)
    return Member(name=name, model_name=model_name, weight=_weight(spec), backend=backend_of(name, spec))


def _serves(cr: Json) -> bool:
    ready: Any = value_at(cr, "status", "workloads", "primary", "readyReplicas")
    return isinstance(ready, int) and ready > 0


def _weight(spec: Json) -> int:
    weight = value_at(spec, "router", "route", "weight")
    return 1 if weight is None else int(weight)
