"""Finds the fields that differ between a rendered object and the live one, and who changed them. Pure.

The managedFields of an object record the owner of each field. When another client changes the value of a field, the API
server removes the field from Herdsman's set (docs/adr/0005). The caches keep that set as a text, which all objects of
one shape share, so that a pass finds drift without a request (docs/adr/0016).
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
"""Bytes of the list of drift in the message of an Event or a condition."""


@dataclass(frozen=True)
class FieldDrift:
    """A rendered field that another client changed."""

    path: str
    """The path in the notation of Pulumi's property paths."""
    ours: str
    """The rendered value; empty where it is long or may be a secret."""
    live: str
    """The live value; `(none)` where the field was removed."""
    words: str
    """The change in the words of Events: `type ClusterIP -> NodePort`."""
    by: Writer | None = None


@dataclass(frozen=True)
class ObjectDrift:
    """An object that other clients changed or deleted."""

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
        """The time of the last change, RFC 3339; empty where no time is recorded."""
        return max((field.by.time for field in self.fields if field.by is not None), default="")


def describe_drift(drifts: Iterable[ObjectDrift]) -> str:
    """Return the list of drift, cut to the length of one message."""
    phrases: list[str] = []
    each = list(drifts)
    for drifted in each:
        if phrases and len("; ".join([*phrases, str(drifted)]).encode()) > _LONGEST_LIST:
            return "; ".join(phrases) + f"; and {len(each) - len(phrases)} more"
        phrases.append(str(drifted))
    return "; ".join(phrases)


def owned_text(live: Json) -> str:
    """Return the fields of an object that Herdsman owns, as a text; empty for an object that it never applied."""
    fields = applied_fields(live, naming.FIELD_MANAGER)
    if fields is None:
        return ""
    metadata = fields.get("f:metadata")
    if metadata and "f:ownerReferences" in metadata:
        # The key of an owner reference is the uid of one service, and the text is shared by all services.
        fields = {**fields, "f:metadata": {**metadata, "f:ownerReferences": {}}}
    return intern(json.dumps(fields, separators=(",", ":")))


@functools.lru_cache(maxsize=256)
def _fields(text: str) -> Json:
    fields: Json = json.loads(text)
    return fields


def may_have_drifted(obj: RenderedObject, owned: str) -> bool:
    """Return whether Herdsman may have lost a rendered field to another client, by the text of `owned_text`."""
    if not owned:
        return True
    return any(not _is_ignored(obj, path) for path in unowned(obj.manifest, _fields(owned)))


def fields_of(obj: RenderedObject, live: Json) -> tuple[FieldDrift, ...]:
    """Return the fields of a rendered object that other clients changed in the live one.

    Left out are ignored fields, fields that running pods keep, and replicas that were set through the scale
    subresource, which the loop adopts as soon as the cache has them (`observe.scaled_elsewhere`).
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
    """Return a value as text; empty where it is long or may be a secret."""
    if value is MISSING:
        return "(none)"
    # The value of an environment variable may be a secret, whatever its name.
    key = next((str(step) for step in reversed(path) if isinstance(step, str)), "")
    return "" if "env" in path else shown(value, key)


def _by(writer: Writer | None) -> str:
    return f" by `{writer.manager}`" if writer is not None else ""
