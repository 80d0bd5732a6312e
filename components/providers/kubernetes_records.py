"""Finds in an object's managedFields the record of what a stack has set, and passes it on. Pure.

Called by `kubernetes_ownership` and `kubernetes_calls`. The record is that of our own manager. A stack that another
plugin made, and an object of the controller that we replace, have theirs.
"""

from __future__ import annotations

from kubeapi.json_types import Json

_PLUGIN_MANAGER = "pulumi-kubernetes"


def applied_fields(live: Json, field_manager: str) -> Json | None:
    """Give the fieldsV1 tree of what a manager applied, or None when it never applied the object."""
    for entry in (live.get("metadata") or {}).get("managedFields") or []:
        ours = entry.get("manager") == field_manager and entry.get("operation") == "Apply"
        if ours and not entry.get("subresource"):
            fields = entry.get("fieldsV1")
            return fields if isinstance(fields, dict) else {}
    return None


def recorded_fields(live: Json, field_manager: str, former: str | None = None) -> Json | None:
    """Give the fieldsV1 tree of what a stack has set: our manager's, or that of `former` where we applied nothing yet.

    `former` is the manager that the stack's state names. None where neither has a record.
    """
    ours = applied_fields(live, field_manager)
    if ours is not None or former is None:
        return ours
    entries = _entries(live)
    found = [entries[at] for at in _of_former(entries, former)]
    return _united(found) if found else None


def inherited(live: Json, field_manager: str, former: str | None = None) -> list[Json] | None:
    """Give the managedFields in which we stand in the place of the controller or plugin that made an object of ours.

    None when we applied the object before, or nobody can be told to be its maker. That is `former`, the manager that a
    state names, or the one who wrote its owner references, in updates. As long as fields are its, an apply of ours
    takes none of them away; what people and other controllers wrote stays theirs. After the same rule as client-go's
    csaupgrade.
    """
    if applied_fields(live, field_manager) is not None:
        return None
    entries = _entries(live)
    found = _of_former(entries, former) if former is not None else []
    found = found or [at for at, entry in enumerate(entries) if _wrote_owners(entry)][:1]
    if not found:
        return None
    first = entries[found[0]]
    # Fields of another version of the API cannot stand in one record.
    found = [at for at in found if entries[at].get("apiVersion") == first.get("apiVersion")]
    fields = _united([entries[at] for at in found])
    taken = {**first, "manager": field_manager, "operation": "Apply", "fieldsV1": fields}
    return [taken if at == found[0] else entry for at, entry in enumerate(entries) if at not in found[1:]]


def _entries(live: Json) -> list[Json]:
    return (live.get("metadata") or {}).get("managedFields") or []


def _of_former(entries: list[Json], former: str) -> list[int]:
    """Find the records of a manager that a state names.

    Pulumi's own plugin makes objects under the first part of the name, and changes them under the whole of it.
    """
    names = {former, _PLUGIN_MANAGER} if former.startswith(f"{_PLUGIN_MANAGER}-") else {former}
    return [at for at, entry in enumerate(entries) if entry.get("manager") in names and not entry.get("subresource")]


def _wrote_owners(entry: Json) -> bool:
    written = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:ownerReferences")
    return entry.get("operation") == "Update" and not entry.get("subresource") and written is not None


def _united(entries: list[Json]) -> Json:
    """Unite the fieldsV1 trees of several records."""
    united: Json = {}
    for entry in entries:
        united = _merged(united, entry.get("fieldsV1") or {})
    return united


def _merged(one: Json, other: Json) -> Json:
    return {**one, **{key: _merged(one.get(key, {}), below) for key, below in other.items()}}
