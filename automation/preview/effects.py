"""Tells what a ModelRouter, a ModelPool or a LoRAAdapter means for clients and services, before it is applied.

Called by `resources`. Uses the parsers and the rules of the loop and of the gateway; reads what the resource refers to
by a lookup, in the files first, then in the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from automation.cache import trim
from automation.cache.owners import selector_of
from automation.preview.lookup import PreviewLookup
from automation.serving.adapters.deciding import engine_pods, hindrance, refusal_of, running
from automation.serving.turns.members import AgedPool, Place, ServiceFacts, places
from automation.serving.turns.observed import facts_of
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.adapter import Adapter
from program.desired.errors import SpecInvalid
from program.desired.pool import Pool
from program.desired.router import Router
from program.dialects.llmkube.parse.adapter import adapter_of, claims_of, file_of, is_on_hosts, runtime_of
from program.dialects.llmkube.parse.pool import pool_of
from program.dialects.llmkube.parse.router import router_of, unsupported_fields
from program.dialects.pods.llama_server import POSSIBLE
from program.dialects.registry import KINDS, LLMKUBE, kind_text

T = TypeVar("T")

_ROUTER_PATH = re.compile(r"/routers/([^/]+)/([^/]+)(?:/|$)")


@dataclass(frozen=True)
class Effects:
    """What a resource means, and what it lacks."""

    effects: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def effects_of(cr: Json, live: Json | None, look: PreviewLookup) -> Effects:
    """Return what a resource means once it is applied. `live` is the present version; None for a new resource.

    Raises SpecInvalid for a spec that its controller refuses, and ApiError.
    """
    match cr["kind"]:
        case kinds.MODEL_ROUTERS.kind:
            before = _parsed(router_of, live)
            router = router_of(cr)
            return Effects(tuple(_router_effects(router, before)), tuple(_router_warnings(router, cr, look)))
        case kinds.MODEL_POOLS.kind:
            return _pool_effects(pool_of(cr), _parsed(pool_of, live), look)
        case _:
            return _adapter_effects(adapter_of(cr), _parsed(adapter_of, live), look)


def _parsed(parse: Callable[[Json], T], live: Json | None) -> T | None:
    try:
        return parse(live) if live is not None else None
    except SpecInvalid:
        return None


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- ModelRouter ------------------------------------------------------------------------------------------------------


def _router_effects(router: Router, before: Router | None) -> Iterator[str]:
    # Imported here, because previews of services need no part of the gateway.
    from gateway.routers.runtime import listed_by

    names = listed_by(router)
    yield f"clients see these models at /routers/{router.namespace}/{router.name}/v1: {_names(names)}"
    if before is not None:
        was = listed_by(before)
        if added := [name for name in names if name not in was]:
            yield f"new for clients: {_names(added)}"
        if gone := [name for name in was if name not in names]:
            yield f"clients do not find any more: {_names(gone)}"
    if router.issuer is not None:
        yield f"only clients with a token of {router.issuer.issuer} get answers, and only at that address"
    if away := [each.name for each in router.backends if not each.is_local]:
        yield f"requests can leave the cluster to {_names(away)}"


def _router_warnings(router: Router, cr: Json, look: PreviewLookup) -> Iterator[str]:
    for index, backend in enumerate(router.backends):
        field = f"spec.backends[{index}]"
        if backend.service and look(kinds.INFERENCE_SERVICES, router.namespace, backend.service) is None:
            yield (
                f"{field}.inferenceServiceRef: there is no InferenceService `{backend.service}` in namespace "
                f"`{router.namespace}`; backend `{backend.name}` answers nothing until it exists"
            )
        secret = backend.external.secret if backend.external is not None else ""
        if secret and look.exists(kinds.SECRETS, router.namespace, secret) is False:
            yield (
                f"{field}.external.credentialsSecretRef: there is no Secret `{secret}` in namespace "
                f"`{router.namespace}`; requests to backend `{backend.name}` fail until it exists"
            )
    if cycle := _cycle(router, look):
        yield f"requests can go in a circle through these ModelRouters: {' -> '.join(cycle)}"
    if router.issuer is None:
        yield from _shadowed_names(router, look)
    for problem in unsupported_fields(cr):
        yield f"{problem.field} {problem.message}"


def _shadowed_names(router: Router, look: PreviewLookup) -> Iterator[str]:
    """Name the names that mean something else at the gateway's own address."""
    own = {router.name, *(name for name in router.public_names if "/" not in name)}
    services = {str(each["metadata"]["name"]) for each in look.listed(kinds.INFERENCE_SERVICES, router.namespace)}
    at = f"/routers/{router.namespace}/{router.name}/v1"
    if taken := sorted(own & services):
        yield (
            f"an InferenceService has the name too, so at the gateway's own address it means the service, and the "
            f"router only at {at}: {_names(taken)}"
        )
    for each in look.listed(kinds.MODEL_ROUTERS, router.namespace):
        other = _parsed(router_of, each)
        if other is None or other.name == router.name or other.issuer is not None:
            continue
        if shared := sorted(own & {other.name, *other.public_names}):
            yield f"ModelRouter `{other.name}` has the name too, so it works only at {at}: {_names(shared)}"


