"""The REST mapping: the paths of apiVersions and kinds, from the API server's discovery documents.

Called by `kubeapi.rest`, whose GET it calls. The built-in kinds of `kubeapi.kinds` need no request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from kubeapi.errors import KindNotServed, NotFound
from kubeapi.kinds import WELL_KNOWN, Kind, group_version_path

BUILT_IN = {
    (kind.api_version, kind.kind): kind for kind in WELL_KNOWN if "." not in kind.group or ".k8s.io" in kind.group
}
"""Kinds that all supported API servers serve, so that no request is needed. Kinds of CRDs are not among them."""

ACCEPT = {"/apis": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}
"""Accept headers by path. This one requests all groups with their kinds in one document (Kubernetes 1.30 and later)."""


def served(get: Callable[[str], dict[str, Any]], kinds: Iterable[Kind]) -> dict[Kind, bool]:
    """Return whether the server serves each of some kinds, usually by one request. Raises any ApiError.

    A kind is left out if its group version is stale: the server that serves the group does not answer.
    """
    document = get("/apis")
    if document.get("kind") != "APIGroupDiscoveryList":
        return _served_by_group(get, document, tuple(kinds))
    found: set[tuple[str, str]] = set()
    stale: set[str] = set()
    for group in document.get("items") or ():
        for version in group.get("versions") or ():
            api_version = f"{group['metadata']['name']}/{version['version']}"
            if version.get("freshness") == "Stale":
                stale.add(api_version)
            for resource in version.get("resources") or ():
                found.add((api_version, (resource.get("responseKind") or {}).get("kind", "")))
    return {kind: (kind.api_version, kind.kind) in found for kind in kinds if kind.api_version not in stale}


def _served_by_group(
    get: Callable[[str], dict[str, Any]], document: dict[str, Any], kinds: tuple[Kind, ...]
) -> dict[Kind, bool]:
    versions = {v["groupVersion"] for group in document.get("groups") or () for v in group.get("versions") or ()}
    found = {}
    for api_version in {kind.api_version for kind in kinds}:
        resources: list[dict[str, Any]] = []
        if api_version in versions:
            try:
                resources = get(group_version_path(api_version)).get("resources") or []
            except NotFound:
                resources = []
        names = {resource["name"] for resource in resources}
        found.update({kind: kind.plural in names for kind in kinds if kind.api_version == api_version})
    return found


class Discovery:
    """A cached REST mapping. For an unknown kind it asks the server again, so that it finds kinds that appear later."""

    def __init__(self, get: Callable[[str], dict[str, Any]]) -> None:
        self._get = get
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str], Kind] = dict(BUILT_IN)

    def mapping(self, api_version: str, kind: str) -> Kind:
        """Return the Kind; an unknown one is requested from the server. Raises KindNotServed, or any ApiError."""
        with self._lock:
            known = self._kinds.get((api_version, kind))
        if known is not None:
            return known
        # Absence is never cached, because the CRD may be installed a second later.
        try:
            document = self._get(group_version_path(api_version))
        except NotFound as error:
            raise KindNotServed(404, "NotFound", f"no API group version {api_version!r} is served") from error
        found = {
            (api_version, resource["kind"]): Kind(
                api_version, resource["kind"], resource["name"], bool(resource["namespaced"])
            )
            for resource in document.get("resources") or ()
            if "/" not in resource["name"]
        }
        with self._lock:
            self._kinds.update(found)
        if (api_version, kind) not in found:
            raise KindNotServed(404, "NotFound", f"{api_version} serves no kind {kind!r}")
        return found[(api_version, kind)]

    def clear(self) -> None:
        """Remove all kinds that were not built in.

        Called after a path was not found, since a CRD is gone or changed.
        """
        with self._lock:
            self._kinds = dict(BUILT_IN)
