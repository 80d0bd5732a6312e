"""Finds the router of a request, by its address or by the name of a model, and its backends. `dispatch` calls it.

A router has an address of its own, `/routers/NAMESPACE/NAME/v1`. At the gateway's own address it has names: those of
its backends and rules, and its own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from urllib.parse import quote

from gateway.access.caller import Caller
from gateway.accounting.request_meter import asking_for_usage, expected
from gateway.clients import heads
from gateway.clients.multipart_body import MultipartBody
from gateway.clients.request_body import BodyInvalid, RequestBody
from gateway.errors import GatewayError, model_not_allowed
from gateway.names import Names
from gateway.routers.audit import AuditLine
from gateway.routers.budgets import limits_of
from gateway.routers.classification import classes_of
from gateway.routers.endpoints import listed_endpoints
from gateway.routers.forwarding import Routed
from gateway.routers.runtime import Routers, RouterState, listed_by
from gateway.routers.selection import SENSITIVE, Traits, choose, team_may_use
from gateway.routers.tokens import verified_team
from kubeapi.json_types import Json
from program.desired.router import Router

ADDRESS = "/routers/"
CHAT = "/v1/chat/completions"
COMPLEXITY = "x-llmkube-task-complexity"
TEAM = "x-llmkube-team"
STARTING = GatewayError(503, "starting", "the routers of the cluster are not known yet", retry_after_s=1.0)
"""The answer for an address or a name that may be a router's."""


def caller_of_token(head: heads.Head, routers: Routers) -> Caller | GatewayError | None:
    """Return who sends a request to a router that checks tokens, or why it is refused; None: the client's key counts.

    `connection` calls it as soon as it has read the head, so that nobody without a token has its body held.
    """
    if not head.path.startswith(ADDRESS):
        return None
    if not routers.are_known:
        return STARTING  # the client's token is no key
    state = routers.get(*_parts(head.path)[:2])
    if state is None or state.router.issuer is None:
        return None
    team = verified_team(state.router.issuer, head.credential, routers.key_sets)
    return team if isinstance(team, GatewayError) else Caller(team=team, issuer=state.router.issuer)


def at_address(head: heads.Head, data: bytes, caller: Caller, routers: Routers) -> Routed | bytes | GatewayError:
    """Decide on a request to the address of a router; bytes are an answer with status 200."""
    namespace, name, path = _parts(head.path)
    state = routers.get(namespace, name)
    if state is None:
        message = f"there is no ModelRouter `{namespace}/{name}`, or its spec is not valid"
        return GatewayError(404, "router_not_found", message)
    if not _may_use(caller, state.router):
        return model_not_allowed(f"{namespace}/{name}")
    if state.router.issuer != caller.issuer:
        message = "the policy of the router changed while the request came; send it again"
        return GatewayError(503, "router_changed", message, retry_after_s=1.0)
    if caller.issuer is not None:
        head = heads.with_field(head, caller.issuer.team_header, caller.team)
    if head.method in ("GET", "HEAD") and path == "/v1/models":
        return _json({"object": "list", "data": [entry(each, state.router) for each in _listed(state.router, caller)]})
    if head.method in ("GET", "HEAD") and path.startswith("/v1/models/"):
        wanted = path.removeprefix("/v1/models/")
        if wanted in _listed(state.router, caller):
            return _json(entry(wanted, state.router))
        return GatewayError(404, "model_not_found", f"the router lists no model `{wanted[:200]}`", "model")
    path = CHAT if path == state.router.chat_path else path
    if head.method != "POST" or path not in heads.MODEL_PATHS:
        return GatewayError(404, "unknown_url", f"the router serves no {head.method} {path[:200]}")
    try:
        body = RequestBody.read(data)
    except BodyInvalid as error:
        return GatewayError(400, "invalid_request", error.why, error.param)
    return _routed(state, replace(head, path=path, target=quote(path)), body, caller, routers)


