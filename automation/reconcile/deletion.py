"""Tells by which propagation policy a custom resource is being deleted. Pure; called by the controller.

The API server turns the policies `Orphan` and `Foreground` into finalizers, which the garbage collector acts on and
takes off. With `Background` it deletes the object at once. See
https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from __future__ import annotations

from enum import Enum

from kubeapi.json_types import Json

FINALIZER_ORPHAN = "orphan"
FINALIZER_FOREGROUND = "foregroundDeletion"


class Cascade(Enum):
    """The fate of the objects that were made for a service which is being deleted."""

    ORPHAN = "the garbage collector takes the owner references off them; they stay"
    FOREGROUND = "the garbage collector deletes them, and the service when they are gone"
    BACKGROUND = "the loop and the garbage collector delete them"


def cascade_of(cr: Json) -> Cascade:
    """Tell what happens to the objects of a custom resource that has a deletionTimestamp."""
    finalizers = cr["metadata"].get("finalizers") or ()
    # The API server never sets both; where a client did, what keeps objects goes first.
    if FINALIZER_ORPHAN in finalizers:
        return Cascade.ORPHAN
    return Cascade.FOREGROUND if FINALIZER_FOREGROUND in finalizers else Cascade.BACKGROUND


def has_controller(obj: Json) -> bool:
    """Tell whether an object has a controller. One that was kept when its service was deleted has none."""
    return any(reference.get("controller") for reference in obj["metadata"].get("ownerReferences") or ())
