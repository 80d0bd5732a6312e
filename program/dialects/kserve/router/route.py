"""The HTTPRoute of an LLMInferenceService. Pure.

Its rules come from the preset or the user. This module adds the parts that the service's own spec lacks: matches on the
header with the model's name, the adapters' names, and the members of the group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.workloads import Route
from program.dialects.kserve import naming
from program.dialects.kserve.parse.lora import Adapter
from program.dialects.kserve.parse.subject import Subject, value_at
from program.dialects.kserve.router.groups import Member, group_of, members
from program.dialects.kserve.router.pool_group import OLD_POOL_GROUP, POOL_GROUP
from program.dialects.kserve.schema.validation import check_route_spec

MIGRATED = "serving.kserve.io/inference-pool-migrated"
"""Annotation of a route that names pools of `inference.networking.k8s.io`, and none of the earlier group."""
_PATH = re.compile(r"(?:[A-Za-z0-9/._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+", re.ASCII)
"""The characters of a path in the Gateway API."""
MOST_MATCHES = 64
"""The Gateway API's limit of matches in a rule."""
MOST_BACKENDS = 16
"""The Gateway API's limit of backends in a rule."""


def route_of(subject: Subject, adapters: Sequence[Adapter]) -> tuple[Route | None, tuple[Problem, ...]]:
    """Return the route, and the problems of parts that do not fit into it; None if the service asks for no route."""
    route = subject.at("router", "route")
    spec: Json | None = value_at(route, "http", "spec")
    if route is None or spec is None or value_at(route, "http", "refs"):
        return None, ()
    check_route_spec(spec, field="spec.router.route.http.spec")
    rules = list(spec.get("rules") or ())
    _check_paths(rules, subject)
    own_pools = {naming.pool(subject.name), str(subject.at("router", "scheduler", "pool", "ref", "name"))}
    group = group_of(subject)
    problems: tuple[Problem, ...] = ()
    if not matches_header(subject, spec.get("parentRefs") or ()):
        rules = [rule for rule in (_without_header(rule, subject.settings.model_header) for rule in rules) if rule]
    elif adapters:
        published = naming.published_model(subject.namespace, subject.model_name)
        names = [naming.published_model(subject.namespace, adapter.name) for adapter in adapters]
        extended = [_with_adapters(rule, subject.settings.model_header, published, names) for rule in rules]
        rules = [rule for rule, _ in extended]
        problems = _left_out(max((left_out for _, left_out in extended), default=0), len(adapters))
    if group:
        shared = members(subject)
        fitting = _fitting(shared, subject.name)
        rules = [_weighted(rule, subject, fitting) for rule in rules]
        problems = (*problems, *_too_many(len(shared) - len(fitting), group))
    rules = [_with_pools_of_today(rule, own_pools) for rule in rules]
    own = naming.of_component(subject.name, naming.ROUTER)
    pool = naming.pool(subject.name)
    described = Route(
        name=naming.route(subject.name),
        labels={**own, naming.ROUTING_GROUP: group} if group else own,
        annotations={MIGRATED: "v1"} if any(_leads_to(rule, pool) for rule in rules) else {},
        spec={**spec, "rules": rules},
    )
    return described, problems


def _check_paths(rules: Sequence[Json], subject: Subject) -> None:
    """Refuse a model name that no path can contain, before the API server refuses every rule with it."""
    published = naming.published_model(subject.namespace, subject.model_name)
    if _PATH.fullmatch(published) is not None and "//" not in published:
        return
    for rule in rules:
        for match in rule.get("matches") or ():
            if published in str(value_at(match, "path", "value") or ""):
                raise SpecInvalid(
                    field="spec.model.name",
                    why=f"`{subject.model_name[:64]}` cannot be part of the route's path, which contains the model's "
                    f"name; use letters, digits and any of -._~/:@+",
                )


def matches_header(subject: Subject, parents: Sequence[Json]) -> bool:
    """Return whether requests are routed by the header with the model's name: by settings, service and gateways."""
    if subject.settings.header_routing == "disabled":
        return False
    if str((subject.at("annotations") or {}).get(naming.HEADER_ROUTING)) != "true":
        return False
    return subject.settings.header_routing == "forced" or not any(_declines(subject, parent) for parent in parents)


