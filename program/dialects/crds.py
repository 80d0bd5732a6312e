"""The CustomResourceDefinitions that Herdsman serves, generated from the dialects' schemas.

`herdsman crds` prints them. docs/crds keeps a copy, one file each, that a test compares and `make crds` writes
(`python -m program.dialects.crds docs/crds`).
"""

from __future__ import annotations

import pathlib
import sys
from dataclasses import dataclass

import yaml
from pydantic import BaseModel

from program.dialects import host_process, host_schema
from program.dialects.crd_schema import Json, structural_schema
from program.dialects.llmkube import gpu_quota_schema, model_schema, service_schema


@dataclass(frozen=True)
class Column:
    """One column of `kubectl get`; `wide` shows only with `-o wide`."""

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


_AGE = Column("Age", ".metadata.creationTimestamp", "date")


def crd_documents() -> list[Json]:
    """Give all CRDs as documents ready to apply: Model, InferenceService, GPUQuota, HostProcess, Host."""
    return [
        _crd(
            group="inference.llmkube.dev",
            kind="Model",
            plural="models",
            short_name="mdl",
            description="A model's weights and the hardware that they want.",
            spec=structural_schema(model_schema.ModelSpec),
            status=structural_schema(model_schema.ModelStatus),
            columns=(
                Column("Phase", ".status.phase"),
                Column("Size", ".status.size"),
                Column("Accelerator", ".spec.hardware.accelerator"),
                Column("Arch", ".status.gguf.architecture", wide=True),
                _AGE,
            ),
        ),
        _crd(
            group="inference.llmkube.dev",
            kind="InferenceService",
            plural="inferenceservices",
            short_name="isvc",
            description="A Model served over HTTP by an inference engine.",
            spec=structural_schema(service_schema.ServiceSpec),
            status=structural_schema(service_schema.ServiceStatus),
            scale=True,
            columns=(
                Column("Phase", ".status.phase"),
                Column("Model", ".spec.modelRef"),
                Column("Replicas", ".status.readyReplicas", "integer"),
                Column("Reason", ".status.schedulingStatus", wide=True),
                Column("Queue", ".status.queuePosition", "integer", wide=True),
                Column("Priority", ".spec.priority", wide=True),
                Column("Endpoint", ".status.endpoint"),
                _AGE,
            ),
        ),
        _crd(
            group="inference.llmkube.dev",
            kind="GPUQuota",
            plural="gpuquotas",
            short_name="gq",
            description="GPUs and memory that the services of some namespaces may take together.",
            spec=structural_schema(gpu_quota_schema.GpuQuotaSpec),
            status=structural_schema(gpu_quota_schema.GpuQuotaStatus),
            columns=(
                Column("GPU Count", ".spec.gpuCount", "integer"),
                Column("Used GPUs", ".status.usedGPUCount", "integer"),
                Column("Used Memory", ".status.usedMemory", wide=True),
                Column("Denials", ".status.admissionDenials", "integer", wide=True),
                _AGE,
            ),
        ),
        _crd(
            group="herdsman.dev",
            kind="HostProcess",
            plural="hostprocesses",
            short_name="hp",
            description="One process that an agent runs on its host; made by Herdsman for a host-placed service.",
            spec=_described(host_process.SPEC),
            status=_described(host_process.STATUS),
            columns=(
                Column("Host", ".spec.host"),
                Column("Phase", ".status.phase"),
                Column("Port", ".status.port", "integer"),
                Column("Restarts", ".status.restarts", "integer"),
                _AGE,
            ),
        ),
        _crd(
            group="herdsman.dev",
            kind="Host",
            plural="hosts",
            short_name="hst",
            description="A machine that runs model servers as processes.",
            spec=structural_schema(host_schema.HostSpec),
            status=structural_schema(host_schema.HostStatus),
            namespaced=False,
            columns=(
                Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
                Column("Transport", ".spec.transport"),
                Column("Address", ".status.address"),
                Column("Pressure", ".status.memoryPressure"),
                Column("Unschedulable", ".spec.unschedulable", "boolean", wide=True),
                Column("OS", ".status.os", wide=True),
                Column("Version", ".status.agentVersion", wide=True),
                _AGE,
            ),
        ),
    ]


def _described(model: type[BaseModel]) -> Json:
    """Generate the schema of a wire model, whose integers may be sizes in bytes."""
    return structural_schema(model, integers="int64")


def _crd(
    *,
    group: str,
    kind: str,
    plural: str,
    short_name: str,
    description: str,
    spec: Json,
    status: Json,
    columns: tuple[Column, ...],
    scale: bool = False,
    namespaced: bool = True,
) -> Json:
    subresources: Json = {"status": {}}
    if scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    properties = {
        "apiVersion": {"type": "string", "description": "Version of the schema that the object is written in."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"type": "object"},
        "spec": spec,
        "status": status,
    }
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
                "shortNames": [short_name],
            },
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "description": description,
                            "type": "object",
                            "required": ["spec"],
                            "properties": properties,
                        }
                    },
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.document() for column in columns],
                }
            ],
        },
    }


def as_yaml(document: Json) -> str:
    """Write one document as YAML in the order of its keys."""
    return yaml.safe_dump(document, sort_keys=False, width=120)


def crd_files() -> dict[str, str]:
    """Give the content of each file of docs/crds by file name, `<plural>.<group>.yaml`."""
    return {f"{document['metadata']['name']}.yaml": as_yaml(document) for document in crd_documents()}


def main(directory: str) -> None:
    """Write the files, and delete those of CRDs that are no more."""
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    files = crd_files()
    for stale in {path.name for path in folder.glob("*.yaml")} - set(files):
        (folder / stale).unlink()
    for name, text in files.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
