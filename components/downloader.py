"""The init containers that put a model's files in place, and their shell script. Called by the renderers of pods.

Names, environment and paths are LLMKube's, so that its caches are used without a new download. Values travel in the
environment and are never spliced into the script; credentials come from Secrets by reference.

Each release may change the text of the script, and pods that run have used theirs already. So hashes count the script's
version and not its text, and an upgrade does not restart pods for it. docs/adr/0008.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Sequence
from dataclasses import dataclass

from components.options import RenderOptions
from kubeapi.json_types import Json
from program.desired.engines import SecretKey
from program.desired.hub import Hub
from program.desired.model import DesiredModel, SourceKind
from program.dialects.llmkube.parse.source import file_set, hub_location, repository_url
from program.runtimes.base import secret_env

SCRIPT_VERSION = 1
"""Raised only when a fix of the script must reach pods that run: every pod with a downloader then starts anew."""
HOST_FILE = "/host-model/model.gguf"
CA_MOUNT = "/custom-certs"

# User and group that own the cache when no group is configured: curl_user of the curl image.
CURL_UID = 100


@dataclass(frozen=True)
class ModelLocation:
    """The paths of the files of one model."""

    directory: str
    path: str
    """The file that the engine opens."""


def location_in_cache(model: DesiredModel, root: str) -> ModelLocation:
    """Return the model's location in a cache that many models share."""
    directory = f"{root}/{model.cache_key}"
    return ModelLocation(directory, f"{directory}/{_primary(model) or model.file_name}")


def location_on_own_volume(model: DesiredModel, root: str, namespace: str) -> ModelLocation:
    """Return the model's location on a volume that only this pod has."""
    base = f"{root}/{namespace}-{model.name}"
    primary = _primary(model)
    return ModelLocation(base, f"{base}/{primary}") if primary else ModelLocation(root, f"{base}.gguf")


def _primary(model: DesiredModel) -> str:
    return model.files[0] if model.files else ""


def source_mounts(model: DesiredModel, options: RenderOptions, host_volume: str) -> tuple[list[Json], ...]:
    """Return the volumes that only the downloader needs, and its mounts of them: the node's file, certificates."""
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
    """Build the container that fetches a model's files to `location`.

    `pod_security` is the user's own pod security context, or empty; `hub_token` the engine's token for Hugging Face.
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
        # A file of the Hub that is named by its URL says by spec.sourceSecretRef whose it is.
        environment += secret_env("HF_TOKEN", hub_token)
    return environment


def _address(model: DesiredModel, options: RenderOptions) -> str:
    source = model.source
    if source.kind is SourceKind.REPOSITORY:
        return repository_url(source, options.hub_url)
    return hub_location(source.download_address, options.hub_url)


def cache_prep(options: RenderOptions, *, group: int, volume: str, mount: str, name: str = "model-cache-prep") -> Json:
    """Build the container that lets `group` write to a cache which a storage driver may hand out as root's alone."""
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
    """Tell whether the kubelet would refuse a container of uid 0; the pod's fsGroup must then do for the cache."""
    return pod_security.get("runAsNonRoot") is True


def _inherited_identity(pod_security: Json) -> Json:
    identity: Json = {field: pod_security[field] for field in ("runAsUser", "runAsGroup") if field in pod_security}
    if must_not_be_root(pod_security) and "runAsUser" not in identity:
        # The image names its user; the kubelet can prove only a number to be somebody else than root.
        identity["runAsUser"] = CURL_UID
    return identity


@functools.cache
def download_script() -> str:
    """Return the script without its comments: it is stored once with each Deployment."""
    return script_without_comments("model_download.sh")


def script_by_version(text: str) -> str:
    """Replace the script in canonical JSON by what stands for its version, for a hash of the result."""
    return text.replace(*_in_json())


@functools.cache
def _in_json() -> tuple[str, str]:
    # Deployments made before there was a version carry hashes over the text of that time: it stands for version 1.
    stand_in = (
        script_without_comments("model_download.v1.sh")
        if SCRIPT_VERSION == 1
        else f"herdsman downloader {SCRIPT_VERSION}"
    )
    return json.dumps(download_script()), json.dumps(stand_in)


def script_without_comments(file: str) -> str:
    """Read a shell script of this package, less what only its readers need."""
    text = importlib.resources.files("components").joinpath(file).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#")) + "\n"