def _declines(subject: Subject, parent: Json) -> bool:
    if parent.get("kind", "Gateway") != "Gateway" or parent.get("group", kinds.GATEWAYS.group) != kinds.GATEWAYS.group:
        return False
    namespace = str(parent.get("namespace") or subject.namespace)
    gateway = subject.look(kinds.GATEWAYS, namespace, str(parent.get("name") or "")) or {}
    annotations = (gateway.get("metadata") or {}).get("annotations") or {}
    return bool(annotations.get(naming.HEADER_ROUTING) == "false")


def _without_header(rule: Json, header: str) -> Json | None:
    """Remove the matches on the header; return None for a rule that has no other match."""
    matches = rule.get("matches") or ()
    kept = [match for match in matches if _header_value(match, header) is None]
    if len(kept) == len(matches):
        return rule
    return {**rule, "matches": kept} if kept else None


def _with_adapters(rule: Json, header: str, published: str, names: Sequence[str]) -> tuple[Json, int]:
    """Add matches for the adapters' names to those for the model's name.

    Return the rule and how many names do not fit.
    """
    matches = rule.get("matches") or ()
    by_model = [match for match in matches if _header_value(match, header) == published]
    if not by_model:
        return rule, 0
    room = max(0, (MOST_MATCHES - len(matches)) // len(by_model))
    fitting = names[:room]
    added = [_for_name(match, header, name) for match in by_model for name in fitting]
    return {**rule, "matches": [*matches, *added]}, len(names) - len(fitting)


def _for_name(match: Json, header: str, name: str) -> Json:
    return {
        **match,
        "headers": [{**h, "value": name} if _is(h, header) else h for h in match["headers"]],
    }


def _left_out(count: int, adapters: int) -> tuple[Problem, ...]:
    if not count:
        return ()
    return (
        unsupported_field(
            "spec.model.lora.adapters",
            f"a rule of a route holds {MOST_MATCHES} matches, so requests that name one of the last {count} of "
            f"{adapters} adapters by header go through the endpoint picker; name these adapters in the path instead",
        ),
    )


def _header_value(match: Json, header: str) -> str | None:
    return next((str(h.get("value")) for h in match.get("headers") or () if _is(h, header)), None)


def _is(header: Json, name: str) -> bool:
    return str(header.get("name", "")).lower() == name.lower()


def _weighted(rule: Json, subject: Subject, shared: Sequence[Member]) -> Json:
    """Use all members of the group as backends of a rule, if its matches name the model and not the service."""
    if not _is_shared(rule, subject):
        return rule
    return {**rule, "backendRefs": [{**member.backend, "weight": member.weight} for member in shared]}


def _fitting(shared: Sequence[Member], own: str) -> tuple[Member, ...]:
    """Return the members that fit into a rule, including the service itself."""
    others = [member for member in shared if member.name != own][: MOST_BACKENDS - 1]
    return tuple(member for member in shared if member.name == own or member in others)


def _too_many(count: int, group: str) -> tuple[Problem, ...]:
    if not count:
        return ()
    return (
        unsupported_field(
            "spec.router.route.group",
            f"a rule of a route holds {MOST_BACKENDS} backends, so the last {count} members of group {group}, "
            "by name, get no requests from this route; use fewer members",
        ),
    )


def _is_shared(rule: Json, subject: Subject) -> bool:
    published = naming.published_model(subject.namespace, subject.model_name)
    prefix = f"/{published}"
    matches = rule.get("matches") or ()

    def of_model(match: Json) -> bool:
        path = str(value_at(match, "path", "value") or "")
        by_path = path == prefix or path.startswith(f"{prefix}/")
        by_header = (_header_value(match, subject.settings.model_header) or "").startswith(
            naming.published_model(subject.namespace, "")
        )
        return by_path or by_header

    return bool(matches) and all(of_model(match) for match in matches)


def _with_pools_of_today(rule: Json, own_pools: Collection[str]) -> Json:
    """Set the API group that Herdsman creates the service's pool in. References to other pools stay unchanged."""
    backends = rule.get("backendRefs") or ()
    if all(backend.get("group") != OLD_POOL_GROUP for backend in backends):
        return rule

    def with_present_group(backend: Json) -> Json:
        is_own = backend.get("group") == OLD_POOL_GROUP and backend.get("name") in own_pools
        return {**backend, "group": POOL_GROUP} if is_own else backend

    return {**rule, "backendRefs": [with_present_group(backend) for backend in backends]}


def _leads_to(rule: Json, pool: str) -> bool:
    return any(b.get("kind") == "InferencePool" and b.get("name") == pool for b in rule.get("backendRefs") or ())
