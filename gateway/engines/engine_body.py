"""The body of a request as an engine expects it: with its own name of the model or the adapter. Pure.

`dispatch` and `routers.forwarding` call it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from gateway.clients import heads
from gateway.clients.multipart_body import MultipartBody
from gateway.clients.request_body import RequestBody
from gateway.engines.backends import AdapterRoute

_GENERATING = heads.PROMPT_PATHS | {"/v1/responses"}


def engine_body(
    body: RequestBody | MultipartBody,
    *,
    path: str,
    name: str,
    model_fields: Mapping[str, str],
    adapter: AdapterRoute | None = None,
) -> bytes:
    """Return a client's body for an engine. All bytes that do not name a model stay as they are.

    `name` is what the engine expects as `model`, or empty. `adapter` is the adapter that the request is for. Otherwise
    the request is for the model itself, and gets `model_fields` unless it has a value for them.
    """
    fields: Mapping[str, str] = {}
    if adapter is not None:
        name, fields = adapter.engine_name, adapter.fields
    elif path in _GENERATING and isinstance(body, RequestBody):
        fields = {key: value for key, value in model_fields.items() if not body.values.get(key)}
    if fields and isinstance(body, RequestBody):
        return body.with_values({"model": json.dumps(name or body.model), **fields})
    return body.unchanged() if name in ("", body.model) else body.with_model(name)
