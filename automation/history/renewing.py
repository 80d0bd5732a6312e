"""Writes the revisions of earlier releases anew, with `data` in the form that the API server lets others patch.

Called by `recorder`, in its thread, when a loop starts. Earlier releases sent `data` with its keys in the order of the
custom resource. The API server then refuses every patch, also that of the garbage collector, which takes owner
references off when a service is deleted with the policy Orphan. `data` is immutable, so the revision is deleted and
made again, under its name and with its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from automation.cache.owners import selector_of
from automation.history import revision
from automation.workqueue.backoff import backoff_s
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from kubeapi.json_types import Json
from program.dialects.registry import KINDS

log = structlog.get_logger(__name__)

_PAGE = 100
_TRIES = 5
_KEPT = ("name", "namespace", "labels", "annotations", "ownerReferences", "finalizers")


def renew(
    client: KubeClient, *, namespaces: Iterable[str], has: Callable[[str], bool], pause: Callable[[float], object]
) -> int:
    """Renew the old revisions of services in these namespaces (none: in all), where `has` takes the namespace.

    Returns how many. `pause` sleeps for so many seconds. Raises ApiError: what is left is renewed by the next call.
    """
    count = 0
    for dialect in KINDS:
        selector = f"{selector_of(dialect)},!{revision.LABEL_FORMAT}"
        for namespace in tuple(namespaces) or (None,):
            token: str | None = None
            while True:
                page = client.list(
                    kinds.CONTROLLER_REVISIONS, namespace, label_selector=selector, limit=_PAGE, continue_token=token
                )
                for obj in page["items"]:
                    count += has(obj["metadata"]["namespace"]) and _renew_one(client, obj, pause)
                if not (token := (page.get("metadata") or {}).get("continue")):
                    break
    return count


def _renew_one(client: KubeClient, obj: Json, pause: Callable[[float], object]) -> bool:
    metadata = obj["metadata"]
    if revision.read(obj) is None or metadata.get("deletionTimestamp"):
        return False
    kind, namespace, name = kinds.CONTROLLER_REVISIONS, metadata["namespace"], metadata["name"]
    try:
        client.delete(kind, namespace, name, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
    except (NotFound, Conflict):
        return False  # pruned, or written to meanwhile: the next start looks again
    renewed = renewed_manifest(obj)
    for tries in range(1, _TRIES + 1):
        try:
            client.create(kind, namespace, renewed)
            return True
        except (AlreadyExists, NotFound):
            return False  # the recorder, or the deletion of the namespace, was faster
        except (Forbidden, Invalid):
            raise
        except ApiError as error:
            if tries == _TRIES:
                log.warning("Lost a revision", namespace=namespace, revision=name, error=str(error))
                raise
            pause(backoff_s(tries, base_s=0.5, cap_s=8.0, jitter=0.2))
    return False


def renewed_manifest(obj: Json) -> Json:
    """Build the revision that takes the place of an old one."""
    metadata = {name: value for name, value in obj["metadata"].items() if name in _KEPT}
    metadata["labels"] = {**metadata.get("labels", {}), revision.LABEL_FORMAT: revision.FORMAT}
    recorded_at = obj["metadata"].get("creationTimestamp", "")
    metadata["annotations"] = {revision.ANNOTATION_RECORDED_AT: recorded_at, **metadata.get("annotations", {})}
    kind = kinds.CONTROLLER_REVISIONS
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": metadata,
        "data": obj["data"],
        "revision": obj["revision"],
    }
