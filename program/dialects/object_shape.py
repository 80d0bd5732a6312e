"""Whether an object has the identity and the metadata that every object of Kubernetes has. Pure.

The API server refuses other shapes, so that what comes from a cluster has the right ones; a file may have any. The
parsers of the dialects and the reader of manifests call this before they read a name, a label or an annotation.
"""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid

_TEXTS = ("name", "generateName", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_MAPS = ("labels", "annotations")
_LARGEST_GENERATION = 2**63 - 1
_MOST_SHOWN = 64


def check_shape(cr: Json) -> None:
    """Check a custom resource: its metadata, and that its spec and status are objects. Raises SpecInvalid."""
    check_metadata(cr)
    for field in ("spec", "status"):
        if not isinstance(cr.get(field), dict | None):
            raise SpecInvalid(field=field, why="is not an object")


def check_referred(obj: Json) -> None:
    """Check what dialects read of the ConfigMaps and ServiceAccounts that services refer to. Raises SpecInvalid."""
    match obj.get("kind"):
        case "ConfigMap":
            _check_texts(obj.get("data"), "data")
        case "ServiceAccount":
            for field in ("secrets", "imagePullSecrets"):
                _check_objects(obj.get(field), field)


def _check_objects(value: Any, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, list):
        raise SpecInvalid(field=field, why="is not a list")
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise SpecInvalid(field=f"{field}[{index}]", why="is not an object")


def check_metadata(cr: Json) -> None:
    """Raise SpecInvalid with the path of the first part of an object's identity or metadata that is of a wrong type.

    Nulls count as left out, as they do for the API server.
    """
    metadata = cr.get("metadata")
    if metadata is None:
        raise SpecInvalid(field="metadata.name", why="is missing")
    if not isinstance(metadata, dict):
        raise SpecInvalid(field="metadata", why="is not an object")
    for name in _TEXTS:
        if not isinstance(metadata.get(name), str | None):
            raise SpecInvalid(field=f"metadata.{name}", why="is not a string; put it in quotes")
    if not metadata.get("name"):
        raise SpecInvalid(field="metadata.name", why="is missing")
    for field in ("apiVersion", "kind"):
        if not isinstance(cr.get(field), str | None):
            raise SpecInvalid(field=field, why="is not a string; put it in quotes")
    for name in _MAPS:
        _check_texts(metadata.get(name), f"metadata.{name}")
    _check_finalizers(metadata.get("finalizers"))
    _check_owners(metadata.get("ownerReferences"))
    generation = metadata.get("generation")
    if generation is not None and not _is_generation(generation):
        raise SpecInvalid(field="metadata.generation", why="is not a whole number")


def _check_texts(value: Any, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise SpecInvalid(field=field, why="is not an object")
    for name, entry in value.items():
        if not isinstance(name, str):
            raise SpecInvalid(field=field, why=f"`{str(name)[:_MOST_SHOWN]}` is not a string; put it in quotes")
        if not isinstance(entry, str):
            raise SpecInvalid(field=f"{field}[{name[:_MOST_SHOWN]}]", why="is not a string; put it in quotes")


def _check_finalizers(value: Any) -> None:
    if value is not None and (not isinstance(value, list) or not all(isinstance(each, str) for each in value)):
        raise SpecInvalid(field="metadata.finalizers", why="is not a list of texts")


def _check_owners(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, list):
        raise SpecInvalid(field="metadata.ownerReferences", why="is not a list")
    for index, owner in enumerate(value):
        field = f"metadata.ownerReferences[{index}]"
        if not isinstance(owner, dict):
            raise SpecInvalid(field=field, why="is not an object")
        for name in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(owner.get(name), str | None):
                raise SpecInvalid(field=f"{field}.{name}", why="is not a string; put it in quotes")


def _is_generation(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_GENERATION
