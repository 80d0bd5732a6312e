"""Builds the document of a CustomResourceDefinition from schemas, columns and names. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kubeapi.json_types import Json


@dataclass(frozen=True)
class Column:
    """One column of `kubectl get`. A `wide` column shows only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def document(self) -> Json:
        return {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            **({"priority": 1} if self.wide else {}),
        }


AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True)
class Version:
    """One version of a kind: its schema and its columns."""

    spec: Json
    status: Json
    columns: tuple[Column, ...]
    name: str = "v1alpha1"
    storage: bool = True
    """Objects are stored in this version; True for exactly one version."""
    scale: bool = False
    """It has the scale subresource."""
    spec_required: bool = True
    metadata: Json | None = None
    """Rules for the object's metadata (its name), in addition to those of Kubernetes."""
    rules: tuple[Json, ...] = ()
    """CEL rules of the whole object. Only these can read its name."""


def crd_document(
    *,
    group: str,
    kind: str,
    plural: str,
    short_names: tuple[str, ...],
    description: str,
    versions: tuple[Version, ...],
    namespaced: bool = True,
    conversion: Json | None = None,
) -> Json:
    """Return the document. `conversion` is the CRD's conversion, if it has several versions that differ."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "labels": {"app.kubernetes.io/part-of": "herdsman"}},
        "spec": {
            "group": group,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                **({"shortNames": list(short_names)} if short_names else {}),
            },
            "scope": "Namespaced" if namespaced else "Cluster",
            **({"conversion": conversion} if conversion else {}),
            "versions": [_version(version, description) for version in versions],
        },
    }


def _version(version: Version, description: str) -> Json:
    subresources: Json = {"status": {}}
    if version.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    properties = {
        "apiVersion": {"type": "string", "description": "Version of the schema that the object is written in."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": version.metadata or {"type": "object"},
        "spec": version.spec,
        "status": version.status,
    }
    return {
        "name": version.name,
        "served": True,
        "storage": version.storage,
        "schema": {
            "openAPIV3Schema": {
                "description": description,
                "type": "object",
                **({"required": ["spec"]} if version.spec_required else {}),
                "properties": properties,
                **({"x-kubernetes-validations": list(version.rules)} if version.rules else {}),
            }
        },
        "subresources": subresources,
        "additionalPrinterColumns": [column.document() for column in version.columns],
    }
