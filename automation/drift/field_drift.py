"""What differs between a rendered object and the live one, field by field, and who did it. Pure.

Whose a field is stands in managedFields: the API server takes a field out of our set as soon as somebody else gives it
another value (docs/adr/0005). `trim` keeps our set of each object as a text, which all objects of one shape share; so
that a pass compares it with what is rendered without asking anybody (docs/adr/0016).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from sys import intern
from typing import Any

from automation.engine.differences import differences, shown
from components import naming
from components.providers.kubernetes_diff import MISSING, Path, covers, parse_path, path_text, value_at, with_value
from components.providers.kubernetes_ownership import Writer, drift, unowned, writer_of
from components.providers.kubernetes_records import applied_fields
from components.providers.kubernetes_templates import as_made
from components.rendered import RenderedObject
from kubeapi.json_types import Json

_LONGEST_LIST = 700
"""Bytes of an Event's or condition's message that tell what drifted."""


@dataclass(frozen=True)
class FieldDrift:
    """One field of ours that somebody else changed."""

    path: str
    """In the notation of Pulumi's property paths."""
    ours: str
    """What it is rendered as; empty where that is long or may be a secret."""
    live: str
    """What it is; `(none)` where it was taken away."""
    words: str
    """What was changed, as Events tell it: `type ClusterIP -> NodePort`."""
    by: Writer | None = None


@dataclass(frozen=True)
class ObjectDrift:
    """An object that is not as it was made."""

    kind: str
    name: str
    fields: tuple[FieldDrift, ...] = ()
    deleted: bool = False

    def __str__(self) -> str:
        if self.deleted:
            return f"{self.kind} {self.name} was deleted"
        changed = [f"{field.words}{_by(field.by)}" for field in self.fields]
        return f"{self.kind} {self.name}: " + ", ".join(changed)

    @property
    def since(self) -> str:
        """When the last of the changes was made, RFC 3339; empty where nobody recorded it."""
        return max((field.by.time for field in self.fields if field.by is not None), default="")


def describe_drift(drifts: Iterable[ObjectDrift]) -> str:
    """Say what drifted, in the length of one message."""
    phrases: list[str] = []
    each = list(drifts)
    for drifted in each:
        if phrases and len("; ".join([*phrases, str(drifted)]).encode()) > _LONGEST_LIST:
            return "; ".join(phrases) + f"; and {len(each) - len(phrases)} more"
        phrases.append(str(drifted))
    return "; ".join(phrases)


def owned_text(live: Json) -> str:
    """Write down which fields of an object are ours; equal for all objects of one shape. Empty: we never applied it."""
    fields = applied_fields(live, naming.FIELD_MANAGER)
    if fields is None:
        return ""
    metadata = fields.get("f:metadata")
    if metadata and "f:ownerReferences" in metadata:
        # Its key is the uid of one service.
        fields = {**fields, "f:metadata": {**metadata, "f:ownerReferences": {}}}
    return intern(json.dumps(fields, separators=(",", ":")))


@functools.lru_cache(maxsize=256)
def _fields(text: str) -> Json:
    fields: Json = json.loads(text)
    return fields


def may_have_drifted(obj: RenderedObject, owned: str) -> bool:
    """Tell whether an object has a field of ours that is not ours any more, by what `owned_text` wrote."""
    if not owned:
        return True
    return any(not _is_ignored(obj, path) for path in unowned(obj.manifest, _fields(owned)))


def fields_of(obj: RenderedObject, live: Json) -> tuple[FieldDrift, ...]:
    """Compare a rendered object with the live one. What may be changed by others is left out, and what pods keep.

    So are replicas that were set through the scale subresource: who scales is obeyed (`observe.scaled_elsewhere`), as
    soon as the cache shows it.
    """
    found = []
    wanted = as_made(obj.manifest, live, field_manager=naming.FIELD_MANAGER)
    for each in drift(wanted, live, naming.FIELD_MANAGER):
        by = writer_of(live, wanted, each.path, naming.FIELD_MANAGER)
        scaled = each.path == ("spec", "replicas") and by is not None and by.subresource == "scale"
        if not scaled and not _is_ignored(obj, each.path):
            found.append(_field(wanted, each.path, each.live, by))
    return tuple(found)


def _is_ignored(obj: RenderedObject, path: Path) -> bool:
    return bool(obj.ignore) and any(covers(parse_path(text), path) for text in obj.ignore)


def _field(manifest: Json, path: Path, live: Any, by: Writer | None) -> FieldDrift:
    name = path_text(path)
    words = ", ".join(differences(manifest, with_value(manifest, path, live)))
    return FieldDrift(
        path=name,
        ours=_value(path, value_at(manifest, path)),
        live=_value(path, live),
        words=words or f"{name} {'removed' if live is MISSING else 'changed'}",
        by=by,
    )


def _value(path: Path, value: Any) -> str:
    """Write a value, if it is short and no secret."""
    if value is MISSING:
        return "(none)"
    # What stands in an environment may be a secret whatever its name.
    key = next((str(step) for step in reversed(path) if isinstance(step, str)), "")
    return "" if "env" in path else shown(value, key)


def _by(writer: Writer | None) -> str:
    return f" by `{writer.manager}`" if writer is not None else ""
