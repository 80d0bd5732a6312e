"""`status.router` and the parts of RouterReady, from gateways, routes and pools. Pure.

Objects are looked up in the cluster, so routes and pools of the user count like Herdsman's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.kserve import naming
from program.dialects.kserve.parse.subject import Subject, is_stopped, value_at
from program.dialects.kserve.router.addresses import parent_gateways
from program.dialects.kserve.router.groups import PORT, group_of, members

MISSING = ("RefsInvalid", "InferencePoolFetchError")
"""Reasons for a reference to an object that does not exist."""


@dataclass(frozen=True)
class RouterProblem:
    """The problem of one part of the routing; `reason` is empty if there is none."""

    reason: str = ""
    message: str = ""


def gateways_of(subject: Subject) -> RouterProblem | None:
    """Check the gateways that the service names; None if it names none."""
    refs = subject.at("router", "gateway", "refs") or ()
    if not refs:
        return None
    waiting = []
    for ref in refs:
        namespace, name = str(ref.get("namespace") or subject.namespace), str(ref["name"])
        gateway = subject.look(kinds.GATEWAYS, namespace, name)
        if gateway is None:
            return RouterProblem("RefsInvalid", f"Gateway {namespace}/{name} does not exist")
        if not _is_true(gateway, "Programmed"):
            waiting.append(f"{namespace}/{name}{_said(gateway, 'Programmed')}")
    return (
        RouterProblem("GatewaysNotReady", f"Not programmed yet: {', '.join(waiting)}") if waiting else RouterProblem()
    )


def routes_of(subject: Subject) -> list[Json]:
    """Return the existing routes to the service."""
    return [found for name in _route_names(subject) if (found := _object(subject, kinds.HTTP_ROUTES, name)) is not None]


def route_finding(subject: Subject) -> RouterProblem | None:
    """Check the routes; None if the service wants none."""
    names = _route_names(subject)
    if not names:
        return None
    waiting = []
    for name in names:
        route = _object(subject, kinds.HTTP_ROUTES, name)
        if route is None and _refers_to_routes(subject):
            return RouterProblem("RefsInvalid", f"HTTPRoute {subject.namespace}/{name} does not exist")
        if route is None:
            waiting.append(f"{name} does not exist yet")
        elif why := _not_accepted(route):
            waiting.append(f"{name}: {why}")
    return (
        RouterProblem("HTTPRoutesNotReady", f"Not accepted yet: {'; '.join(waiting)}") if waiting else RouterProblem()
    )


def pool_name(subject: Subject) -> str:
    """Return the pool that requests are distributed over; empty if there is none."""
    if subject.at("router", "scheduler") is None:
        return ""
    return str(subject.at("router", "scheduler", "pool", "ref", "name") or naming.pool(subject.name))


def pool_finding(subject: Subject) -> RouterProblem | None:
    """Check the pool; None if the service has none."""
    name = pool_name(subject)
    if not name:
        return None
    pool = _object(subject, kinds.INFERENCE_POOLS, name)
    where = f"InferencePool {subject.namespace}/{name}"
    if pool is None:
        if subject.at("router", "scheduler", "pool", "ref"):
            return RouterProblem("InferencePoolFetchError", f"{where} does not exist")
        return RouterProblem("WaitingForGateway", f"{where} does not exist yet")
    parents = [p for p in _parents(pool) if (p.get("parentRef") or {}).get("kind", "Gateway") != "Status"]
    if not parents:
        if not _route_names(subject):
            # A gateway accepts a pool because of a route to it, and the service asks for no route.
            return RouterProblem()
        return RouterProblem("WaitingForGateway", f"{where} is not accepted by a gateway controller yet")
    if not any(_holds(parent, "Accepted", pool) and not _is_false(parent, "ResolvedRefs") for parent in parents):
        return RouterProblem("InferencePoolNotReady", f"{where} is not accepted: {_why(parents)}")
    return RouterProblem()


def router_status(subject: Subject, routes: list[Json]) -> Json:
    """Return `status.router`; empty if it has no content."""
    told: Json = {}
    if gateways := _gateways(routes):
        told["gateways"] = gateways
    if (pool := pool_name(subject)) and _object(subject, kinds.INFERENCE_POOLS, pool) is not None:
        picker = subject.at("router", "scheduler", "pool", "spec", "endpointPickerRef", "name")
        service = str(picker or naming.scheduler_service(subject.name))
        told["scheduler"] = {
            "inferencePool": {"group": kinds.INFERENCE_POOLS.group, "kind": "InferencePool", "name": pool},
            "service": {"group": "", "kind": "Service", "name": service},
        }
    if group := group_of(subject):
        told["group"] = {"name": group, "members": list(_members(subject, group))}
    return told


def diverging(subject: Subject) -> list[str]:
    """Return the services of the group that serve another model. Requests are not shared with these."""
    group = group_of(subject)
    return [
        name
        for name, cr in _others(subject, group)
        if not is_stopped(cr) and (value_at(cr, "spec", "model", "name") or name) != subject.model_name
    ]


def _gateways(routes: list[Json]) -> list[Json]:
    found: dict[tuple[str, str], Json] = {}
    for route in routes:
        metadata = route["metadata"]
        reference = {
            "group": kinds.HTTP_ROUTES.group,
            "kind": "HTTPRoute",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
        }
        for namespace, name, parent in parent_gateways(route):
            gateway = found.setdefault(
                (namespace, name),
                {
                    "group": kinds.GATEWAYS.group,
                    "kind": "Gateway",
                    "name": name,
                    "namespace": namespace,
                    "httpRoutes": [],
                },
            )
            if reference not in gateway["httpRoutes"]:
                gateway["httpRoutes"].append(reference)
            if parent.get("sectionName"):
                gateway["listeners"] = sorted({*gateway.get("listeners", ()), str(parent["sectionName"])})
    return [found[key] for key in sorted(found)]


def _members(subject: Subject, group: str) -> Iterator[Json]:
    sharing = {
        member.name: {"name": member.name, "weight": member.weight, "backendRef": dict(member.backend)}
        for member in members(subject)
    }
    for name, cr in _others(subject, group):
        if name not in sharing and is_stopped(cr):
            backend = {"group": "", "kind": "Service", "name": naming.workload_service(name), "port": PORT}
            weight = value_at(cr, "spec", "router", "route", "weight")
            sharing[name] = {"name": name, "weight": weight, "stopped": True, "backendRef": backend}
    for name in sorted(sharing):
        yield sharing[name]


def _others(subject: Subject, group: str) -> Iterator[tuple[str, Json]]:
    for cr in subject.look.listed(kinds.LLM_SERVICES, subject.namespace):
        name = str(cr["metadata"]["name"])
        if name != subject.name and value_at(cr, "spec", "router", "route", "group") == group:
            yield name, cr


def _route_names(subject: Subject) -> list[str]:
    if subject.at("router", "route") is None:
        return []
    refs = subject.at("router", "route", "http", "refs") or ()
    return [str(ref["name"]) for ref in refs] or [naming.route(subject.name)]


def _refers_to_routes(subject: Subject) -> bool:
    return bool(subject.at("router", "route", "http", "refs"))


def _object(subject: Subject, kind: Kind, name: str) -> Json | None:
    return subject.look(kind, subject.namespace, name)


def _parents(obj: Json) -> list[Json]:
    return list((obj.get("status") or {}).get("parents") or ())


def _not_accepted(route: Json) -> str:
    """Return why a route is not accepted; empty once all gateways that it names have accepted its generation."""
    parents = _parents(route)
    if not parents:
        return "no gateway controller has reported on it"
    if all(_holds(parent, "Accepted", route) and not _is_false(parent, "ResolvedRefs") for parent in parents):
        return ""
    return _why(parents)


def _condition(parent: Json, kind: str) -> Json:
    return next((c for c in parent.get("conditions") or () if c.get("type") == kind), {})


def _holds(parent: Json, kind: str, obj: Json) -> bool:
    found = _condition(parent, kind)
    seen, generation = found.get("observedGeneration"), obj["metadata"].get("generation")
    current = seen is None or not generation or seen >= generation
    return bool(found.get("status") == "True" and current)


def _is_false(parent: Json, kind: str) -> bool:
    return bool(_condition(parent, kind).get("status") == "False")


def _why(parents: list[Json]) -> str:
    for parent in parents:
        for kind in ("Accepted", "ResolvedRefs"):
            found = _condition(parent, kind)
            if found.get("status") == "False":
                return ": ".join(str(found[key]) for key in ("reason", "message") if found.get(key))
    stale = any(_condition(parent, "Accepted") for parent in parents)
    return "its gateway has not observed the last change yet" if stale else "its gateway has not reported on it yet"


def _is_true(gateway: Json, kind: str) -> bool:
    conditions = (gateway.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == kind and c.get("status") == "True" for c in conditions)


def _said(gateway: Json, kind: str) -> str:
    conditions = (gateway.get("status") or {}).get("conditions") or ()
    found: Json = next((c for c in conditions if c.get("type") == kind), {})
    text = ": ".join(str(found[key]) for key in ("reason", "message") if found.get(key))
    return f" ({text})" if text else ""
