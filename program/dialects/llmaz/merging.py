"""What a Playground says beside what its runtime recommends: environment and resources of the container. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from kubeapi.json_types import Json
from program.dialects.quantities import parse_quantity


def merged_env(*lists: Iterable[Json]) -> list[Json]:
    """Join lists of variables by name; the later wins, at the place of the earlier, so that the order never changes."""
    merged: dict[str, Json] = {}
    for variables in lists:
        for variable in variables:
            merged[str(variable["name"])] = dict(variable)
    return list(merged.values())


def merged_resources(own: Mapping[str, Any], recommended: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Join requests and limits by resource; the Playground's own win.

    Where a request would then be more than the limit, the one that was not written by the Playground gives way.
    """
    requests = {**_texts(recommended.get("requests")), **_texts(own.get("requests"))}
    limits = {**_texts(recommended.get("limits")), **_texts(own.get("limits"))}
    for name in requests.keys() & limits.keys():
        if _amount(limits[name]) >= _amount(requests[name]):
            continue
        if name in (own.get("limits") or {}):
            requests[name] = limits[name]
        else:
            limits[name] = requests[name]
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def with_limits(resources: Mapping[str, Any], limits: Mapping[str, str]) -> dict[str, Any]:
    """Set a flavor's limits, each as request and as limit, over what the container has."""
    if not limits:
        return dict(resources)
    return {
        **resources,
        "requests": {**_texts(resources.get("requests")), **limits},
        "limits": {**_texts(resources.get("limits")), **limits},
    }


def limit_below_request(resources: Mapping[str, Any]) -> str:
    """Name a resource whose limit is less than its request; empty where there is none."""
    requests, limits = _texts(resources.get("requests")), _texts(resources.get("limits"))
    return next((name for name in limits if name in requests and _amount(limits[name]) < _amount(requests[name])), "")


def _amount(text: str) -> Decimal:
    return parse_quantity(text, field="resources")


def _texts(amounts: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (amounts or {}).items()}
