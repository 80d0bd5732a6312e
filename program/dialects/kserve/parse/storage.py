"""Volumes of an LLMInferenceService's pods: the model and its adapters, and the slower tiers of the KV cache. Pure.

Pods get a model from an init container, a claim, a sidecar with its image, or a mounted image.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.quantities import parse_quantity
from program.dialects.kserve.parse.credentials import certificates, credentials
from program.dialects.kserve.parse.lora import Adapter
from program.dialects.kserve.parse.pod_draft import Container, PodDraft
from program.dialects.kserve.parse.source import Address
from program.dialects.kserve.parse.subject import Subject, value_at

MODELS = "/mnt/models"
"""Directory of the model in pods."""
INITIALIZER = "storage-initializer"
_SHARED = "kserve-provision-location"
_CLAIM = "kserve-pvc-source"
_IMAGE = "kserve-oci-source"
_CERTIFICATES = "cabundle-cert"
_MODELCAR = "modelcar"
_PARENT = "/mnt"
_TRANSFER = (
    {"name": "HF_HUB_ENABLE_HF_TRANSFER", "value": "1"},
    {"name": "HF_XET_HIGH_PERFORMANCE", "value": "1"},
    {"name": "HF_XET_NUM_CONCURRENT_RANGE_GETS", "value": "8"},
)
"""Hugging Face's fast downloads."""


@dataclass(frozen=True)
class Weights:
    """The model and the adapters that a pod needs before it serves."""

    model: Address
    adapters: tuple[Adapter, ...] = ()
    path: str = MODELS
    """Path of the model in the serving container."""

    @property
    def fetched(self) -> tuple[Address, ...]:
        """The addresses that an init container fetches before the other containers start."""
        every = (self.model, *(adapter.address for adapter in self.adapters))
        return tuple(address for address in every if address.is_fetched)


def add_weights(draft: PodDraft, weights: Weights, subject: Subject) -> None:
    """Add volumes, mounts and containers for all weights to a pod."""
    fetched = tuple(adapter for adapter in weights.adapters if adapter.address.is_fetched)
    if weights.model.scheme == "pvc":
        _mount_claim(draft, _CLAIM, weights.model, weights.path)
    elif weights.model.scheme == "oci":
        _add_modelcar(draft, weights, subject)
    elif weights.model.scheme == "oci+native":
        draft.add_volume({"name": _IMAGE, "image": {"reference": weights.model.rest}})
        draft.main.add_mount({"name": _IMAGE, "mountPath": weights.path, "readOnly": True, "subPath": "models"})
    on_claims = tuple(adapter for adapter in weights.adapters if not adapter.address.is_fetched)
    if weights.model.is_fetched or fetched:
        _fetch(draft, weights, fetched, subject)
    for adapter in on_claims:
        _mount_claim(draft, adapter.volume, adapter.address, adapter.path)


def part_mounts(draft: PodDraft, weights: Weights) -> None:
    """Rearrange the mounts of fetched weights, so that no other mount is inside a read-only one.

    No container runtime can create a mount point in a read-only mount. Therefore a mount for each folder replaces the
    mount of `/mnt`, and a folder with a mount inside is writable. Call it after all mounts of the container were added.
    """
    whole = draft.main.mount_at(_PARENT)
    if whole is not None and whole.get("readOnly") and whole["name"] == _SHARED and draft.main.mounts_in(_PARENT):
        fetched = tuple(adapter for adapter in weights.adapters if adapter.address.is_fetched)
        draft.main.replace_mount(_PARENT, _folders(weights, fetched))
    for path in (weights.path, *(adapter.path for adapter in weights.adapters)):
        mount = draft.main.mount_at(path)
        if mount is not None and mount["name"] == _SHARED and mount.get("readOnly") and draft.main.mounts_in(path):
            draft.main.replace_mount(path, [{name: mount[name] for name in mount if name != "readOnly"}])


def _mount_claim(draft: PodDraft, volume: str, address: Address, path: str) -> None:
    draft.add_volume({"name": volume, "persistentVolumeClaim": {"claimName": address.claim}})
    mount: Json = {"name": volume, "mountPath": path, "readOnly": True}
    draft.main.add_mount({**mount, "subPath": address.path} if address.path else mount)


def _fetch(draft: PodDraft, weights: Weights, fetched: tuple[Adapter, ...], subject: Subject) -> None:
    """Add the init container, or complete the user's. Only the user's image, resources and variables are kept."""
    args: list[str] = [weights.model.written, MODELS] if weights.model.is_fetched else []
    for adapter in fetched:
        args += [adapter.address.written, adapter.path]
    storage = subject.settings.storage
    init = draft.init_container(INITIALIZER)
    init.drop("command")
    init.set("args", args)
    if not init.get("image"):
        init.set("image", storage.image)
    resources = init.get("resources") or {}
    init.set(
        "resources",
        {
            **resources,
            "requests": {"cpu": storage.cpu_request, "memory": storage.memory_request, **resources.get("requests", {})},
            "limits": {"cpu": storage.cpu_limit, "memory": storage.memory_limit, **resources.get("limits", {})},
        },
    )
    schemes = [a.scheme for a in (weights.model, *(adapter.address for adapter in fetched)) if a.is_fetched]
    if "hf" in schemes:
        init.add_env(_TRANSFER)
    init.add_env(credentials(subject, schemes, draft.service_account))
    confidential = subject.at("model", "confidential") or {}
    if confidential.get("enabled"):
        init.add_env(
            (
                {"name": "CONFIDENTIAL_ENABLED", "value": "true"},
                {"name": "CONFIDENTIAL_RESOURCE_ID", "value": str(confidential.get("resourceId") or "")},
            )
        )
    draft.add_volume({"name": _SHARED, "emptyDir": {}})
    if not fetched:
        init.add_mount({"name": _SHARED, "mountPath": MODELS})
        draft.main.add_mount({"name": _SHARED, "mountPath": weights.path, "readOnly": True})
    else:
        init.add_mount({"name": _SHARED, "mountPath": _PARENT})
        whole = {"name": _SHARED, "mountPath": _PARENT, "readOnly": True}
        for mount in [whole] if weights.model.is_fetched else _folders(weights, fetched):
            draft.main.add_mount(mount)
    _trust_certificates(draft, certificates(subject, schemes, draft.service_account))


