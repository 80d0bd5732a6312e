"""The HostProcess object of a service that runs on a host instead of in pods. Called by `components.render`.

Its spec is `agent.contract.ProcessPlan`. The arguments come from the same builders as those of pods, with tokens for
the values that only the host knows. The name of a file is the token that represents its path in the arguments. A plan
holds addresses of files without access tokens: the agent uses the credentials of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from program.desired.adapter import AdapterFile
from program.desired.engines import LlamaCpp
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, GgufFacts, ModelFormat, SourceKind
from program.desired.priorities import PRIORITIES
from program.desired.service import DesiredService, HostPlacement
from program.dialects.hosts.env import SHARED_ENGINES
from program.dialects.hosts.names import hosted_service_name
from program.dialects.llmkube.parse.source import cache_key, file_set, file_url, object_key
from program.host_context import with_context
from program.runtimes.base import secret_env

PROJECTOR = "mmproj"
DRAFT = "draft"


def host_process(desired: DesiredService, host: str, replica: int = 0) -> RenderedObject:
    """Build the HostProcess of one replica for `host`.

    Raises SpecInvalid for an engine that does not run on hosts, and for weights on a claim.
    """
    labels = {**workload_labels(desired), naming.LABEL_HOST: host}
    name = naming.host_process_name(desired.key.name, replica, desired.key.dialect)
    plan = process_plan(desired, host, replica)
    context = desired.host_placement.context_of(replica) if desired.host_placement is not None else None
    notes = {}
    if context is not None and context.chosen:
        value = str(context.tokens) if context.chosen == "default" else context.chosen
        notes = {naming.ANNOTATION_DEFAULT_CONTEXT: value}
    manifest: Json = {
        "apiVersion": kinds.HOST_PROCESSES.api_version,
        "kind": kinds.HOST_PROCESSES.kind,
        "metadata": object_metadata(desired, name, labels, notes),
        "spec": plan.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    return RenderedObject(naming.host_process_part(replica), naming.TYPE_HOST_PROCESS, manifest)


def process_plan(desired: DesiredService, host: str, replica: int = 0) -> ProcessPlan:
    """Build the plan of one replica's process. Raises SpecInvalid for the reasons of `host_process`."""
    context = desired.host_placement.context_of(replica) if desired.host_placement is not None else None
    program = host_program(desired if context is None else with_context(desired, context.tokens))
    name, dialect = desired.key.name, desired.key.dialect
    return ProcessPlan(
        host=host,
        # Agents find the object by this name. Only in dialect LLMKube is it the name of the service.
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
    """Split the environment into values and references to Secrets. Of two variables with one name the last counts.

    A daemon that several services share gets no Secret of any of them.
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
    """Return the service's settings for its host; None for a setting that the service does not have."""
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
    """The fields of a ProcessPlan that list files."""

    file: FilePlan | None
    files: dict[str, FilePlan] | None


def host_files(desired: DesiredService) -> Files:
    """Return the files that must be on the host before the process starts.

    Raises SpecInvalid for weights on a claim, which a host cannot mount.
    """
    adapters = {name: plan for each in desired.adapters for name, plan in _of_adapter(each).items()}
    if desired.skip_model_init:
        return Files(file=None, files=adapters or None)
    own, others = _of_model(desired.model, field="spec.modelRef")
    drafting = _of_draft(desired)
    # A draft that is also one of the model's files is listed once, as the draft.
    others = {name: plan for name, plan in others.items() if plan != drafting.get(DRAFT)} | drafting
    others |= adapters
    return Files(file=own, files=others or None)


def _of_adapter(adapter: AdapterFile) -> dict[str, FilePlan]:
    """Return the files of an adapter. The token of one with several files stands for their directory."""
    source = adapter.source
    if not source.files:
        return {adapter.token: _file(source, "", f"{adapter.name}.gguf", sha256=source.sha256)}
    first, *others = file_set(source.source, source.files, "")
    plans = {adapter.token: _file(source, first, first, sha256=source.sha256, directory=True)}
    for number, each in enumerate(others, start=1):
        plans[f"{adapter.token}-file-{number}"] = _file(source, each, each)
    return plans


def model_files(model: DesiredModel) -> tuple[FilePlan, ...]:
    """Return the files of a model, the one that the engine opens first. Called for bundles (`automation.bundles`).

    A repository without a list of files is one plan of a directory. Raises SpecInvalid for weights on a claim, and for
    a repository of GGUF files, of which the engine needs one.
    """
    if model.source.kind is SourceKind.REPOSITORY and not model.files:
        if model.format is ModelFormat.GGUF:
            raise SpecInvalid(field="spec.source", why="names a whole repository; name one file, or list spec.files")
        return (_repository(model),)
    first, others = _of_model(model, field="spec.source")
    return tuple(dict.fromkeys(plan for plan in (first, *others.values()) if plan is not None))


def with_headers(desired: DesiredService, read: Callable[[Sequence[FilePlan]], GgufFacts]) -> DesiredService:
    """Return the service with the facts of its model and draft, which `read` finds for their files on a host.

    Raises SpecInvalid as `model_files` does, and what `read` raises.
    """

    def told(model: DesiredModel) -> DesiredModel:
        gguf = read(model_files(model))
        return model.model_copy(update={"gguf": gguf, "size_bytes": gguf.weights_bytes})

    draft = told(desired.draft) if desired.draft is not None else None
    return desired.model_copy(update={"model": told(desired.model), "draft": draft})


def _of_model(model: DesiredModel, *, field: str) -> tuple[FilePlan | None, dict[str, FilePlan]]:
    source = model.source
    if source.kind is SourceKind.CLAIM:
        raise SpecInvalid(field=field, why="is on a PersistentVolumeClaim, which a host cannot mount")
    if source.kind is SourceKind.REPOSITORY and not model.files:
        # llama.cpp and vLLM download a repository themselves. An MLX engine needs its files in one directory.
        return (_repository(model) if model.format is ModelFormat.MLX else None), {}
    entries = file_set(source, model.files, model.mmproj)
    if len(entries) <= 1:
        # The name of a single file has no effect. It stays as it was before models could have several files.
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
    """Return the files of the draft model: the files of the draft's Model, or one of the main model's files."""
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
    # The plan holds no size: it becomes known only late, and a changed plan restarts the process.
    return FilePlan(source=address, cache_key=_cache_key(model), file_name=name, sha256=sha256, directory=directory)


def _cache_key(model: DesiredModel) -> str:
    return model.cache_key or cache_key(model.source.address)
