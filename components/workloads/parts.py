"""Where objects stand in the Pulumi program, and what all of them share: logical parts, components, metadata.

Called by the renderers of each kind in this package.
"""

from __future__ import annotations

from components import naming
from components.object_metadata import adoption, object_metadata
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.service import DesiredService

_ROUTING = frozenset({"scheduler", "tokenizer"})
"""Parts of a service that choose where a request goes."""


def component_of(part: str) -> str:
    """Name the component that the objects of a part are children of."""
    return naming.TYPE_ROUTING if part in _ROUTING else naming.TYPE_SERVICE


def manifest(
    desired: DesiredService,
    kind: Kind,
    name: str,
    *,
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
    **fields: object,
) -> Json:
    """Build an object around its metadata. In a namespace the custom resource owns it; elsewhere nothing can."""
    if kind.namespaced:
        metadata = object_metadata(desired, name, labels, annotations)
    else:
        metadata = {"name": name, "labels": labels}
        if notes := {**(annotations or {}), **adoption(desired)}:
            metadata["annotations"] = notes
    if not labels:
        del metadata["labels"]
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


def settled(value: object) -> object:
    """Copy what a custom resource says into an object, without nulls: Kubernetes keeps none, so they would differ.

    What is empty stays: `emptyDir: {}` means something.
    """
    if isinstance(value, dict):
        return {key: settled(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [settled(each) for each in value]
    return value
