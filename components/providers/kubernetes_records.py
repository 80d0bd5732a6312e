"""Finds the record of the fields that a stack has set in managedFields, and transfers it to Herdsman. Pure.

Called by `kubernetes_ownership` and `kubernetes_calls`. Normally the record is that of Herdsman's field manager. In
objects of a stack that another plugin made, or of a controller that Herdsman replaces, it is that manager's.
"""

from __future__ import annotations

from kubeapi.json_types import Json

_PLUGIN_MANAGER = "pulumi-kubernetes"


def applied_fields(live: Json, field_manager: str) -> Json | None:
    """Return the fieldsV1 tree of the fields that a manager applied, or None if it never applied the object."""
    for entry in (live.get("metadata") or {}).get("managedFields") or []:
        ours = entry.get("manager") == field_manager and entry.get("operation") == "Apply"
        if ours and not entry.get("subresource"):
            fields = entry.get("fieldsV1")
            return fields if isinstance(fields, dict) else {}
    return None


def recorded_fields(live: Json, field_manager: str, former: str | None = None) -> Json | None:
    """Return the fieldsV1 tree of the fields that a stack has set; None if there is no record.

    The record is that of `field_manager`, or, if it applied nothing yet, that of `former`, the manager in the stack's
    state.
    """
    ours = applied_fields(live, field_manager)
    if ours is not None or former is None:
        return ours
    entries = _entries(live)
    found = [entries[at] for at in _of_former(entries, former)]
    return _united(found) if found else None


def inherited(live: Json, field_manager: str, former: str | None = None) -> list[Json] | None:
    """Return managedFields in which Herdsman has the record of the controller or plugin that made the object.

    None if Herdsman applied the object before, or if the maker cannot be determined. The maker is `former`, the manager
    in the state, or the manager that wrote the owner references by an update. While it owns fields, an apply of
    Herdsman removes none of them. Fields of people and other controllers keep their owners. The rule is that of
    client-go's csaupgrade.
    """
    if applied_fields(live, field_manager) is not None:
        return None
    entries = _entries(live)
    found = _of_former(entries, former) if former is not None else []
    found = found or [at for at, entry in enumerate(entries) if _wrote_owners(entry)][:1]
    if not found:
        return None
    first = entries[found[0]]
    # One record cannot contain fields of two versions of the API.
    found = [at for at in found if entries[at].get("apiVersion") == first.get("apiVersion")]
    fields = _united([entries[at] for at in found])
    taken = {**first, "manager": field_manager, "operation": "Apply", "fieldsV1": fields}
    return [taken if at == found[0] else entry for at, entry in enumerate(entries) if at not in found[1:]]


def _entries(live: Json) -> list[Json]:
    return (live.get("metadata") or {}).get("managedFields") or []


def _of_former(entries: list[Json], former: str) -> list[int]:
    """Return the positions of the records of a state's manager.

    Pulumi's own plugin makes objects under the first part of its name, and changes them under the whole name.
    """
    names = {former, _PLUGIN_MANAGER} if former.startswith(f"{_PLUGIN_MANAGER}-") else {former}
    return [at for at, entry in enumerate(entries) if entry.get("manager") in names and not entry.get("subresource")]


def _wrote_owners(entry: Json) -> bool:
    written = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:ownerReferences")
    return entry.get("operation") == "Update" and not entry.get("subresource") and written is not None


def _united(entries: list[Json]) -> Json:
    """Return the union of the fieldsV1 trees of several records."""
    united: Json = {}
    for entry in entries:
        united = _merged(united, entry.get("fieldsV1") or {})
    return united


def _merged(one: Json, other: Json) -> Json:
    return {**one, **{key: _merged(one.get(key, {}), below) for key, below in other.items()}}
