"""The objects of a model cache: its claim, the Job that fills it, and the pods that list and prune it. Pure.

`components.render` makes the claim. `automation.models` makes Jobs and pods; they run once and are not resources of a
stack (docs/adr/0007). The pods that list and prune do not run as root, and have a deadline, so that an interrupted
command leaves none running. Names, labels and containers of claim and Job are LLMKube's.
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
    source_mounts,
)
from components.model_files import CACHE_MOUNT, CACHE_VOLUME
from components.naming import adoption, owner_reference
from components.options import RenderOptions
from components.pod_template import once
from components.rendered import RenderedObject, fingerprint_of
from components.scripts import script_without_comments
from kubeapi.json_types import Json
from program.desired.engines import LlamaCpp
from program.desired.keys import Owner, ServiceKey
from program.desired.model import DesiredModel
from program.desired.service import DesiredService

LABEL_COMPONENT = "app.kubernetes.io/component"
PREFETCH = "model-prefetch"
SELECTOR = f"{LABEL_COMPONENT}={PREFETCH}"
ANNOTATION_WARM = "herdsman.dev/warm"
"""On a Job that `herdsman cache warm` made: the Job is wanted even if the Model asks for no prefetch."""
BACKOFF_LIMIT = 2
TTL_S = 86_400
"""Kubernetes deletes a finished Job after this time, 24 h; the Model's status keeps the result."""
_LONGEST_NAME = 63
"""Pods carry the Job's name as a label value, which has at most 63 characters."""
INSPECTOR = "cache-inspector"
DEADLINE_S = 600
KEY = re.compile(r"[0-9a-f]{16}")
"""The form of the directory name that LLMKube and Herdsman give to a model."""


def cache_claim(desired: DesiredService, options: RenderOptions) -> RenderedObject:
    """Build the claim.

    A shared claim is the same for all services of the namespace. No service owns it, so that no deletion removes it. A
    claim of one service is deleted with the service.
    """
    metadata: Json = {
        "name": naming.cache_claim(desired.key.name, options.claim_mode),
        "namespace": desired.key.namespace,
        # LLMKube's labels, including `managed-by`: a claim that LLMKube made does not change.
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
    """Return the name of a model's Job; a name over 63 characters is cut and gets a digest of the model's name."""
    name = f"{model}-prefetch"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(model.encode()).hexdigest()[:8]
    return f"{model[: _LONGEST_NAME - 18].rstrip('-.')}-{digest}-prefetch"


def prefetch_job(
    model: DesiredModel, namespace: str, owner: Owner, options: RenderOptions, *, warm: bool = False
) -> Json:
    """Build the Job that downloads a model; `warm` marks a Job that a person asked for.

    The applied hash changes with the files to download, not with the containers that download them.
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
            # To block the deletion of a Model, the loop would need the right to its finalizers.
            "ownerReferences": [{**owner_reference(owner), "blockOwnerDeletion": False}],
        },
        "spec": {
            "backoffLimit": BACKOFF_LIMIT,
            "ttlSecondsAfterFinished": TTL_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def namespace_claim(model: DesiredModel, namespace: str, options: RenderOptions) -> Json:
    """Build the claim that the Job writes to, which all services of the namespace share."""
    # The claim does not depend on the service, so any service of the namespace will do.
    anyone = DesiredService(
        key=ServiceKey("llmkube", namespace, model.name), owner=None, model=model, engine=LlamaCpp()
    )
    return cache_claim(anyone, options.model_copy(update={"claim_mode": "shared"})).manifest


def inspector_pod(name: str, namespace: str, claim: str, options: RenderOptions, *, node: str = "") -> Json:
    """Build a pod that lists the content of a cache; it mounts the claim read-only."""
    return _inspecting_pod(
        name, namespace, claim, options, node=node, command=_command("cache_listing.sh"), read_only=True
    )


def pruning_pod(
    name: str, namespace: str, claim: str, keys: Sequence[str], options: RenderOptions, *, node: str = ""
) -> Json:
    """Build a pod that deletes directories of a cache. It skips a directory in which a download is under way.

    Raises ValueError for a key that is not a cache key.
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
        # The downloader sets the ownership; a change of the ownership of terabytes of files would take minutes.
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
        # A ReadWriteOnce volume can be mounted only on the node that has it.
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
