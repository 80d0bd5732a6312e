"""The CustomResourceDefinitions of Herdsman, generated from the dialects' schemas.

`herdsman crds` prints them. `make crds` (`python -m program.dialects.crds.definitions docs/crds`) writes them to
docs/crds, one file each, and a test compares the files. The CRDs of an optional dialect are in a separate folder;
`documents()` of `program.dialects.<dialect>.schema.crds` returns them.
"""

from __future__ import annotations

import copy
import functools
import importlib
import pathlib
import sys

import yaml
from pydantic import BaseModel

from agent.contract import HostProcessStatus, ProcessPlan
from kubeapi.json_types import Json
from program.dialects.crds.document import AGE, Column, Version, crd_document
from program.dialects.crds.schema import structural_schema
from program.dialects.hosts.schema import HostSpec, HostStatus
from program.dialects.llmkube.schema import gpu_quota, lora_adapter, model, model_pool, model_router, service

OPTIONAL_DIALECTS = ("kserve", "llmaz")
"""Dialects whose CRDs are installed only on request, because the upstream project's CRDs may already exist."""


def crd_documents(dialect: str = "") -> list[Json]:
    """Return CRDs as documents ready to apply.

    Without a dialect, return the CRDs of every cluster: Model, InferenceService, GPUQuota, ModelRouter, ModelPool,
    LoRAAdapter, HostProcess and Host. Otherwise return those of one of `OPTIONAL_DIALECTS`.
    """
    # Building the schemas takes 0.5 s. The caller may change the result, so it gets a copy.
    return copy.deepcopy(_documents(dialect))


@functools.cache
def _documents(dialect: str) -> list[Json]:
    if not dialect:
        return _always()
    name = f"program.dialects.{dialect}.schema.crds"
    found: list[Json] = importlib.import_module(name).documents()
    return found


