"""Where the API key is that the engine of a service demands: a Secret and the key of its data. Pure.

The gateway and the loop read the Secret to send requests to engines. Nothing is checked here.
"""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_API_KEY_SECRET
from program.dialects.annotations import API_KEY
from program.runtimes.llamacpp import LlamaCppRuntime
from program.runtimes.tgi import TgiRuntime
from program.runtimes.vllm import VllmRuntime

_VARIABLES = frozenset(each.api_key_env for each in (LlamaCppRuntime, TgiRuntime, VllmRuntime))
"""The variables from which engines read the key that they demand."""


def key_of(dialect: str, cr: Json) -> tuple[str, str] | None:
    """Return Secret and key of an engine's own key: of the annotation, else of a variable that engines read."""
    written = str((cr["metadata"].get("annotations") or {}).get(ANNOTATION_API_KEY_SECRET, ""))
    if written:
        name, slash, key = written.partition("/")
        return name, key if slash else API_KEY
    for variable in _environment(dialect, cr.get("spec")):
        reference = _get(_get(variable, "valueFrom"), "secretKeyRef")
        name, key = _get(reference, "name"), _get(reference, "key")
        if _get(variable, "name") in _VARIABLES and isinstance(name, str) and isinstance(key, str):
            return name, key
    return None


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
