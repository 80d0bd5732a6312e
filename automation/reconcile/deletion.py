"""Reads the propagation policy of a deletion from the finalizers of a custom resource. Pure; called by the controller.

The API server turns the policies `Orphan` and `Foreground` into finalizers. The garbage collector acts on them and
removes them. With `Background` the API server deletes the object at once. See
https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from __future__ import annotations

from enum import Enum

from kubeapi.json_types import Json

FINALIZER_ORPHAN = "orphan"
FINALIZER_FOREGROUND = "foregroundDeletion"


class Cascade(Enum):
    """The effect of a deletion on the objects of a service."""

    ORPHAN = "the garbage collector takes the owner references off them; they stay"
    FOREGROUND = "the garbage collector deletes them, and the service when they are gone"
    BACKGROUND = "the loop and the garbage collector delete them"


def cascade_of(cr: Json) -> Cascade:
    """Return what happens to the objects of a custom resource that has a deletionTimestamp."""
    finalizers = cr["metadata"].get("finalizers") or ()
    # The API server never sets both finalizers. If a client set both, `Orphan` wins, because it keeps the objects.
    if FINALIZER_ORPHAN in finalizers:
        return Cascade.ORPHAN
    return Cascade.FOREGROUND if FINALIZER_FOREGROUND in finalizers else Cascade.BACKGROUND


def has_controller(obj: Json) -> bool:
    """Return whether an object has a controller. An object that outlived its service has none."""
    return any(reference.get("controller") for reference in obj["metadata"].get("ownerReferences") or ())
