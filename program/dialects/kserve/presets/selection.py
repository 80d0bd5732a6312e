"""Chooses the presets of a service, and the versions of them that it keeps. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kubeapi.json_types import Json
from program.dialects.kserve import presets

PIN_PREFIX = "serving.kserve.io/"
"""Annotations in the status that name a preset: this and the preset's name without what a distribution puts first."""

_CONFIG = "config-llm-"
_ROUTE = "router-route"
_TOKENIZER_PLUGINS = ("token-producer", "precise-prefix-cache-scorer")
_PREDICTOR_PLUGIN = "predicted-latency-producer"
_PINNED = tuple(
    f"{PIN_PREFIX}{_CONFIG}{name.removeprefix(presets.PREFIX)}"
    for name in presets.names()
    if name != f"{presets.PREFIX}{_ROUTE}"
)
"""The annotations of the status."""


def wanted_presets(spec: Json) -> tuple[str, ...]:
    """Name the presets that a service with this spec (own and base configs) needs, lowest first, without prefix."""
    router = _object(spec.get("router"))
    scheduler = router.get("scheduler")
    names: list[str] = []
    if isinstance(scheduler, dict) and not _object(scheduler.get("pool")).get("ref"):
        names.append("scheduler")
        plugins = _picker_config(scheduler)
        if scheduler.get("tokenizer") is not None or any(plugin in plugins for plugin in _TOKENIZER_PLUGINS):
            names.append("tokenizer")
        if _PREDICTOR_PLUGIN in plugins:
            names.append("scheduler-latency-predictor")
    route = router.get("route")
    if route is not None and not _object(_object(route).get("http")).get("refs"):
        names.append(_ROUTE)
    if spec.get("tracing") is not None:
        names.append("tracing")
    prefill = spec.get("prefill")
    if prefill is None:
        return (*names, _workload(spec))
    return (*names, f"prefill-{_workload(_object(prefill))}", f"decode-{_workload(spec)}")


def _workload(spec: Mapping[str, Any]) -> str:
    if spec.get("worker") is None:
        return "template"
    # Workers are there to share either copies of the model or its layers.
    return "worker-pipeline-parallel" if _object(spec.get("parallelism")).get("pipeline") else "worker-data-parallel"


def _picker_config(scheduler: Mapping[str, Any]) -> str:
    """Return what is known of the endpoint picker's configuration, as text to look for plugins in."""
    texts = []
    inline = _object(scheduler.get("config")).get("inline")
    if inline is not None:
        texts.append(inline if isinstance(inline, str) else json.dumps(inline))
    containers = _object(scheduler.get("template")).get("containers")
    for container in containers if isinstance(containers, list) else ():
        for field in ("command", "args"):
            words = _object(container).get(field)
            texts.extend(word for word in words or () if isinstance(word, str)) if isinstance(words, list) else None
    return "\n".join(texts)


def kept_pins(status: Mapping[str, Any]) -> dict[str, str]:
    """Name the presets that a status says the service keeps."""
    kept = _object(status.get("annotations"))
    return {key: value for key in _PINNED if isinstance(value := kept.get(key), str) and value}


def pins(status: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Name the preset of each kind that a service keeps: what its status says, else today's with this prefix.

    A distribution of KServe puts its version into the names, so that services keep the presets they started with
    over an upgrade. The route is always today's: no pod restarts for it.
    """
    return {**{key: f"{prefix}{key.removeprefix(PIN_PREFIX)}" for key in _PINNED}, **kept_pins(status)}


def pinned(name: str, kept: Mapping[str, str], prefix: str) -> str:
    """Return the full name of a preset."""
    return kept.get(f"{PIN_PREFIX}{_CONFIG}{name}", f"{prefix}{_CONFIG}{name}")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