def _always() -> list[Json]:
    return [
        _crd(
            group="inference.llmkube.dev",
            kind="Model",
            plural="models",
            short_name="mdl",
            description="A model: the source of its weights, and the hardware for it.",
            spec=structural_schema(model.ModelSpec),
            status=structural_schema(model.ModelStatus),
            columns=(
                Column("Phase", ".status.phase"),
                Column("Size", ".status.size"),
                Column("Accelerator", ".spec.hardware.accelerator"),
                Column("Arch", ".status.gguf.architecture", wide=True),
                AGE,
            ),
        ),
        _crd(
            group="inference.llmkube.dev",
            kind="InferenceService",
            plural="inferenceservices",
            short_name="isvc",
            description="A service in which an inference engine serves a Model over HTTP.",
            spec=structural_schema(service.ServiceSpec),
            status=structural_schema(service.ServiceStatus),
            scale=True,
            columns=(
                Column("Phase", ".status.phase"),
                Column("Model", ".spec.modelRef"),
                Column("Replicas", ".status.readyReplicas", "integer"),
                Column("Reason", ".status.schedulingStatus", wide=True),
                Column("Queue", ".status.queuePosition", "integer", wide=True),
                Column("Priority", ".spec.priority", wide=True),
                Column("Endpoint", ".status.endpoint"),
                AGE,
            ),
        ),
        _crd(
            group="inference.llmkube.dev",
            kind="GPUQuota",
            plural="gpuquotas",
            short_name="gq",
            description="A limit of GPUs and memory for the services of some namespaces together.",
            spec=structural_schema(gpu_quota.GpuQuotaSpec),
            status=structural_schema(gpu_quota.GpuQuotaStatus),
            columns=(
                Column("GPU Count", ".spec.gpuCount", "integer"),
                Column("Used GPUs", ".status.usedGPUCount", "integer"),
                Column("Used Memory", ".status.usedMemory", wide=True),
                Column("Denials", ".status.admissionDenials", "integer", wide=True),
                AGE,
            ),
        ),
        _crd(
            group="inference.llmkube.dev",
            kind="ModelRouter",
            plural="modelrouters",
            short_name="mr",
            description="Rules that choose the model that answers a request at the gateway.",
            spec=structural_schema(model_router.ModelRouterSpec),
            status=structural_schema(model_router.ModelRouterStatus),
            columns=(
                Column("Phase", ".status.phase"),
                Column("Rules", ".status.activeRules", "integer"),
                Column("Endpoint", ".status.endpoint"),
                AGE,
            ),
        ),
        _crd(
            group="inference.llmkube.dev",
            kind="ModelPool",
            plural="modelpools",
            short_name="mpool",
            description="Services that use the same GPUs by turns.",
            spec=structural_schema(model_pool.ModelPoolSpec),
            status=structural_schema(model_pool.ModelPoolStatus),
            columns=(
                Column("Phase", ".status.phase"),
                Column("Resident", ".status.residentMember"),
                Column("Pending", ".status.pendingMember"),
                AGE,
            ),
        ),
        _crd(
            group="inference.llmkube.dev",
            kind="LoRAAdapter",
            plural="loraadapters",
            short_name="lora",
            description="A LoRA adapter that all replicas of an InferenceService load.",
            spec=structural_schema(lora_adapter.LoraAdapterSpec),
            status=structural_schema(lora_adapter.LoraAdapterStatus),
            columns=(
                Column("Service", ".spec.inferenceServiceRef.name"),
                Column("Adapter", ".spec.name"),
                Column("Phase", ".status.phase"),
                Column("Loaded", ".status.loadedReplicas", "integer"),
                Column("Replicas", ".status.replicas", "integer"),
                Column("Path", ".spec.path", wide=True),
                AGE,
            ),
        ),
        _crd(
            group="herdsman.dev",
            kind="HostProcess",
            plural="hostprocesses",
            short_name="hp",
            description="One process that an agent runs on its host. Herdsman creates it for a service on a host.",
            spec=_described(ProcessPlan),
            status=_described(HostProcessStatus),
            columns=(
                Column("Host", ".spec.host"),
                Column("Phase", ".status.phase"),
                Column("Port", ".status.port", "integer"),
                Column("Restarts", ".status.restarts", "integer"),
                AGE,
            ),
        ),
        _crd(
            group="herdsman.dev",
            kind="Host",
            plural="hosts",
            short_name="hst",
            description="A machine that runs model servers as processes.",
            spec=structural_schema(HostSpec),
            status=structural_schema(HostStatus),
            namespaced=False,
            columns=(
                Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
                Column("Transport", ".spec.transport"),
                Column("Address", ".status.address"),
                Column("Pressure", ".status.memoryPressure"),
                Column("Unschedulable", ".spec.unschedulable", "boolean", wide=True),
                Column("OS", ".status.os", wide=True),
                Column("Version", ".status.agentVersion", wide=True),
                AGE,
            ),
        ),
    ]


def _described(model: type[BaseModel]) -> Json:
    """Return the schema of a wire model, whose integers may be sizes in bytes."""
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
    return crd_document(
        group=group,
        kind=kind,
        plural=plural,
        short_names=(short_name,),
        description=description,
        versions=(Version(spec=spec, status=status, columns=columns, scale=scale),),
        namespaced=namespaced,
    )


def as_yaml(document: Json) -> str:
    """Return one document as YAML, with its keys in their order."""
    return yaml.safe_dump(document, sort_keys=False, width=120)


def crd_files() -> dict[str, str]:
    """Return the content of each file of docs/crds by its path there: `[<dialect>/]<plural>.<group>.yaml`."""
    groups = {"": crd_documents()} | {f"{dialect}/": crd_documents(dialect) for dialect in OPTIONAL_DIALECTS}
    return {
        f"{folder}{document['metadata']['name']}.yaml": as_yaml(document)
        for folder, documents in groups.items()
        for document in documents
    }


def main(directory: str) -> None:
    """Write the files, and delete the files of CRDs that no longer exist."""
    folder = pathlib.Path(directory)
    files = crd_files()
    for stale in {str(path.relative_to(folder)) for path in folder.rglob("*.yaml")} - set(files):
        (folder / stale).unlink()
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
