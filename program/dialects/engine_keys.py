"""Where the API key is that the engine of a service demands: a Secret and the key of its data. Pure.

The gateway and the loop read the Secret to send requests to engines. Nothing is checked here.
"""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.desired.keys import (
    ANNOTATION_API_KEY_SECRET,
    ANNOTATION_ENGINE_KEY,
    engine_key_generation,
    engine_key_secret,
)
from program.dialects.annotations import API_KEY
from program.runtimes.llamacpp import LlamaCppRuntime
from program.runtimes.tgi import TgiRuntime
from program.runtimes.vllm import VllmRuntime

_VARIABLES = frozenset(each.api_key_env for each in (LlamaCppRuntime, TgiRuntime, VllmRuntime))
"""The variables from which engines read the key that they demand."""


def key_of(dialect: str, cr: Json) -> tuple[str, str] | None:
    """Return Secret and key of an engine's own key: of an annotation, else of a variable that engines read."""
    annotations = cr["metadata"].get("annotations") or {}
    written = str(annotations.get(ANNOTATION_API_KEY_SECRET, ""))
    if written:
        name, slash, key = written.partition("/")
        return name, key if slash else API_KEY
    if dialect == "llmkube" and annotations.get(ANNOTATION_ENGINE_KEY) == "true":
        return engine_key_secret(cr["metadata"]["name"], engine_key_generation(annotations) or 1), API_KEY
    for variable in _environment(dialect, cr.get("spec")):
        reference = _get(_get(variable, "valueFrom"), "secretKeyRef")
        name, key = _get(reference, "name"), _get(reference, "key")
        if _get(variable, "name") in _VARIABLES and isinstance(name, str) and isinstance(key, str):
            return name, key
    return None


def keys_of(dialect: str, cr: Json) -> tuple[tuple[str, str], ...]:
    """Return what `key_of` returns, and where the key before is that replicas may still have during a roll-out."""
    key, metadata = key_of(dialect, cr), cr["metadata"]
    generation = engine_key_generation(metadata.get("annotations") or {}) or 1
    if key is None:
        return ()
    if generation == 1 or key != (engine_key_secret(metadata["name"], generation), API_KEY):
        return (key,)
    return key, (engine_key_secret(metadata["name"], generation - 1), API_KEY)


def _environment(dialect: str, spec: Any) -> list[Any]:
    match dialect:
        case "llmkube":
            return _list(_get(spec, "env"))
        case "kserve":
            containers = _list(_get(_get(spec, "template"), "containers"))
            return [each for container in containers for each in _list(_get(container, "env"))]
        case "llmaz":
            return _list(_get(_get(spec, "backendRuntimeConfig"), "envs"))
    return []


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
