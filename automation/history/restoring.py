"""Puts an earlier version of a service back: which one, and what the custom resource says then. Pure.

Called by `herdsman rollback`, which previews and writes the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from automation.history.revision import Revision, data_of, kept_annotations, reference_of
from components.rendered import fingerprint_of
from kubeapi.json_types import Json


class NothingToRestore(Exception):
    """There is no version to go back to; the message says why and what to do."""


def choose(revisions: Sequence[Revision], cr: Json, models: Sequence[Json], to: int | None) -> Revision:
    """Find the version to go back to: number `to`, or the newest that was applied and differs from what is asked now.

    `revisions` are the newest first. Raises NothingToRestore.
    """
    numbers = ", ".join(str(each.number) for each in revisions) or "none"
    if to is not None:
        found = next((each for each in revisions if each.number == to), None)
        if found is None:
            raise NothingToRestore(f"there is no revision {to}; kept are: {numbers}")
        return found
    now = fingerprint_of(data_of(cr, models))
    for each in revisions:
        if each.made_pods and each.digest != now:
            return each
    raise NothingToRestore(
        f"no earlier revision was applied that differs from what the spec says now (kept are: {numbers}); "
        "`herdsman history` shows them"
    )


def restored(cr: Json, revision: Revision) -> Json:
    """Give the custom resource as that version had it: spec and Herdsman's annotations; all else as it is."""
    metadata = dict(cr["metadata"])
    metadata.pop("managedFields", None)
    annotations = metadata.get("annotations") or {}
    left = {name: value for name, value in annotations.items() if name not in kept_annotations(annotations)}
    metadata["annotations"] = {**left, **revision.data["annotations"]}
    return {**{k: v for k, v in cr.items() if k != "status"}, "metadata": metadata, "spec": revision.data["spec"]}


def changed_models(revision: Revision, models: Sequence[Json]) -> dict[str, Json | None]:
    """Name the Models, and what else the service refers to, that were other than they are now, each with its spec of
    then; None for one that is gone.
    """
    now = {reference_of(model): model.get("spec") or {} for model in models}
    was = revision.data["models"]
    return {name: spec if name in now else None for name, spec in was.items() if now.get(name) != spec}
