"""The volumes, mounts and init containers that bring weights into a pod.

Called by `components.pod_template`; `components.render` asks whether the cache claim is needed. Paths and the names of
volumes and containers are LLMKube's, so that Herdsman uses LLMKube's caches without a new download.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from components import naming
from components.downloader import (
    ModelLocation,
    cache_prep,
    downloader,
    location_in_cache,
    location_on_own_volume,
    must_not_be_root,
    source_mounts,
)
from components.options import RenderOptions
from kubeapi.json_types import Json
from program.desired.adapter import FOLDER, AdapterFile
from program.desired.engines import SecretKey, Sglang, TensorRtLlm, Tgi, Vllm
from program.desired.model import DesiredModel, SourceKind
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.source import needs_cache
from program.runtimes import runtime_for

CACHE_MOUNT = "/models"
CLAIM_MOUNT = "/model-source"
DRAFT_MOUNT = "/draft"
NODE_MOUNT = "/host-model"
CACHE_VOLUME = "model-cache"
OWN_VOLUME = "model-storage"
ADAPTERS_VOLUME = "lora-adapters"


@dataclass(frozen=True)
class ModelFiles:
    """The weights as a pod mounts them."""

    path: str
    """The file that the engine opens; empty if the engine finds its weights itself."""
    draft_path: str = ""
    """The draft model's file; empty if the service has no draft Model that pods download or mount."""
    volumes: tuple[Json, ...] = ()
    mounts: tuple[Json, ...] = ()
    """Mounts of the engine's container."""
    init_containers: tuple[Json, ...] = ()
    uses_cache_claim: bool = False
    """Whether the pod mounts a claim that Herdsman makes if it does not exist."""


def model_files(desired: DesiredService, options: RenderOptions) -> ModelFiles:
    """Return how a pod gets its weights: from a claim of the user, the node, the cache, or by the engine itself."""
    source = desired.model.source
    runtime = runtime_for(desired.engine)
    reads_files = runtime.needs_model_init or runtime.name == "tgi"
    if source.kind is SourceKind.CLAIM and reads_files:
        files = _on_claim(desired.model, "model-source", CLAIM_MOUNT)
    elif source.directory and reads_files and not desired.skip_model_init:
        files = _on_node(desired.model)
    elif runtime.needs_model_init and not desired.skip_model_init and needs_cache(source, desired.model.files):
        files = _fetched(desired, options)
    else:
        files = ModelFiles(path="")
    files = files if desired.draft is None else _with_draft(files, desired, desired.draft, options)
    return _with_adapters(files, desired, options) if desired.adapters else files


def claim_name(desired: DesiredService, options: RenderOptions) -> str:
    """Return the name of the claim for cached weights: the user's, the service's own, or the namespace's."""
    return desired.storage.claim_name or naming.cache_claim(desired.key.name, options.claim_mode)


def _on_claim(model: DesiredModel, volume: str, mount: str) -> ModelFiles:
    claim = {"claimName": model.source.claim, "readOnly": True}
    return ModelFiles(
        path=f"{mount}/{model.source.path.lstrip('/')}",
        volumes=({"name": volume, "persistentVolumeClaim": claim},),
        mounts=({"name": volume, "mountPath": mount, "readOnly": True},),
    )


def _on_node(model: DesiredModel) -> ModelFiles:
    """Mount a directory of the node in place, because a copy would only need more storage."""
    volume = {"name": "host-model", "hostPath": {"path": model.source.path, "type": "Directory"}}
    mount = {"name": "host-model", "mountPath": NODE_MOUNT, "readOnly": True}
    return ModelFiles(path=NODE_MOUNT, volumes=(volume,), mounts=(mount,))


def _fetched(desired: DesiredService, options: RenderOptions) -> ModelFiles:
    model = desired.model
    storage = _storage(desired, model, options)
    location = _location(desired, model, CACHE_MOUNT)
    own_volumes, own_mounts = source_mounts(model, options, "host-model")
    container = downloader(
        model,
        location,
        options,
        mounts=[{"name": storage["name"], "mountPath": CACHE_MOUNT}, *own_mounts],
        pod_security=_security(desired),
        hub_token=_hub_token(desired),
    )
    return ModelFiles(
        path=location.path,
        volumes=(storage, *own_volumes),
        mounts=({"name": storage["name"], "mountPath": CACHE_MOUNT, "readOnly": True},),
        init_containers=(*_prepared(desired, model, options, CACHE_VOLUME, CACHE_MOUNT, "model-cache-prep"), container),
        uses_cache_claim=_is_cached(desired, model) and not desired.storage.claim_name,
    )


