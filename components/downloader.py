"""The init containers that download a model's files, and their shell script. Called by the renderers of pods.

Names, variables and paths are LLMKube's, so that Herdsman uses LLMKube's caches without a new download. Values are
passed as environment variables and are never inserted into the script. Credentials are references to Secrets.

A new version of Herdsman may change the text of the script. Pods that run have already executed the script, so hashes
count the script's version and not its text, and an upgrade does not restart pods. docs/adr/0008.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass

from components.options import RenderOptions
from components.scripts import script_without_comments
from kubeapi.json_types import Json
from program.desired.engines import SecretKey
from program.desired.hub import Hub
from program.desired.model import DesiredModel, SourceKind
from program.dialects.llmkube.parse.source import file_set, hub_location, repository_url
from program.runtimes.base import secret_env

SCRIPT_VERSION = 1
"""Raise it only when a fix of the script must reach running pods: all pods with a downloader then restart."""
HOST_FILE = "/host-model/model.gguf"
CA_MOUNT = "/custom-certs"

# User and group that own the cache when no group is configured: `curl_user` of the curl image.
CURL_UID = 100


@dataclass(frozen=True)
class ModelLocation:
    """The paths of one model's files in the pod."""

    directory: str
    path: str
    """The path of the file that the engine opens."""


def location_in_cache(model: DesiredModel, root: str) -> ModelLocation:
    """Return the paths of a model in a cache that several models share."""
    directory = f"{root}/{model.cache_key}"
    return ModelLocation(directory, f"{directory}/{_primary(model) or model.file_name}")


def location_on_own_volume(model: DesiredModel, root: str, namespace: str) -> ModelLocation:
    """Return the paths of a model on a volume that belongs to one pod."""
    base = f"{root}/{namespace}-{model.name}"
    primary = _primary(model)
    return ModelLocation(base, f"{base}/{primary}") if primary else ModelLocation(root, f"{base}.gguf")


def _primary(model: DesiredModel) -> str:
    return model.files[0] if model.files else ""


def source_mounts(model: DesiredModel, options: RenderOptions, host_volume: str) -> tuple[list[Json], ...]:
    """Return the volumes that only the downloader needs, and their mounts: the node's file and the CA certificates."""
    volumes: list[Json] = []
    mounts: list[Json] = []
    if model.source.kind is SourceKind.FILE:
        volumes.append({"name": host_volume, "hostPath": {"path": model.source.path, "type": "File"}})
        mounts.append({"name": host_volume, "mountPath": HOST_FILE, "readOnly": True})
    if options.ca_configmap:
        volumes.append({"name": "custom-ca-cert", "configMap": {"name": options.ca_configmap}})
        mounts.append({"name": "custom-ca-cert", "mountPath": CA_MOUNT, "readOnly": True})
    return volumes, mounts


def downloader(
    model: DesiredModel,
    location: ModelLocation,
    options: RenderOptions,
    *,
    mounts: Sequence[Json],
    pod_security: Json,
    hub_token: SecretKey | None = None,
    name: str = "model-downloader",
) -> Json:
    """Build the container that downloads a model's files to `location`.

    `pod_security` is the pod security context that the user set, or empty. `hub_token` is the engine's token for
    Hugging Face.
    """
    container: Json = {
        "name": name,
        "image": options.init_image,
        "command": ["sh", "-c", download_script()],
        "env": _environment(model, location, options, hub_token),
        "volumeMounts": list(mounts),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": False,
            "capabilities": {"drop": ["ALL"]},
            **_inherited_identity(pod_security),
        },
    }
    if model.source_secret:
        container["envFrom"] = [{"secretRef": {"name": model.source_secret}}]
    return container


def _environment(
    model: DesiredModel, location: ModelLocation, options: RenderOptions, hub_token: SecretKey | None
) -> list[Json]:
    source = model.source
    values = {"MODEL_SOURCE": _address(model, options), "CACHE_DIR": location.directory, "MODEL_PATH": location.path}
    if model.sha256:
        values["MODEL_SHA256"] = model.sha256.lower()
    if model.files:
        values["MODEL_FILES"] = "\n".join(file_set(source, model.files, model.mmproj))
    if source.kind is SourceKind.S3:
        values["S3_BUCKET"] = source.bucket
        values["S3_PREFIX" if model.files else "S3_KEY"] = source.path
    if model.refresh == "OnChange":
        values["REFRESH_POLICY"] = model.refresh
    hub = Hub.at(options.hub_url)
    if hub.is_mirror:
        values["HUB_HOST"] = hub.base.authority
    environment = [{"name": name, "value": value} for name, value in values.items()]
    if source.kind is SourceKind.REPOSITORY and not model.source_secret:
        # With spec.sourceSecretRef the user's Secret holds the credentials, also for a file of the Hub given by its
        # URL.
        environment += secret_env("HF_TOKEN", hub_token)
    return environment


def _address(model: DesiredModel, options: RenderOptions) -> str:
    source = model.source
    if source.kind is SourceKind.REPOSITORY:
        return repository_url(source, options.hub_url)
    return hub_location(source.download_address, options.hub_url)


def cache_prep(options: RenderOptions, *, group: int, volume: str, mount: str, name: str = "model-cache-prep") -> Json:
    """Build the container that lets `group` write to the cache.

    Some storage drivers create volumes that only root can use.
    """
    if group > 0:
        script = f"chown 0:{group} {mount} && chmod g+rwX {mount}"
    else:
        script = f"chown {CURL_UID}:{CURL_UID} {mount} && chmod 770 {mount}"
    return {
        "name": name,
        "image": options.init_image,
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": volume, "mountPath": mount}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def must_not_be_root(pod_security: Json) -> bool:
    """Return whether the kubelet refuses containers of uid 0. The cache is then writable by the pod's fsGroup only."""
    return pod_security.get("runAsNonRoot") is True


def _inherited_identity(pod_security: Json) -> Json:
    identity: Json = {field: pod_security[field] for field in ("runAsUser", "runAsGroup") if field in pod_security}
    if must_not_be_root(pod_security) and "runAsUser" not in identity:
        # The image names its user. The kubelet can check only a numeric uid against runAsNonRoot.
        identity["runAsUser"] = CURL_UID
    return identity


@functools.cache
def download_script() -> str:
    """Return the script without its comments, because each Deployment stores a copy."""
    return script_without_comments("model_download.sh")


STAND_IN = "\0herdsman downloader"
"""Stands for the script while an object is encoded, because the encoding of a short text takes less time."""


def script_by_version(text: str) -> str:
    """Replace `STAND_IN` in JSON by a text that depends on the script's version only, before the JSON is hashed."""
    return text.replace(*_in_json())


@functools.cache
def _in_json() -> tuple[str, str]:
    # Deployments from before SCRIPT_VERSION carry hashes of the script's text at that time; this text represents
    # version 1.
    counted = (
        script_without_comments("model_download.v1.sh")
        if SCRIPT_VERSION == 1
        else f"herdsman downloader {SCRIPT_VERSION}"
    )
    return json.dumps(STAND_IN), json.dumps(counted)
