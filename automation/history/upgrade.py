"""Brings the revisions that earlier loops wrote up to date. Called by `recorder`, in its thread, when a loop starts.

`prune` deletes the revisions beyond the limit of all services: the limit may have been higher for an earlier loop.

`renew` rewrites the revisions of development versions that sent `data` with its keys in the order of the custom
resource. The API server refuses every patch of such a revision, also that of the garbage collector, which removes owner
references when a service is deleted with the policy Orphan. `data` is immutable, so the revision is deleted and created
again, with its name and number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from automation.cache.owners import selector_of
from automation.history import revision
from automation.workqueue.backoff import backoff_s
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from kubeapi.json_types import Json
from kubeapi.rest import METADATA_LIST
from program.dialects.registry import DIALECTS, REFERRERS

log = structlog.get_logger(__name__)

UNSETTLED = "unsettled"
"""In place of a time, where a version may be applied without a revision that says so."""
METADATA_PAGE_SIZE = 500
PAGE_SIZE = 100
_TRIES = 5
_NUMBER = re.compile(r"-v(\d+)(\.[a-z-]+)?$", re.ASCII)
_KEPT = ("name", "namespace", "labels", "annotations", "ownerReferences", "finalizers")


@dataclass(frozen=True)
class Pruned:
    """The result of `prune`."""

    deleted: int
    """The number of deleted revisions."""
    changed_at: Mapping[str, str]
    """The time of the edit that the newest revision records, by the uid of its custom resource. It is empty for a
    revision that names none, and `UNSETTLED` for one whose run failed."""


def prune(client: KubeClient, *, kept: int, namespaces: tuple[str, ...], has: Callable[[str], bool]) -> Pruned:
    """Keep the newest `kept` revisions of each service. Raises KubeError.

    Only revisions in `namespaces` (none: in all) whose namespace `has` accepts are deleted.
    """
    deleted, changed_at = 0, dict[str, str]()
    for namespace in namespaces or (None,):
        for dialect in (*DIALECTS, *REFERRERS):
            by_owner: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
            for metadata in _list_metadata(client, dialect, namespace):
                number = _NUMBER.search(metadata["name"])
                owner = next((o["uid"] for o in metadata.get("ownerReferences") or () if o.get("controller")), "")
                # A LeaderWorkerSet copies the labels of a service to its revisions.
                annotations = metadata.get("annotations") or {}
                result = annotations.get(revision.ANNOTATION_RESULT)
                if number and owner and result is not None and has(metadata["namespace"]):
                    time = annotations.get(revision.ANNOTATION_CHANGED_AT, "")
                    time = time if revision.made_pods(result) else UNSETTLED
                    by_owner[(metadata["namespace"], owner)].append((int(number[1]), metadata["name"], time))
            for (at, owner), found in by_owner.items():
                found.sort(reverse=True)
                changed_at[owner] = found[0][2]
                for _, name, _ in found[kept:]:
                    with suppress(NotFound):
                        client.delete(kinds.CONTROLLER_REVISIONS, at, name)
                    deleted += 1
    return Pruned(deleted, changed_at)


def renew(
    client: KubeClient, *, namespaces: Iterable[str], has: Callable[[str], bool], pause: Callable[[float], object]
) -> int:
    """Rewrite the old revisions in these namespaces (none: in all) that `has` accepts, and return how many.

    `pause` sleeps for a number of seconds. Raises ApiError: the next call rewrites the rest.
    """
    count = 0
    for dialect in DIALECTS:
        selector = f"{selector_of(dialect)},!{revision.LABEL_FORMAT}"
        for namespace in tuple(namespaces) or (None,):
            token: str | None = None
            while True:
                page = client.list(
                    kinds.CONTROLLER_REVISIONS,
                    namespace,
                    label_selector=selector,
                    limit=PAGE_SIZE,
                    continue_token=token,
                )
                for obj in page["items"]:
                    count += has(obj["metadata"]["namespace"]) and _renew_one(client, obj, pause)
                if not (token := (page.get("metadata") or {}).get("continue")):
                    break
    return count


def _list_metadata(client: KubeClient, dialect: str, namespace: str | None) -> Iterator[Json]:
    """Yield the metadata of revisions without their data, which are many and large."""
    path, token = kinds.CONTROLLER_REVISIONS.path(namespace), None
    while True:
        query = {"labelSelector": selector_of(dialect), "limit": str(METADATA_PAGE_SIZE), "continue": token}
        page = client.request("GET", path, query=query, accept=METADATA_LIST)
        yield from (obj["metadata"] for obj in page.get("items") or ())
        token = page["metadata"].get("continue") or None
        if token is None:
            return


def _renew_one(client: KubeClient, obj: Json, pause: Callable[[float], object]) -> bool:
    metadata = obj["metadata"]
    if revision.read(obj) is None or metadata.get("deletionTimestamp"):
        return False
    kind, namespace, name = kinds.CONTROLLER_REVISIONS, metadata["namespace"], metadata["name"]
    try:
        client.delete(kind, namespace, name, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
    except (NotFound, Conflict):
        return False  # deleted or changed meanwhile: the next start tries again
    renewed = renewed_manifest(obj)
    for tries in range(1, _TRIES + 1):
        try:
            client.create(kind, namespace, renewed)
            return True
        except (AlreadyExists, NotFound):
            return False  # the recorder has created it, or the namespace is gone
        except (Forbidden, Invalid):
            raise
        except ApiError as error:
            if tries == _TRIES:
                log.warning("Lost a revision", namespace=namespace, revision=name, error=str(error))
                raise
            pause(backoff_s(tries, base_s=0.5, cap_s=8.0, jitter=0.2))
    return False


def renewed_manifest(obj: Json) -> Json:
    """Build the revision that replaces an old one."""
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
