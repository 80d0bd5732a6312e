"""The HostProcess object of a service that runs on a host instead of in pods. Called by `components.render`.

Its spec is `agent.contract.ProcessPlan`: the argument builder is that of pods, the host's supervisor fills in the rest.
The names of files are the tokens that stand for their paths in the arguments. A plan names files without a token to
fetch them: the agent has its own credentials.
"""

from __future__ import annotations

from typing import Any, TypedDict

from agent.contract import FilePlan, ProcessPlan, SecretReference
from components import naming
from components.engine_workloads import service_port
from components.host_program import host_program
from components.naming import object_metadata, workload_labels
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.json_types import Json
from program import sizing
from program.desired.engines import LlamaCpp
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, ModelFormat, SourceKind
from program.desired.priorities import PRIORITIES
from program.desired.service import DesiredService, HostPlacement
from program.dialects.hosts.env import SHARED_ENGINES
from program.dialects.hosts.names import hosted_service_name
from program.dialects.llmkube.parse.source import cache_key, file_set, file_url, object_key
from program.runtimes.base import secret_env

PROJECTOR = "mmproj"
DRAFT = "draft"


def host_process(desired: DesiredService, host: str, replica: int = 0) -> RenderedObject:
    """Build the HostProcess of one replica, for `host`.

    Raises SpecInvalid for what no host can run: an engine other than llama.cpp and generic, weights on a claim.
    """
    labels = {**workload_labels(desired), naming.LABEL_HOST: host}
    name = naming.host_process_name(desired.key.name, replica, desired.key.dialect)
    plan = process_plan(desired, host, replica)
    manifest: Json = {
        "apiVersion": kinds.HOST_PROCESSES.api_version,
        "kind": kinds.HOST_PROCESSES.kind,
        "metadata": object_metadata(desired, name, labels),
        "spec": plan.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    return RenderedObject(naming.host_process_part(replica), naming.TYPE_HOST_PROCESS, manifest)


def process_plan(desired: DesiredService, host: str, replica: int = 0) -> ProcessPlan:
    """Plan the process of one replica. Raises SpecInvalid as `host_process` does."""
    program = host_program(desired)
    name, dialect = desired.key.name, desired.key.dialect
    return ProcessPlan(
        host=host,
        # By this name agents find the object again, which of other dialects than LLMKube's is not the service's own.
        service=naming.host_process_name(name, dialect=dialect),
        runtime=program.runtime,
        argv=program.argv,
        **_environment(desired),
        **(host_files(desired) if program.reads_files else Files(file=None, files=None)),
        daemon_model=program.daemon_model,
        health_path=program.health_path,
        completion_path=program.completion_path,
        idle=program.idle,
        service_name=hosted_service_name(dialect, name),
        service_port=service_port(desired),
        priority=PRIORITIES[desired.priority],
        eviction_protection=desired.eviction_protection,
        memory_bytes=sizing.declared_bytes(desired),
        memory_budget_bytes=desired.model.memory_budget_bytes,
        memory_fraction=desired.model.memory_fraction,
        replica=replica or None,
        endpoint_slice=naming.endpoint_slice_name(name, replica, dialect) if replica else None,
        **_hosting(desired),
    )


def _environment(desired: DesiredService) -> dict[str, Any]:
    """Say what of the environment is a value and what a reference; of two variables of one name the last counts.

    A daemon that services share gets no secret of one of them.
    """
    token = getattr(desired.engine, "hf_token", None)
    values: dict[str, str] = {}
    secrets: dict[str, SecretReference] = {}
    for entry in (*secret_env("HF_TOKEN", token), *desired.pod.env):
        name = entry["name"]
        reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
        if reference is None and "valueFrom" in entry:
            continue
        values.pop(name, None)
        secrets.pop(name, None)
        if reference is None:
            values[name] = str(entry.get("value", ""))
            continue
        secrets[name] = SecretReference(
            secret=reference["name"], key=reference["key"], optional=reference.get("optional") or None
        )
    return {"env": values, "secret_env": secrets if secrets and desired.engine.kind not in SHARED_ENGINES else None}


def _hosting(desired: DesiredService) -> dict[str, Any]:
    """Say what the service wishes of its host; None, and so nothing, where it wishes nothing."""
    placement, sleep = desired.host_placement or HostPlacement(), desired.sleep
    return {
        "memory_check": placement.memory_check,
        "residency": placement.residency,
        "group": placement.group or None,
        "min_dwell_s": placement.min_dwell_s,
        "drain_timeout_s": desired.drain_s,
        "idle_timeout_s": sleep.idle_timeout_s if sleep else None,
        "wake_timeout_s": sleep.wake_timeout_s if sleep else None,
        "max_held_requests": sleep.max_held_requests if sleep else None,
    }


class Files(TypedDict):
    """The fields of a ProcessPlan that name files."""

    file: FilePlan | None
    files: dict[str, FilePlan] | None


def host_files(desired: DesiredService) -> Files:
    """Name what the host must have before the process starts.

    Raises SpecInvalid for weights on a claim, which a host cannot mount.
    """
    if desired.skip_model_init:
        return Files(file=None, files=None)
    own, others = _of_model(desired.model, field="spec.modelRef")
    drafting = _of_draft(desired)
    # A draft that is one of the model's files goes by that name alone.
    others = {name: plan for name, plan in others.items() if plan != drafting.get(DRAFT)} | drafting
    return Files(file=own, files=others or None)


def _of_model(model: DesiredModel, *, field: str) -> tuple[FilePlan | None, dict[str, FilePlan]]:
    source = model.source
    if source.kind is SourceKind.CLAIM:
        raise SpecInvalid(field=field, why="weights on a PersistentVolumeClaim cannot be read on a host")
    if source.kind is SourceKind.REPOSITORY and not model.files:
        # llama.cpp and vLLM fetch a repository by themselves; what reads a directory needs the files in one.
        return (_repository(model) if model.format is ModelFormat.MLX else None), {}
    entries = file_set(source, model.files, model.mmproj)
    if len(entries) <= 1:
        # The name of one file alone does not matter, and is what it was before there were sets.
        name = model.file_name.rpartition("/")[2] or "model.gguf"
        return _file(model, entries[0] if entries else "", name, sha256=model.sha256), {}
    directory = None if model.format is ModelFormat.GGUF else True
    first = _file(model, entries[0], entries[0], sha256=model.sha256, directory=directory)
    others = {
        PROJECTOR if entry == model.mmproj else f"file-{number}": _file(model, entry, entry)
        for number, entry in enumerate(entries[1:], start=1)
    }
    if model.mmproj == entries[0]:
        others[PROJECTOR] = first
    return first, others


def _of_draft(desired: DesiredService) -> dict[str, FilePlan]:
    """Name the weights that a llama-server drafts with: a Model of their own, or one of the model's files."""
    engine = desired.engine
    speculative = engine.speculative if isinstance(engine, LlamaCpp) else None
    if speculative is None or not speculative.type.startswith("draft-"):
        return {}
    if speculative.draft_path:
        own = not speculative.draft_path.startswith("/")
        return {DRAFT: _file(desired.model, speculative.draft_path, speculative.draft_path)} if own else {}
    if desired.draft is None:
        return {}
    first, others = _of_model(desired.draft, field="spec.speculativeDecoding.draftModelRef")
    named = {f"{DRAFT}-{name}": plan for name, plan in others.items() if name != PROJECTOR}
    return {DRAFT: first, **named} if first is not None else {}


def _repository(model: DesiredModel) -> FilePlan:
    source = model.source
    at = f"@{source.revision}" if source.revision else ""
    return FilePlan(
        source=f"hf://{source.repository}{at}",
        cache_key=_cache_key(model),
        file_name=source.repository.rpartition("/")[2],
        directory=True,
    )


def _file(
    model: DesiredModel, entry: str, name: str, *, sha256: str | None = None, directory: bool | None = None
) -> FilePlan:
    source = model.source
    if source.kind is SourceKind.S3:
        address = f"s3://{source.bucket}/{object_key(source, entry)}"
    else:
        address = file_url(source, entry) if entry else source.download_address
    # The size is left to the download itself: it is learnt late, and a changed plan would restart the process.
    return FilePlan(source=address, cache_key=_cache_key(model), file_name=name, sha256=sha256, directory=directory)


def _cache_key(model: DesiredModel) -> str:
    return model.cache_key or cache_key(model.source.address)