def _parts(path: str) -> tuple[str, str, str]:
    """Return namespace, name and further path of the address of a router."""
    namespace, _, rest = path.removeprefix(ADDRESS).partition("/")
    name, slash, further = rest.partition("/")
    return namespace, name, slash + further


def by_name(
    head: heads.Head, body: RequestBody | MultipartBody, caller: Caller, routers: Routers, names: Names
) -> Routed | GatewayError | None:
    """Return the request for the router that `model` means; None if it means none."""
    found = routers.named(body.model, names)
    if not found:
        return None
    found = tuple(each for each in found if _may_use(caller, each.router))
    if not found:
        return model_not_allowed(body.model)
    if not isinstance(body, RequestBody):
        return GatewayError(400, "invalid_request", f"`{body.model}` is a router, and routers take JSON only", "model")
    if len(found) > 1:
        owners = " or ".join(f"{each.router.namespace}/{each.router.name}" for each in found)
        return GatewayError(
            404, "model_ambiguous", f"`{body.model}` is a name of several routers; use {owners}", "model"
        )
    return _routed(found[0], head, body, caller, routers)


def _listed(router: Router, caller: Caller) -> list[str]:
    return [each for each in listed_by(router) if team_may_use(router, caller.team, each)]


def _may_use(caller: Caller, router: Router) -> bool:
    """Return whether a client's key allows a router: by its full name, because it leads to several models."""
    name = f"{router.namespace}/{router.name}"
    return not caller.models or any(fnmatchcase(name, each) for each in caller.models)


def _routed(
    state: RouterState, head: heads.Head, body: RequestBody, caller: Caller, routers: Routers
) -> Routed | GatewayError:
    router, headers = state.router, heads.as_mapping(head)
    classes = classes_of(router.classification, headers, body.text)
    complexity = headers.get(COMPLEXITY, "").strip().lower()
    team = caller.team or headers.get(TEAM, "")
    line = AuditLine(head.request_id, body.model, classes, complexity, caller.name, team, _recorded(router, body))
    if (problem := routers.audit.problem(router)) is not None:
        return problem
    if not team_may_use(router, caller.team, body.model):
        routers.audit.write(router, replace(line, status=403, outcome="not_allowed"))
        return GatewayError(403, "model_not_allowed", f"the router does not allow team `{team}` this model", "model")
    choice = choose(router, Traits(body.model, headers, classes, complexity), state.health, routers.dice)
    if isinstance(choice, GatewayError):
        outcome = "fail_closed" if choice.code == SENSITIVE else "no_route"
        routers.audit.write(router, replace(line, status=choice.status, outcome=outcome))
        return choice
    cost = expected(head.path, body.values)
    if cost.drop_usage:
        body = RequestBody.read(asking_for_usage(body, body.unchanged()))
    limits = (*caller.limits, *limits_of(router, choice.rule, caller.team, headers))
    return Routed(state, head, body, choice, line, cost, replace(caller, limits=limits))


def _recorded(router: Router, body: RequestBody) -> str:
    return body.text if router.audit is not None and router.audit.with_body else ""


def entries(caller: Caller, routers: Routers, names: Names) -> list[Json]:
    """Return the names of the routers that a client may use, for the list of models."""
    return [entry(name, router) for name, router in routers.listed(names) if _may_use(caller, router)]


def entry(name: str, router: Router) -> Json:
    """Return one name of a router for the list of models."""
    named = [each for each in router.backends if name in (each.name, each.display_name)]
    return {
        "id": name,
        "object": "model",
        "created": int(datetime.fromisoformat(router.created).timestamp()) if router.created else 0,
        "owned_by": "herdsman",
        "root": f"{router.namespace}/{router.name}",
        "parent": None,
        "status": "ready",
        **listed_endpoints(named or router.backends),
    }


def _json(value: Json) -> bytes:
    return json.dumps(value).encode() + b"\n"
