"""The REST mapping: which path serves an apiVersion and kind, learnt from the API server's discovery documents.

Called by `kubeapi.client`; calls back into its GET. The built-in kinds of `kubeapi.kinds` need no request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kubeapi.errors import KindNotServed, NotFound
from kubeapi.kinds import WELL_KNOWN, Kind, group_version_path

BUILT_IN = {
    (kind.api_version, kind.kind): kind for kind in WELL_KNOWN if "." not in kind.group or ".k8s.io" in kind.group
}
"""Served by every supported API server, so never asked for. Kinds of CRDs are asked for: they may be absent."""


class Discovery:
    """A cached REST mapping. Kinds that appear later are found: a miss asks the server once more."""

    def __init__(self, get: Callable[[str], dict[str, Any]]) -> None:
        self._get = get
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str], Kind] = dict(BUILT_IN)

    def mapping(self, api_version: str, kind: str) -> Kind:
        """Return the Kind, asking the server if it is not known yet. Raises KindNotServed, or any ApiError."""
        with self._lock:
            known = self._kinds.get((api_version, kind))
        if known is not None:
            return known
        # Absence is never cached: the CRD may be installed a second later.
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
        """Forget every kind that was learnt: a path answered that nothing is there, so a CRD is gone or changed."""
        with self._lock:
            self._kinds = dict(BUILT_IN)
