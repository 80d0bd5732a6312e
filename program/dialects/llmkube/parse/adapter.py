"""LoRAAdapter → `program.desired.adapter.Adapter`, and which of several adapters of one name counts. Pure.

The loop and the gateway call this module, so that both take the same adapter for the one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from kubeapi.json_types import Json
from program.desired.adapter import Adapter, AdapterReason
from program.desired.errors import SpecInvalid
from program.dialects.crds.reading import check_shape, read, without_nulls
from program.dialects.llmkube.schema.lora_adapter import LoraAdapterSpec

DEFAULT_RUNTIME = "llamacpp"
"""The engine of an InferenceService that names none."""
ENGINES = frozenset({"vllm", "sglang", "llamacpp"})
"""The engines whose adapters Herdsman loads or finds."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def adapter_of(cr: Json, *, to_remove: bool = False) -> Adapter:
    """Parse a LoRAAdapter. Raises SpecInvalid with the path of the first field that is not valid.

    `to_remove`: replicas are to unload it, for which its path does not matter.
    """
    check_shape(cr)
    spec = read(LoraAdapterSpec, without_nulls(cr.get("spec")), field="spec")
    metadata = cr["metadata"]
    namespace = str(metadata.get("namespace") or "default")
    named = spec.inference_service_ref.namespace
    if named and named != namespace:
        raise SpecInvalid(
            field="spec.inferenceServiceRef.namespace",
            why=f"`{named}` is not the adapter's namespace `{namespace}`; create the LoRAAdapter in the namespace of "
            "the InferenceService",
            reason=AdapterReason.NAMESPACE_NOT_ALLOWED,
        )
    if not to_remove:
        _check_path(spec.path)
    return Adapter(
        namespace=namespace,
        resource=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        created=str(metadata.get("creationTimestamp", "")),
        service=spec.inference_service_ref.name,
        name=spec.name,
        path=spec.path,
    )


def claims_of(crs: Iterable[Json]) -> dict[tuple[str, str, str], Adapter]:
    """Return the adapter that counts for each namespace, service and name: the oldest valid one.

    An adapter that is being deleted counts until it is gone, because replicas may still have it.
    """
    found: dict[tuple[str, str, str], Adapter] = {}
    for cr in crs:
        try:
            adapter = adapter_of(cr)
        except SpecInvalid:
            continue
        first = found.get(adapter.claim)
        if first is None or _age(adapter) < _age(first):
            found[adapter.claim] = adapter
    return found


def runtime_of(service: Json) -> str:
    """Return the engine of an InferenceService's custom resource, without a check of its spec."""
    spec = service.get("spec")
    named = spec.get("runtime") if isinstance(spec, dict) else None
    return named if isinstance(named, str) and named else DEFAULT_RUNTIME


def keeps_prompts_of_adapters(service: Json) -> bool:
    """Return whether a llama-server would answer with cached prompts of other adapters.

    Its cache in the host's memory (`--cache-ram`, on by default) does not distinguish adapters.
    """
    spec = service.get("spec")
    words = spec.get("extraArgs") if isinstance(spec, dict) else None
    found = [str(word) for word in words] if isinstance(words, list) else []
    values = [after for flag, after in pairwise(found) if flag in ("--cache-ram", "-cram")]
    return not values or values[-1] != "0"


def _age(adapter: Adapter) -> tuple[str, str]:
    # The API server writes all times in one format, so that texts compare as times do.
    return adapter.created, adapter.resource


def _check_path(path: str) -> None:
    """Refuse what is neither an absolute path nor a repository. Raises SpecInvalid."""
    bad = not path.isprintable() or ".." in path.split("/")
    if bad or not (path.startswith("/") or _REPOSITORY.fullmatch(path)):
        why = "the path is neither an absolute path in the engine's container, such as /adapters/sql, nor a repository"
        raise SpecInvalid(field="spec.path", why=f"{why}, such as org/adapter")
