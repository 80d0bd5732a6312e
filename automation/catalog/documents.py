"""Makes the Model and the InferenceService that serve a variant of the catalog. Pure."""

from __future__ import annotations

from automation.catalog.entries import CatalogError, Entry
from automation.catalog.fitting import Choice
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_HOST, is_dns_label

API_VERSION = "inference.llmkube.dev/v1alpha1"
_MIB = 1 << 20


def documents_of(
    entry: Entry,
    choice: Choice,
    name: str = "",
    namespace: str = "",
    *,
    replicas: int | None = None,
    pinned: bool = False,
) -> list[Json]:
    """Return a Model and an InferenceService for a choice, both with the name `name` (default: from the id).

    The choice's room decides the hardware: a Mac gets accelerator metal, another host its annotation, a node with GPUs
    one GPU, any other node a memory request of the estimated size. `pinned`: a Mac's service stays on that Mac, too.
    Raises CatalogError for a name that Kubernetes refuses.
    """
    label = name or entry.default_name
    if not is_dns_label(label):
        raise CatalogError(
            f"`{label[:100]}` cannot be the name of a service",
            hint="use at most 63 lower-case letters, digits and dashes, with a letter or digit at both ends",
        )
    metadata: Json = {"name": label}
    if namespace:
        metadata["namespace"] = namespace
    placement = _placement(choice, pinned=pinned)
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "Model",
            "metadata": metadata,
            "spec": _model_spec(choice),
        },
        {
            "apiVersion": API_VERSION,
            "kind": "InferenceService",
            "metadata": {**metadata, **({"annotations": placement} if placement else {})},
            "spec": _service_spec(entry, choice, label, replicas),
        },
    ]


def _model_spec(choice: Choice) -> Json:
    variant, room = choice.variant, choice.room
    projector = variant.projector if choice.vision else None
    is_set = len(variant.files) > 1 or projector is not None
    spec: Json = {
        "source": variant.repository_address if is_set else variant.source,
        "quantization": variant.quant,
    }
    if variant.files[0].sha256:
        # Of a set, the Model's checksum is that of the first file.
        spec["sha256"] = variant.files[0].sha256
    if is_set:
        spec["files"] = [file.path for file in variant.files]
    if projector is not None:
        spec["mmproj"] = projector.path
    if room is None or not room.accelerator:
        return spec
    spec["hardware"] = {"accelerator": room.accelerator}
    if room.kind == "node":
        spec["hardware"]["gpu"] = {"enabled": True, "count": 1}
    return spec


def _service_spec(entry: Entry, choice: Choice, name: str, replicas: int | None) -> Json:
    room = choice.room
    spec: Json = {"modelRef": name, "contextSize": choice.context}
    if replicas is not None:
        spec["replicas"] = replicas
    if choice.cache_type:
        spec |= {"cacheTypeK": choice.cache_type, "cacheTypeV": choice.cache_type}
    if "embedding" in entry.capabilities:
        spec["mode"] = "embedding"
    elif "rerank" in entry.capabilities:
        spec["mode"] = "rerank"
    if room is not None and room.kind == "node" and not room.accelerator:
        spec["resources"] = {"memory": f"{-(-choice.memory.total_bytes // _MIB)}Mi"}
    return spec


def _placement(choice: Choice, *, pinned: bool) -> dict[str, str]:
    room = choice.room
    if room is None or room.kind != "host" or (room.accelerator == "metal" and not pinned):
        return {}
    return {ANNOTATION_HOST: room.name}
