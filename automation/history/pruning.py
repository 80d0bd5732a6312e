"""Removes the revisions beyond the limit of all services, since the limit may have been higher for an earlier loop.

Called by `recorder` once for each start of a loop.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress

from automation.cache.owners import selector_of
from automation.history.revision import ANNOTATION_RESULT
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.rest import METADATA_LIST
from program.dialects.registry import DIALECTS

PAGE_SIZE = 500
_NUMBER = re.compile(r"-v(\d+)(\.[a-z-]+)?$", re.ASCII)


def prune(client: KubeClient, *, kept: int, namespaces: tuple[str, ...], has: Callable[[str], bool]) -> int:
    """Keep the newest `kept` revisions of each service and return how many were removed. Raises KubeError.

    Only those in `namespaces` (none: in all), where `has` takes the namespace.
    """
    removed = 0
    for namespace in namespaces or (None,):
        for dialect in DIALECTS:
            by_owner: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
            for metadata in _listed(client, dialect, namespace):
                number = _NUMBER.search(metadata["name"])
                owner = next((o["uid"] for o in metadata.get("ownerReferences") or () if o.get("controller")), "")
                # A LeaderWorkerSet hands the labels of a service on to revisions of its own.
                recorded = ANNOTATION_RESULT in (metadata.get("annotations") or {})
                if number and owner and recorded and has(metadata["namespace"]):
                    by_owner[(metadata["namespace"], owner)].append((int(number[1]), metadata["name"]))
            for (at, _), found in by_owner.items():
                for _, name in sorted(found, reverse=True)[kept:]:
                    with suppress(NotFound):
                        client.delete(kinds.CONTROLLER_REVISIONS, at, name)
                    removed += 1
    return removed


def _listed(client: KubeClient, dialect: str, namespace: str | None) -> Iterator[Json]:
    """Read metadata alone: the versions themselves are many and large."""
    path, token = kinds.CONTROLLER_REVISIONS.path(namespace), None
    while True:
        query = {"labelSelector": selector_of(dialect), "limit": str(PAGE_SIZE), "continue": token}
        page = client.request("GET", path, query=query, accept=METADATA_LIST)
        yield from (obj["metadata"] for obj in page.get("items") or ())
        token = page["metadata"].get("continue") or None
        if token is None:
            return
