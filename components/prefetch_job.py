"""The Job that fetches a model into its namespace's cache before any service asks for it. Pure.

Called by `automation.models`, which makes it as it is: a Job runs once and is no resource of a stack (docs/adr/0007).
Name, labels and containers are LLMKube's.
"""

from __future__ import annotations

import hashlib

from components import naming
from components.cache_claim import cache_claim
from components.downloader import cache_prep, downloader, location_in_cache, source_mounts
from components.hardware import once
from components.model_files import CACHE_MOUNT, CACHE_VOLUME
from components.object_metadata import owner_reference
from components.options import RenderOptions
from components.rendered import fingerprint_of
from kubeapi.json_types import Json
from program.desired.engines import LlamaCpp
from program.desired.keys import Owner, ServiceKey
from program.desired.model import DesiredModel
from program.desired.service import DesiredService

LABEL_COMPONENT = "app.kubernetes.io/component"
COMPONENT = "model-prefetch"
SELECTOR = f"{LABEL_COMPONENT}={COMPONENT}"
ANNOTATION_WARM = "herdsman.dev/warm"
"""On a Job that `herdsman cache warm` made: it is wanted although the Model asks for no prefetch."""
BACKOFF_LIMIT = 2
TTL_S = 86_400
"""Kubernetes deletes the finished Job after a day; the Model's status remembers that it was done."""
_LONGEST_NAME = 63
"""Pods carry the Job's name as a label."""


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
    """Build the Job; `warm` for one that a person asked for. Its applied hash changes with what is fetched, not how."""
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
        LABEL_COMPONENT: COMPONENT,
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


def _pod_security(options: RenderOptions) -> Json:
    security: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if options.default_fs_group > 0:
        security["fsGroup"] = options.default_fs_group
    return security
