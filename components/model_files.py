"""How a pod gets its weights: where they lie, which volumes and mounts, which init containers put them there.

Called by `components.pod_template`; `components.render` asks it whether the namespace's cache claim is needed.
Paths, volume and container names are LLMKube's, so that its caches are used without a new download.
"""

from __future__ import annotations

from dataclasses import dataclass

from components import naming
from components.download_script import download_script as download_script
from components.options import RenderOptions
from program.desired.base import JsonObject
from program.desired.model import SourceKind
from program.desired.service import DesiredService
from program.runtimes import runtime_for

CACHE_MOUNT = "/models"
CLAIM_MOUNT = "/model-source"
HOST_FILE = "/host-model/model.gguf"
CA_MOUNT = "/custom-certs"

# User and group that own the cache when no group is configured: curl_user of the curl image.
_CURL_UID = 100


@dataclass(frozen=True)
class ModelFiles:
    """A pod's view of its weights."""

    path: str
    """What the engine opens; empty when it finds its weights by itself."""
    volumes: tuple[JsonObject, ...] = ()
    mounts: tuple[JsonObject, ...] = ()
    """Mounts of the engine's container."""
    init_containers: tuple[JsonObject, ...] = ()
    uses_cache_claim: bool = False


def model_files(desired: DesiredService, options: RenderOptions) -> ModelFiles:
    """Decide where the weights come from: a claim of the user's, the cache, the node, or the engine itself."""
    source = desired.model.source
    runtime = runtime_for(desired.engine)
    if source.kind is SourceKind.CLAIM and (runtime.needs_model_init or runtime.name == "tgi"):
        return _on_claim(desired)
    downloads = source.kind in (SourceKind.HTTP, SourceKind.FILE)
    if not downloads or not runtime.needs_model_init or desired.skip_model_init:
        return ModelFiles(path="")
    return _in_cache(desired, options)


def _on_claim(desired: DesiredService) -> ModelFiles:
    source = desired.model.source
    volume = {"name": "model-source", "persistentVolumeClaim": {"claimName": source.claim, "readOnly": True}}
    return ModelFiles(
        path=f"{CLAIM_MOUNT}/{source.path.lstrip('/')}",
        volumes=(volume,),
        mounts=({"name": "model-source", "mountPath": CLAIM_MOUNT, "readOnly": True},),
    )


def _in_cache(desired: DesiredService, options: RenderOptions) -> ModelFiles:
    model = desired.model
    if model.cache_key:
        directory = f"{CACHE_MOUNT}/{model.cache_key}"
        path = f"{directory}/{model.file_name}"
        storage: JsonObject = {
            "name": "model-cache",
            "persistentVolumeClaim": {"claimName": naming.CACHE_CLAIM},
        }
    else:
        directory = CACHE_MOUNT
        path = f"{directory}/{desired.key.namespace}-{model.name}.gguf"
        storage = {"name": "model-storage", "emptyDir": {}}
    volumes: list[JsonObject] = [storage]
    downloader_mounts: list[JsonObject] = [{"name": storage["name"], "mountPath": CACHE_MOUNT}]
    if model.source.kind is SourceKind.FILE:
        volumes.append({"name": "host-model", "hostPath": {"path": model.source.path, "type": "File"}})
        downloader_mounts.append({"name": "host-model", "mountPath": HOST_FILE, "readOnly": True})
    if options.ca_configmap:
        volumes.append({"name": "custom-ca-cert", "configMap": {"name": options.ca_configmap}})
        downloader_mounts.append({"name": "custom-ca-cert", "mountPath": CA_MOUNT, "readOnly": True})
    init = [_downloader(desired, options, directory, path, downloader_mounts)]
    if model.cache_key and not _must_not_be_root(desired):
        init.insert(0, _cache_prep(desired, options))
    return ModelFiles(
        path=path,
        volumes=tuple(volumes),
        mounts=({"name": storage["name"], "mountPath": CACHE_MOUNT, "readOnly": True},),
        init_containers=tuple(init),
        uses_cache_claim=bool(model.cache_key),
    )


def _must_not_be_root(desired: DesiredService) -> bool:
    """Tell whether the kubelet would refuse a container of uid 0; the pod's fsGroup must then do for the cache."""
    return (desired.pod.pod_security_context or {}).get("runAsNonRoot") is True


def _cache_prep(desired: DesiredService, options: RenderOptions) -> JsonObject:
    own = desired.pod.pod_security_context or {}
    group = own.get("fsGroup", options.default_fs_group)
    if group > 0:
        script = f"chown 0:{group} {CACHE_MOUNT} && chmod g+rwX {CACHE_MOUNT}"
    else:
        script = f"chown {_CURL_UID}:{_CURL_UID} {CACHE_MOUNT} && chmod 770 {CACHE_MOUNT}"
    return {
        "name": "model-cache-prep",
        "image": options.init_image,
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "model-cache", "mountPath": CACHE_MOUNT}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _downloader(
    desired: DesiredService, options: RenderOptions, directory: str, path: str, mounts: list[JsonObject]
) -> JsonObject:
    model = desired.model
    env = [
        {"name": "MODEL_SOURCE", "value": model.source.download_address},
        {"name": "CACHE_DIR", "value": directory},
        {"name": "MODEL_PATH", "value": path},
    ]
    if model.sha256:
        env.append({"name": "MODEL_SHA256", "value": model.sha256.lower()})
    return {
        "name": "model-downloader",
        "image": options.init_image,
        "command": ["sh", "-c", download_script()],
        "env": env,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": False,
            "capabilities": {"drop": ["ALL"]},
            **_inherited_identity(desired),
        },
    }


def _inherited_identity(desired: DesiredService) -> JsonObject:
    pod = desired.pod.pod_security_context or {}
    identity: JsonObject = {field: pod[field] for field in ("runAsUser", "runAsGroup") if field in pod}
    if _must_not_be_root(desired) and "runAsUser" not in identity:
        # The image names its user; the kubelet can prove only a number to be somebody else than root.
        identity["runAsUser"] = _CURL_UID
    return identity
