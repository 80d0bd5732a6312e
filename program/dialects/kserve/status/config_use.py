"""Which configs an LLMInferenceService uses, and whether KServe's controller holds a config. Pure.

`automation.status.kserve_configs` calls this for every changed service, so this module imports no schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kubeapi.json_types import Json

PEER_FINALIZER = "serving.kserve.io/llmisvcconfig-finalizer"
"""With it, KServe's controller prevents the deletion of a config that is in use. Herdsman never sets it."""


def referred_to(service: Json) -> tuple[str, ...]:
    """Return the configs that a service uses: those of its spec, and the presets in its status."""
    spec, status = (service.get(part) or {} for part in ("spec", "status"))
    presets = (each for each in _objects(status.get("appliedConfigs")) if each.get("source") == "Preset")
    names = (each.get("name") for each in (*_objects(spec.get("baseRefs")), *presets))
    return tuple(sorted({name for name in names if isinstance(name, str) and name}))


def is_held_by_peer(cr: Json) -> bool:
    """Return whether a config has the finalizer of KServe's controller."""
    return PEER_FINALIZER in (cr["metadata"].get("finalizers") or ())


def _objects(value: Any) -> Iterable[Json]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()