def _folders(weights: Weights, fetched: tuple[Adapter, ...]) -> list[Json]:
    """Return a mount for each folder of the fetched weights."""
    paths = [weights.path] if weights.model.is_fetched else []
    return [
        {"name": _SHARED, "mountPath": path, "subPath": path.removeprefix(f"{_PARENT}/"), "readOnly": True}
        for path in (*paths, *(adapter.path for adapter in fetched))
    ]


def _add_modelcar(draft: PodDraft, weights: Weights, subject: Subject) -> None:
    """Keep the image's files open in a sidecar. The serving container reads them through /proc."""
    storage = subject.settings.storage
    image = weights.model.rest
    size = {"cpu": storage.modelcar_cpu, "memory": storage.modelcar_memory}
    resources = {"limits": size, "requests": size}
    parent = weights.path.rpartition("/")[0]
    draft.set("shareProcessNamespace", True)
    draft.add_volume({"name": _SHARED, "emptyDir": {}})
    mount = {"name": _SHARED, "mountPath": parent}
    car: Json = {
        "name": _MODELCAR,
        "image": image,
        # Kubernetes turns two dollars into one: the shell reads `$$`, its process id.
        "args": ["sh", "-c", f"ln -sf /proc/$$$$/root/models {weights.path} && sleep infinity"],
        "resources": resources,
        "volumeMounts": [mount],
    }
    main = draft.main
    if storage.modelcar_uid is not None:
        # A process may read another process's root only if both have the same user.
        car["securityContext"] = {"runAsUser": storage.modelcar_uid}
        main.set_within("securityContext", runAsUser=storage.modelcar_uid)
    draft.add_container(car)
    main.add_mount(mount)
    main.add_env(({"name": "MODEL_INIT_MODE", "value": "async"},))
    first = draft.init_container(f"{_MODELCAR}-init")
    first.set("image", image)
    first.set("args", ["sh", "-c", _CHECK])
    first.set("resources", resources)


_CHECK = '[ -n "$$(ls -A /models 2>/dev/null)" ] || { echo "the image has no files in /models" >&2; exit 1; }'
"""Run in the image before the other containers, so that it is pulled and known to contain a model when they start."""


def _trust_certificates(draft: PodDraft, bundle: tuple[str, str] | None) -> None:
    if bundle is None:
        return
    name, path = bundle
    draft.add_volume({"name": _CERTIFICATES, "configMap": {"name": name}})
    init = draft.init_container(INITIALIZER)
    init.add_mount({"name": _CERTIFICATES, "mountPath": path, "readOnly": True})
    init.add_env(
        (
            {"name": "CA_BUNDLE_CONFIGMAP_NAME", "value": name},
            {"name": "CA_BUNDLE_VOLUME_MOUNT_POINT", "value": path},
        )
    )


_STORAGE = "ephemeral-storage"


def add_cache_tiers(draft: PodDraft, workload: Json, *, field: str) -> None:
    """Mount each secondary tier of a workload.

    Raises SpecInvalid for an invalid size, and for a path that leaves the claim.
    """
    sizes: list[str] = []
    for index, tier in enumerate(value_at(workload, "kvCacheOffloading", "secondary") or ()):
        files = value_at(tier, "fileSystem") or {}
        name = f"kv-cache-secondary-{index}"
        mount: Json = {"name": name, "mountPath": f"/mnt/kv-cache-{index}"}
        claim = files.get("pvc") or {}
        if claim.get("ref"):
            volume: Json = {"persistentVolumeClaim": {"claimName": str(claim["ref"].get("name") or "")}}
            path = str(claim["ref"].get("path") or "").strip("/")
            if ".." in path.split("/"):
                where = f"{field}.kvCacheOffloading.secondary[{index}].fileSystem.pvc.ref.path"
                raise SpecInvalid(field=where, why=f"`{path[:64]}` leaves the claim by `..`")
            if path:
                mount["subPath"] = path
        elif claim.get("spec"):
            volume = {"ephemeral": {"volumeClaimTemplate": {"spec": claim["spec"]}}}
        else:
            size = str(value_at(files, "emptyDir", "size") or "")
            volume = {"emptyDir": {"sizeLimit": size} if size else {}}
            if size:
                sizes.append(size)
        draft.add_volume({"name": name, **volume})
        draft.main.add_mount(mount)
    if sizes:
        _ask_for_storage(draft.main, sizes, f"{field}.kvCacheOffloading.secondary")


def _ask_for_storage(main: Container, sizes: list[str], field: str) -> None:
    """Increase the container's request for the node's disk, so that the scheduler chooses a node with enough space."""
    resources = main.get("resources") or {}
    requests = resources.get("requests") or {}
    amounts = [*sizes, str(requests[_STORAGE])] if _STORAGE in requests else sizes
    total = sum(parse_quantity(amount, field=field) for amount in amounts)
    text = amounts[0] if len(amounts) == 1 else str(ceil(total))
    main.set_within("resources", requests={**requests, _STORAGE: text})
