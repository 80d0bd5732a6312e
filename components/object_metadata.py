"""Metadata that all objects of a service share: labels, owner, annotations. Called by the renderers of each kind."""

from __future__ import annotations

from components import naming
from kubeapi.json_types import Json
from program.desired.keys import Owner
from program.desired.service import DesiredService
from program.runtimes import runtime_for


def selector_labels(desired: DesiredService) -> dict[str, str]:
    """Return the labels that select a service's pods; they can never change on a live Deployment."""
    return {naming.LABEL_APP: desired.key.name, naming.LABEL_SERVICE: desired.key.name}


def workload_labels(desired: DesiredService) -> dict[str, str]:
    """Return the labels of what runs the service: its Deployment, its pods, its process on a host."""
    labels = {
        **selector_labels(desired),
        naming.LABEL_MODEL: desired.model.name,
        naming.LABEL_RUNTIME: runtime_for(desired.engine).name,
    }
    if desired.key.dialect != naming.LLMKUBE:
        labels[naming.LABEL_DIALECT] = desired.key.dialect
    return labels


def object_metadata(
    desired: DesiredService, name: str, labels: dict[str, str], annotations: dict[str, str] | None = None
) -> Json:
    """Build the metadata of an object that lives and dies with the service."""
    metadata: Json = {"name": name, "namespace": desired.key.namespace, "labels": labels}
    notes = {**(annotations or {}), **adoption(desired)}
    if notes:
        metadata["annotations"] = notes
    if desired.owner is not None:
        metadata["ownerReferences"] = [owner_reference(desired.owner)]
    return metadata


def adoption(desired: DesiredService) -> dict[str, str]:
    """Return the annotation that lets the provider take over an object of somebody else's."""
    return {naming.ANNOTATION_ADOPT: "true"} if desired.adopt else {}


def owner_reference(owner: Owner) -> Json:
    """Name the custom resource that an object is deleted with."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
