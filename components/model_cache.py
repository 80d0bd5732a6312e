"""The objects around a model cache: its claim, the Job that fills it, the pods that look into it. Pure.

`components.render` makes the claim. `automation.models` makes Jobs and pods, which run once and are no resource of a
stack (docs/adr/0007). The pods run as a user that is not root and end by themselves, so that no interrupted command
leaves one running. Names, labels and containers of claim and Job are LLMKube's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from components import naming
from components.downloader import (
    CURL_UID,
    cache_prep,
    downloader,
    location_in_cache,
    script_without_comments,
    source_mounts,
)
from components.model_files import CACHE_MOUNT, CACHE_VOLUME
from components.naming import adoption, owner_reference
from components.options import RenderOptions
from components.pod_template import once
from components.rendered import RenderedObject, fingerprint_of
from kubeapi.json_types import Json
from program.desired.engines import LlamaCpp
from program.desired.keys import Owner, ServiceKey
from program.desired.model import DesiredModel
from program.desired.service import DesiredService

LABEL_COMPONENT = "app.kubernetes.io/component"
PREFETCH = "model-prefetch"
SELECTOR = f"{LABEL_COMPONENT}={PREFETCH}"
ANNOTATION_WARM = "herdsman.dev/warm"
"""On a Job that `herdsman cache warm` made: it is wanted although the Model asks for no prefetch."""
BACKOFF_LIMIT = 2
TTL_S = 86_400
"""Kubernetes deletes the finished Job after a day; the Model's status remembers that it was done."""
_LONGEST_NAME = 63
"""Pods carry the Job's name as a label."""
INSPECTOR = "cache-inspector"
DEADLINE_S = 600
KEY = re.compile(r"[0-9a-f]{16}")
"""The name of a model's directory, as LLMKube and Herdsman give it."""


def cache_claim(desired: DesiredService, options: RenderOptions) -> RenderedObject:
    """Build the claim.

    That of a namespace is the same for all services and owned by none, so that no delete takes it; a service's own
    goes with the service.
    """
    metadata: Json = {
        "name": naming.cache_claim(desired.key.name, options.claim_mode),
        "namespace": desired.key.namespace,
        # LLMKube's labels, its managed-by too: a claim that it made stays byte for byte what it was.
        "labels": {
            "app.kubernetes.io/name": "llmkube",
            "app.kubernetes.io/component": "model-cache",
            "app.kubernetes.io/managed-by": "llmkube-controller",
        },
    }
    if notes := adoption(desired):
        metadata["annotations"] = notes
    if options.claim_mode == "perService" and desired.owner is not None:
        metadata["ownerReferences"] = [owner_reference(desired.owner)]
    spec: Json = {
        "accessModes": [options.cache_access_mode],
        "resources": {"requests": {"storage": options.cache_size}},
    }
    if options.cache_storage_class:
        spec["storageClassName"] = options.cache_storage_class
    manifest: Json = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    return RenderedObject("claim", naming.TYPE_CACHE, manifest)


def prefetch_name(model: str) -> str:
    """Name a model's Job; a name that would be too long ends in a digest of itself."""
    name = f"{model}-prefetch"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(model.encode()).hexdigest()[:8]
    return f"{model[: _LONGEST_NAME - 18].rstrip('-.')}-{digest}-prefetch"


