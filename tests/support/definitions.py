"""CustomResourceDefinitions on a real API server, and their conditions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from program.dialects.crds.definitions import crd_documents
from tests.support import controlplane

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_crds(api: controlplane.Api) -> None:
    """Apply Herdsman's CRDs and wait until the API server serves them."""
    establish(api, crd_documents())


def establish(api: controlplane.Api, documents: Iterable[dict[str, Any]]) -> None:
    """Apply CRDs and wait until the API server serves each of their versions that is to be served."""
    applied = tuple(documents)
    for document in applied:
        api.apply(f"{CRDS}/{document['metadata']['name']}", document)
    for spec in (document["spec"] for document in applied):
        for version in (each for each in spec["versions"] if each["served"]):
            path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
            controlplane.eventually(functools.partial(api.serves, path), what=f"{path} to be served")


@contextlib.contextmanager
def established(api: controlplane.Api, documents: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Provide CRDs while the block lasts, on a cluster that other tests use as well."""
    mine = tuple(documents)
    try:
        establish(api, mine)
        yield
    finally:
        for document in mine:
            api.delete(f"{CRDS}/{document['metadata']['name']}")
        await_removals(api)


def await_removals(api: controlplane.Api) -> set[str]:
    """Wait until no CRD is being deleted. Returns the names of the CRDs that exist."""

    def look() -> list[dict[str, Any]] | None:
        found = (api.get(CRDS) or {})["items"]
        return None if any("deletionTimestamp" in each["metadata"] for each in found) else found or [{}]

    left = controlplane.eventually(look, what="the removed definitions to be gone")
    return {each["metadata"]["name"] for each in left if each}


def holds(obj: dict[str, Any] | None, condition: str) -> bool:
    """Return whether a condition of an object is true."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)