def _with_draft(files: ModelFiles, desired: DesiredService, draft: DesiredModel, options: RenderOptions) -> ModelFiles:
    """Add the draft model of speculative decoding: on a volume that the pod already has, or on a new one at /draft."""
    if draft.source.kind is SourceKind.CLAIM:
        return _with_draft_on_claim(files, draft)
    if desired.skip_model_init or not needs_cache(draft.source, draft.files):
        return files
    storage = _storage(desired, draft, options)
    shared = storage in files.volumes
    mount, volume = (CACHE_MOUNT, str(storage["name"])) if shared else (DRAFT_MOUNT, "draft-0")
    location = _location(desired, draft, mount)
    own_volumes, own_mounts = source_mounts(draft, options, "draft-1")
    container = downloader(
        draft,
        location,
        options,
        mounts=[{"name": volume, "mountPath": mount}, *own_mounts],
        pod_security=_security(desired),
        hub_token=_hub_token(desired),
        name="draft-model-downloader",
    )
    added = [] if shared else [{**storage, "name": volume}]
    prep = () if shared else _prepared(desired, draft, options, volume, mount, "draft-cache-prep")
    return replace(
        files,
        draft_path=location.path,
        volumes=(*files.volumes, *added, *(one for one in own_volumes if one not in files.volumes)),
        mounts=files.mounts if shared else (*files.mounts, {"name": volume, "mountPath": mount, "readOnly": True}),
        init_containers=(*files.init_containers, *prep, container),
        uses_cache_claim=files.uses_cache_claim or (_is_cached(desired, draft) and not desired.storage.claim_name),
    )


def _with_draft_on_claim(files: ModelFiles, draft: DesiredModel) -> ModelFiles:
    here = _on_claim(draft, "model-source", CLAIM_MOUNT)
    if here.volumes[0] in files.volumes:
        return replace(files, draft_path=here.path)
    beside = _on_claim(draft, "draft-0", DRAFT_MOUNT)
    return replace(
        files,
        draft_path=beside.path,
        volumes=(*files.volumes, *beside.volumes),
        mounts=(*files.mounts, *beside.mounts),
    )


def _with_adapters(files: ModelFiles, desired: DesiredService, options: RenderOptions) -> ModelFiles:
    """Add the LoRA adapters."""
    volumes, mount, containers = adapter_downloads(
        desired.adapters, options, pod_security=_security(desired), hub_token=_hub_token(desired)
    )
    return replace(
        files,
        volumes=(*files.volumes, *(one for one in volumes if one not in files.volumes)),
        mounts=(*files.mounts, mount),
        init_containers=(*files.init_containers, *containers),
    )


def adapter_downloads(
    adapters: Sequence[AdapterFile], options: RenderOptions, *, pod_security: Json, hub_token: SecretKey | None
) -> tuple[list[Json], Json, list[Json]]:
    """Return the volumes, the engine's mount and the init containers for LoRA adapters.

    They are on a volume that belongs to the pod, and are small beside the model. In the cache of the namespace,
    `herdsman cache prune` would take them for unused.
    """
    # These sources need no file of the node, so the mounts are the same for all of them.
    own_volumes, own_mounts = source_mounts(adapters[0].source, options, "")
    mount = {"name": ADAPTERS_VOLUME, "mountPath": FOLDER}
    containers = [
        downloader(
            each.source,
            ModelLocation(each.directory, f"{each.directory}/{(each.source.files or ('adapter.gguf',))[0]}"),
            options,
            mounts=[mount, *own_mounts],
            pod_security=pod_security,
            hub_token=hub_token,
            name=each.container,
        )
        for each in adapters
    ]
    return [{"name": ADAPTERS_VOLUME, "emptyDir": {}}, *own_volumes], {**mount, "readOnly": True}, containers


def _is_cached(desired: DesiredService, model: DesiredModel) -> bool:
    return bool(model.cache_key) and desired.storage.persistence == "Cached"


def _storage(desired: DesiredService, model: DesiredModel, options: RenderOptions) -> Json:
    if _is_cached(desired, model):
        return {"name": CACHE_VOLUME, "persistentVolumeClaim": {"claimName": claim_name(desired, options)}}
    limit = desired.pod.ephemeral_storage if desired.storage.persistence == "Ephemeral" else None
    return {"name": OWN_VOLUME, "emptyDir": {"sizeLimit": limit} if limit else {}}


def _location(desired: DesiredService, model: DesiredModel, root: str) -> ModelLocation:
    if _is_cached(desired, model):
        return location_in_cache(model, root)
    return location_on_own_volume(model, root, desired.key.namespace)


def _prepared(
    desired: DesiredService, model: DesiredModel, options: RenderOptions, volume: str, mount: str, name: str
) -> tuple[Json, ...]:
    security = _security(desired)
    if not _is_cached(desired, model) or must_not_be_root(security):
        return ()
    group = security.get("fsGroup", options.default_fs_group)
    return (cache_prep(options, group=group, volume=volume, mount=mount, name=name),)


def _security(desired: DesiredService) -> Json:
    return desired.pod.pod_security_context or {}


def _hub_token(desired: DesiredService) -> SecretKey | None:
    return desired.engine.hf_token if isinstance(desired.engine, (Vllm, Sglang, TensorRtLlm, Tgi)) else None
