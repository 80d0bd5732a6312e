"""Tells for which service an object was made, of whatever dialect, and how all that was made for one is found. Pure.

Labels tell it in lists and selectors. Where an object has a controller, its kind goes before them, since labels of the
peers may be on objects of others as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from components import naming
from kubeapi.json_types import Json
from program.desired.keys import LABEL_DIALECT, ServiceKey
from program.dialects.registry import DIALECTS, dialect_of


def service_of(obj: Json) -> ServiceKey | None:
    """Name the service that an object was made for; None where it was made for none.

    An object without owner references (as caches keep them) is told by its labels alone.
    """
    metadata = obj["metadata"]
    namespace = str(metadata.get("namespace") or "")
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller") and (dialect := dialect_of(reference)):
            return ServiceKey(dialect, namespace, str(reference["name"]))
    labels = metadata.get("labels") or {}
    if LABEL_DIALECT in labels and naming.LABEL_SERVICE in labels:
        return ServiceKey(str(labels[LABEL_DIALECT]), namespace, str(labels[naming.LABEL_SERVICE]))
    for dialect, each in DIALECTS.items():
        if name := each.mark.service_of(labels):
            return ServiceKey(dialect, namespace, str(name))
    return None


def labels_of(key: ServiceKey) -> dict[str, str]:
    """Give the labels by which an object of ours is found as one of this service."""
    mark = DIALECTS[key.dialect].mark
    label, given, value = mark.selector.partition("=")
    return {**({label: value} if given else {}), mark.label: key.name}


def selector_of(dialect: str, names: Iterable[str] = ()) -> str:
    """Write the label selector of all that was made for services of a dialect: for those named, or for all of them."""
    mark = DIALECTS[dialect].mark
    wanted = sorted(set(names))
    if not wanted:
        return mark.selector
    chosen = f"{mark.label}={wanted[0]}" if len(wanted) == 1 else f"{mark.label} in ({','.join(wanted)})"
    return chosen if mark.selector == mark.label else f"{mark.selector},{chosen}"


def process_selector_of(dialect: str, names: Iterable[str] = ()) -> str:
    """Write the same for the HostProcesses of a dialect, which all carry one label, and the dialect beside it."""
    if dialect == "llmkube":
        return selector_of(dialect, names)
    return f"{LABEL_DIALECT}={dialect},{selector_of('llmkube', names)}"
