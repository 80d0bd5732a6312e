"""The files that a host fetches for a process: the model's own, the rest of its set, projector and draft. Pure.

Called by `components.host_plan`; the names of files are the tokens that stand for their paths in the arguments
(`agent.contract.ProcessPlan`). The agent brings its own credentials: a plan names what, never with which token.
"""

from __future__ import annotations

from typing import TypedDict

from agent.contract import FilePlan
from program.desired.engines import LlamaCpp
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, ModelFormat, SourceKind
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.source import cache_key, file_set, file_url, object_key

PROJECTOR = "mmproj"
DRAFT = "draft"


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
