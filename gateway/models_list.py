"""The answers of `GET /v1/models`, in OpenAI's format with the fields that vLLM adds. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gateway.names import ListedName, Match
from kubeapi.json_types import Json


def listed(names: Iterable[ListedName], further: Iterable[Json] = ()) -> bytes:
    """Return the list of these names, then `further` entries."""
    return _json({"object": "list", "data": [*(_entry(each.name, each.match) for each in names), *further]})


def one(name: str, match: Match) -> bytes:
    """Return one model by a name that means it."""
    return _json(_entry(name, match))


def _entry(name: str, match: Match) -> Json:
    model = match.model
    entry: Json = {
        "id": name,
        "object": "model",
        "created": model.created_s,
        "owned_by": model.owned_by,
        "root": str(model.service),
        "parent": str(model.service) if match.adapter else None,
        "status": "not loaded" if match.adapter in model.not_loaded else model.state,
    }
    if model.context_length is not None:
        entry["max_model_len"] = model.context_length
    if model.capabilities:
        entry["capabilities"] = list(model.capabilities)
    return entry


def _json(value: Json) -> bytes:
    return json.dumps(value).encode() + b"\n"