def _cycle(router: Router, look: PreviewLookup) -> list[str]:
    """Return the routers of a circle that begins and ends at this one, by the addresses of their backends."""
    start = (router.namespace, router.name)
    seen: set[tuple[str, str]] = set()

    def follow(at: Router, path: list[str]) -> list[str]:
        for target in dict.fromkeys(_routers_behind(at)):
            if target == start:
                return [*path, "/".join(start)]
            if target in seen:
                continue
            seen.add(target)
            found = _parsed(router_of, look(kinds.MODEL_ROUTERS, *target))
            if found is not None and (cycle := follow(found, [*path, "/".join(target)])):
                return cycle
        return []

    return follow(router, ["/".join(start)])


def _routers_behind(router: Router) -> Iterator[tuple[str, str]]:
    for backend in router.backends:
        if backend.external is not None and (found := _ROUTER_PATH.match(urlsplit(backend.external.url).path)):
            yield found[1], found[2]


# --- ModelPool --------------------------------------------------------------------------------------------------------


def _pool_effects(pool: Pool, before: Pool | None, look: PreviewLookup) -> Effects:
    pools = []
    for each in look.listed(kinds.MODEL_POOLS, pool.namespace):
        if (parsed := _parsed(pool_of, each)) is not None and "deletionTimestamp" not in each["metadata"]:
            pools.append(AgedPool(parsed, str(each["metadata"].get("creationTimestamp") or "")))
    members = places(pools, lambda name: _facts(pool.namespace, name, look)).get(pool.name, ())
    effects = list(_turns(pool, members))
    was = before.members if before is not None else ()
    taking = {each.name for each in members if each.role == "turns"}
    for name in pool.members:
        if name in taking and name not in was:
            effects.append(f"InferenceService `{name}` becomes a member: it runs only in its turns")
    for name in was:
        if name not in pool.members:
            effects.append(f"InferenceService `{name}` leaves the pool: it runs as its own spec says")
    warnings = [f"`{each.name}` takes no turns: {each.message}" for each in members if each.role == "refused"]
    warnings += [
        f"`{each.name}`: {each.message}" for each in members if each.role in ("turns", "stopped") and each.message
    ]
    if pool.default and pool.default not in pool.members:
        warnings.append(f"spec.default: `{pool.default}` is no member")
    return Effects(tuple(effects), tuple(warnings))


