"""Finds the service that an object was made for, and the labels that select the objects of a service. Pure.

The controller of an object precedes its labels: objects of other owners may have the labels of LLMKube and KServe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from components import naming
from kubeapi.json_types import Json
from program.desired.keys import LABEL_DIALECT, ServiceKey
from program.dialects.registry import DIALECTS, LLMKUBE, REFERRERS, dialect_of

REFERRER_LABELS = {
    "modelrouter": "herdsman.dev/modelrouter",
    "modelpool": "herdsman.dev/modelpool",
    "loraadapter": "herdsman.dev/loraadapter",
}
"""The label of the revisions of resources, by the words of `REFERRERS`."""
_LONGEST_LABEL = 63


def service_of(obj: Json) -> ServiceKey | None:
    """Return the service that an object was made for; None where it was made for none.

    An object without owner references (as caches keep them) is recognized by its labels.
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
    """Return the labels that select the objects of a service, or the revisions of a resource of `REFERRERS`."""
    if key.dialect in REFERRERS:
        return {REFERRER_LABELS[key.dialect]: label_value(key.name)}
    mark = DIALECTS[key.dialect].mark
    label, given, value = mark.selector.partition("=")
    return {**({label: value} if given else {}), mark.label: key.name}


def selector_of(dialect: str, names: Iterable[str] = ()) -> str:
    """Return the label selector of the objects of a dialect's services: of those named, or of all.

    For a word of `REFERRERS` it selects the revisions of its resources.
    """
    if dialect in REFERRERS:
        values = sorted(map(label_value, names))
        return f"{REFERRER_LABELS[dialect]} in ({','.join(values)})" if values else REFERRER_LABELS[dialect]
    mark = DIALECTS[dialect].mark
    wanted = sorted(set(names))
    if not wanted:
        return mark.selector
    chosen = f"{mark.label}={wanted[0]}" if len(wanted) == 1 else f"{mark.label} in ({','.join(wanted)})"
    return chosen if mark.selector == mark.label else f"{mark.selector},{chosen}"


def label_value(name: str) -> str:
    """Return a name as the value of a label, which has at most 63 characters; a longer one ends in its digest."""
    if len(name) <= _LONGEST_LABEL:
        return name
    return f"{name[: _LONGEST_LABEL - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def process_selector_of(dialect: str, names: Iterable[str] = ()) -> str:
    """Return the same for HostProcesses. They have one label in all dialects, and another one with the dialect."""
    if dialect == LLMKUBE:
        return selector_of(dialect, names)
    return f"{LABEL_DIALECT}={dialect},{selector_of(LLMKUBE, names)}"
