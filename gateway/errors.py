"""The errors that the gateway itself answers, in OpenAI's format. Without I/O.

Types and codes are those that OpenAI's client libraries know. They repeat a request on 408, 409, 429 and 5xx.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from gateway.names import NoMatch, ServiceName
from program.desired.keys import ANNOTATION_MODEL_ALIASES


@dataclass(frozen=True)
class GatewayError:
    """Why a request gets no answer of an engine."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the answer."""

    @property
    def type(self) -> str:
        """OpenAI's class of the error."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return "authentication_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        """Return the error as JSON."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode() + b"\n"


INTERNAL = GatewayError(500, "internal_error", "the gateway could not handle the request; its log says why")
_SHOWN = 200
"""How much of a client's text an error repeats, in characters."""


def model_not_found(name: str, found: NoMatch) -> GatewayError:
    """Say why a name means no model."""
    name = name[:_SHOWN]
    if found.owners:
        owners = list(map(str, found.owners))
        remedy = f"use {_any_of(owners)}"
        if len(set(owners)) < len(owners):
            # A Playground and an InferenceService, for example.
            kinds = " and ".join(f"{each} ({each.dialect})" for each in found.owners)
            remedy = f"annotation {ANNOTATION_MODEL_ALIASES} gives other names to {kinds}"
        message = f"`{name}` is a name of several models; {remedy}"
        return GatewayError(404, "model_ambiguous", message, "model")
    near = f"; similar names: {', '.join(found.near)}" if found.near else ""
    return GatewayError(
        404, "model_not_found", f"the model `{name}` does not exist{near}. GET /v1/models lists the models", "model"
    )


def model_not_allowed(name: str) -> GatewayError:
    """Say that a key does not allow a model."""
    message = f"your API key does not allow the model `{name[:_SHOWN]}`. GET /v1/models lists the models that it allows"
    return GatewayError(403, "model_not_allowed", message, "model")


def adapter_not_loaded(adapter: str, service: ServiceName, *, retry_after_s: float) -> GatewayError:
    """Say that no replica has loaded an adapter yet."""
    message = f"no replica of `{service}` has loaded the adapter `{adapter}`; its LoRAAdapter says why"
    return GatewayError(503, "adapter_not_loaded", message, retry_after_s=retry_after_s)


def _any_of(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
