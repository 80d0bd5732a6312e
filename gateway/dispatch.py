"""Decides how a whole request is answered: by the gateway itself, or by a replica of the model that it names.

`connection` calls it. Does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.proxy.upstream import Target
from gateway import models_list
from gateway.access.caller import Caller
from gateway.accounting.request_meter import Expected, asking_for_usage, expected
from gateway.clients import heads
from gateway.clients.multipart_body import MultipartBody, is_form
from gateway.clients.request_body import BodyInvalid, RequestBody
from gateway.engines.backends import Backend, Backends
from gateway.engines.engine_body import engine_body
from gateway.errors import GatewayError, adapter_not_loaded, model_not_allowed, model_not_found
from gateway.names import Match, NoMatch
from gateway.price import Price
from gateway.routers import dispatching
from gateway.routers.forwarding import Routed

STARTING = GatewayError(503, "starting", "the models of the cluster are not known yet", retry_after_s=1.0)


@dataclass(frozen=True)
class Reply:
    """An answer of the gateway, with status 200."""

    body: bytes


@dataclass(frozen=True)
class Forward:
    """A request for a replica."""

    backend: Backend
    head: bytes
    """The head to send, without its Host line."""
    payload: bytes
    key: str
    """What the choice of a replica depends on; empty: any replica."""
    expected: Expected
    """What the request may cost."""
    adapter: str = ""
    """The adapter of a LoRAAdapter that the request is for."""
    only: frozenset[Target] | None = None
    """The replicas that may get it; None: all."""

    @property
    def label(self) -> str:
        """The service, for the account."""
        return str(self.backend.route.model.service)

    @property
    def price(self) -> Price:
        """The price of the model's tokens."""
        return self.backend.route.model.price


@dataclass(frozen=True)
class Wake:
    """A request for an adapter of a service that sleeps: it is refused, and the service is woken."""

    backend: Backend
    error: GatewayError


ADAPTER_RETRY_S = 5.0
"""After this time a client may ask again for an adapter that is not loaded."""


def dispatch(
    head: heads.Head, body: bytes, caller: Caller, backends: Backends
) -> Reply | Forward | Routed | Wake | GatewayError:
    """Decide on a request of a client, with its unchunked body."""
    if head.path.startswith(dispatching.ADDRESS):
        decided = dispatching.at_address(head, body, caller, backends.routers)
        return Reply(decided) if isinstance(decided, bytes) else decided
    if head.path in heads.MODEL_PATHS:
        if head.method == "POST":
            return _forward(head, body, caller, backends)
        return GatewayError(405, "method_not_allowed", f"{head.path} takes POST, and not {head.method}")
    if head.method not in ("GET", "HEAD"):
        return _unknown_path(head)
    if head.path == "/health":
        return Reply(b'{"status":"ok"}\n')
    if head.path == "/ready":
        if not backends.are_known:
            return STARTING
        return Reply(b'{"status":"ok"}\n') if backends.routers.are_known else dispatching.STARTING
    if head.path == "/v1/models":
        routers = dispatching.entries(caller, backends.routers, backends.names)
        return Reply(models_list.listed(caller.listed(backends.names), routers))
    if head.path.startswith("/v1/models/"):
        name = head.path.removeprefix("/v1/models/")
        match = _allowed(name, caller, backends)
        return match if isinstance(match, GatewayError) else Reply(models_list.one(name, match))
    return _unknown_path(head)


def _forward(
    head: heads.Head, data: bytes, caller: Caller, backends: Backends
) -> Forward | Routed | Wake | GatewayError:
    if not backends.are_known:
        return STARTING  # a router could have the name of a service that is not known yet
    try:
        body = _read(head, data)
    except BodyInvalid as error:
        return GatewayError(400, "invalid_request", error.why, error.param)
    if (routed := dispatching.by_name(head, body, caller, backends.routers, backends.names)) is not None:
        return routed
    if not backends.routers.are_known and not backends.names.claims(body.model):
        return dispatching.STARTING
    found = _allowed(body.model, caller, backends)
    if isinstance(found, GatewayError):
        return found
    backend = backends.of(found.model.service)
    assert backend is not None
    adapter = backend.route.adapters.get(found.adapter) if found.adapter else None
    if adapter is not None and not adapter.targets:
        refusal = adapter_not_loaded(found.adapter, found.model.service, retry_after_s=ADAPTER_RETRY_S)
        return Wake(backend, refusal) if found.model.state == "asleep" else refusal
    if adapter is not None and adapter.fields and not isinstance(body, RequestBody):
        return GatewayError(400, "invalid_request", "the engine takes no adapter with a form", "model")
    payload = engine_body(
        body,
        path=head.path,
        name=found.engine_name,
        model_fields={} if found.adapter else backend.route.model_fields,
        adapter=adapter,
    )
    key = ""
    if backend.route.prefix_hash and head.path in heads.PROMPT_PATHS and (prefix := body.prefix()):
        key = f"{found.adapter}\0{prefix}"
    cost = expected(head.path, body.values)
    if cost.drop_usage and isinstance(body, RequestBody):
        payload = asking_for_usage(body, payload)
    outgoing = head.outgoing(len(payload))
    if adapter is None:
        return Forward(backend, outgoing, payload, key, cost)
    return Forward(backend, outgoing, payload, key, cost, found.adapter, adapter.targets)


def _allowed(name: str, caller: Caller, backends: Backends) -> Match | GatewayError:
    """Return the model of a name, if the caller may use it."""
    # Names of models that a key does not allow are not shown to its client.
    found = backends.names.meaning(name) if caller.models else backends.names.find(name)
    if isinstance(found, NoMatch):
        return model_not_found(name, NoMatch() if caller.models else found)
    return found if caller.may_use(name, found, backends.names) else model_not_allowed(name)


def _read(head: heads.Head, data: bytes) -> RequestBody | MultipartBody:
    """Read a body in the form that its path and its type say. Raises BodyInvalid."""
    if head.path in heads.FORM_PATHS and is_form(kind := head.content_type):
        return MultipartBody.read(data, kind)
    if head.path in heads.FORM_PATHS and not kind.lower().startswith(b"application/json"):
        raise BodyInvalid("the request's Content-Type is neither multipart/form-data nor application/json")
    return RequestBody.read(data)


def _unknown_path(head: heads.Head) -> GatewayError:
    message = f"there is no {head.method} {head.path}; the gateway serves {', '.join(sorted(heads.MODEL_PATHS))}"
    return GatewayError(404, "unknown_url", message)