def prefetch_job(
    model: DesiredModel, namespace: str, owner: Owner, options: RenderOptions, *, warm: bool = False
) -> Json:
    """Build the Job; `warm` for one that a person asked for.

    Its applied hash changes with the files to fetch, not with the way to fetch them.
    """
    place = location_in_cache(model, CACHE_MOUNT)
    volumes, mounts = source_mounts(model, options, "host-model")
    claim: Json = {"name": CACHE_VOLUME, "persistentVolumeClaim": {"claimName": naming.CACHE_CLAIM}}
    prep = cache_prep(options, group=options.default_fs_group, volume=CACHE_VOLUME, mount=CACHE_MOUNT)
    fetch = downloader(
        model, place, options, mounts=[{"name": CACHE_VOLUME, "mountPath": CACHE_MOUNT}, *mounts], pod_security={}
    )
    done: Json = {
        "name": "prefetch-done",
        "image": options.init_image,
        "command": ["sh", "-c", 'echo "The model is in the cache"'],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    labels = {
        "app.kubernetes.io/name": "llmkube",
        LABEL_COMPONENT: PREFETCH,
        "app.kubernetes.io/managed-by": "llmkube-controller",
        naming.LABEL_MODEL: model.name,
    }
    pod: Json = {
        "restartPolicy": "Never",
        "securityContext": _pod_security(options),
        "initContainers": [prep, fetch],
        "containers": [done],
        "volumes": [claim, *volumes],
    }
    if model.prefetch_tolerations:
        pod["tolerations"] = once(model.prefetch_tolerations)
    what = [model.source.address, model.files, model.mmproj, model.sha256, model.source_secret, place.path]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": prefetch_name(model.name),
            "namespace": namespace,
            "labels": labels,
            "annotations": {
                naming.ANNOTATION_APPLIED_HASH: fingerprint_of(what),
                **({ANNOTATION_WARM: "true"} if warm else {}),
            },
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            "backoffLimit": BACKOFF_LIMIT,
            "ttlSecondsAfterFinished": TTL_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def namespace_claim(model: DesiredModel, namespace: str, options: RenderOptions) -> Json:
    """Build the claim that the Job writes to: the one that all services of the namespace share."""
    # The claim is the same whichever service asks for it.
    anyone = DesiredService(
        key=ServiceKey("llmkube", namespace, model.name), owner=None, model=model, engine=LlamaCpp()
    )
    return cache_claim(anyone, options.model_copy(update={"claim_mode": "shared"})).manifest


def inspector_pod(name: str, namespace: str, claim: str, options: RenderOptions, *, node: str = "") -> Json:
    """Build a pod that prints what lies in a cache; it mounts the claim read-only."""
    return _inspecting_pod(
        name, namespace, claim, options, node=node, command=_command("cache_listing.sh"), read_only=True
    )


def pruning_pod(
    name: str, namespace: str, claim: str, keys: Sequence[str], options: RenderOptions, *, node: str = ""
) -> Json:
    """Build a pod that deletes directories of a cache, and none in which a download is under way.

    Raises ValueError for a key that is none.
    """
    for key in keys:
        if not KEY.fullmatch(key):
            raise ValueError(f"`{key}` is not a cache key")
    command = _command("cache_deletion.sh", *keys)
    return _inspecting_pod(name, namespace, claim, options, node=node, command=command, read_only=False)


def _command(file: str, *keys: str) -> list[str]:
    return ["sh", "-c", script_without_comments(file), "sh", CACHE_MOUNT, *keys]


def _inspecting_pod(
    name: str,
    namespace: str,
    claim: str,
    options: RenderOptions,
    *,
    node: str,
    command: list[str],
    read_only: bool,
) -> Json:
    security: Json = {
        "runAsUser": CURL_UID,
        "runAsNonRoot": True,
        **_pod_security(options),
    }
    if options.default_fs_group > 0:
        # Ownership was set when the files came; going over terabytes again would take minutes.
        security["fsGroupChangePolicy"] = "OnRootMismatch"
    container: Json = {
        "name": "cache",
        "image": options.init_image,
        "command": command,
        "volumeMounts": [{"name": CACHE_VOLUME, "mountPath": CACHE_MOUNT, "readOnly": read_only}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Json = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_S,
        "automountServiceAccountToken": False,
        "securityContext": security,
        "containers": [container],
        "volumes": [{"name": CACHE_VOLUME, "persistentVolumeClaim": {"claimName": claim}}],
    }
    if node:
        # A volume that only one node may mount at a time is looked at where it is.
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_COMPONENT: INSPECTOR, "app.kubernetes.io/managed-by": "herdsman"},
        },
        "spec": spec,
    }


def _pod_security(options: RenderOptions) -> Json:
    security: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if options.default_fs_group > 0:
        security["fsGroup"] = options.default_fs_group
    return security