def _turns(pool: Pool, members: tuple[Place, ...]) -> Iterator[str]:
    by_role = {role: [each.name for each in members if each.role == role] for role in ("turns", "host")}
    if by_role["turns"]:
        gpus = f"{pool.gpus} GPU" + ("" if pool.gpus == 1 else "s")
        yield (
            f"{_names(by_role['turns'])} use {gpus} by turns of at least {pool.min_turn_s:g} s; a request waits for a "
            f"turn for at most {pool.hold_s:g} s"
        )
    if by_role["host"]:
        yield f"{_names(by_role['host'])} take turns by the memory of their hosts"


def _facts(namespace: str, name: str, look: PreviewLookup) -> ServiceFacts | None:
    cr = look(kinds.INFERENCE_SERVICES, namespace, name)
    if cr is None or "deletionTimestamp" in cr["metadata"]:
        return None
    deployment = look(kinds.DEPLOYMENTS, namespace, naming.deployment_name(name))
    live = trim.deployment(deployment) if deployment is not None else None
    return facts_of(cr, live, managed=True, hosted=_runs_on_hosts(cr, LLMKUBE, look))


def _runs_on_hosts(service: Json, dialect: str, look: PreviewLookup) -> bool:
    metadata = service["metadata"]
    process = naming.host_process_name(metadata["name"], dialect=dialect)
    return is_on_hosts(service) or bool(look.exists(kinds.HOST_PROCESSES, metadata["namespace"], process))


# --- LoRAAdapter ------------------------------------------------------------------------------------------------------


def _adapter_effects(adapter: Adapter, before: Adapter | None, look: PreviewLookup) -> Effects:
    namespace, kind = adapter.namespace, KINDS[adapter.dialect]
    service = look(kind, namespace, adapter.service)
    first = claims_of(look.listed(kinds.LORA_ADAPTERS, namespace)).get(adapter.claim)
    pods = _pods_of(adapter, look)
    starts = running(pods)
    hosted = service is not None and _runs_on_hosts(service, adapter.dialect, look)
    what, name = f"{kind_text(adapter.dialect)} `{adapter.service}`", f"`{adapter.service}:{adapter.name}`"
    problem = hindrance(
        # Resources that are new have no uid of their own yet.
        adapter.model_copy(update={"uid": adapter.resource}),
        first=first.model_copy(update={"uid": first.resource}) if first is not None else None,
        service=service,
        engine=_engine_of(adapter, service, pods),
        managed=True,
        on_hosts=hosted,
        replicas=len(starts) if not hosted else 1,
        refusal=refusal_of(pods) if adapter.dialect != LLMKUBE else POSSIBLE,
    )
    if problem is not None:
        waits = () if problem.terminal else (f"each replica of {what} loads it when it runs; clients name it {name}",)
        return Effects(waits, (f"no replica loads it: {problem.message}",))
    file = file_of(adapter, on_host=hosted)
    if file is not None:
        if before is not None and file_of(before, on_host=hosted) == file:
            return Effects((f"{what} keeps it; clients name it {name}",))
        how = "restarts once on each host and loads" if hosted else "rolls out once, and its pods download and load"
        return Effects((f"{what} {how} the adapter; clients name it {name}",))
    loading = _names([start.pod for start in starts])
    effects = [f"these replicas of {what} load it: {loading}; clients name it {name}"]
    if before is not None and before.path != adapter.path:
        effects.append("its path changes, so each replica loads it again")
    return Effects(tuple(effects))


def _pods_of(adapter: Adapter, look: PreviewLookup) -> list[Json]:
    found = look.selected(kinds.PODS, adapter.namespace, selector_of(adapter.dialect, (adapter.service,)))
    if adapter.dialect == LLMKUBE:
        return [trim.pod(each) for each in found]
    return engine_pods([trim.workload_pod(each) for each in found])


def _engine_of(adapter: Adapter, service: Json | None, pods: Iterable[Json]) -> str:
    if adapter.dialect == LLMKUBE:
        return runtime_of(service) if service is not None else ""
    return next((str(pod["engine"]["runtime"]) for pod in pods), "")
