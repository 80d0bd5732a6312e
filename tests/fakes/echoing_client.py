"""A client without an API server: it holds a list of objects and returns every object that is written.

Tests use it to pass arbitrary files to code that uses an API server. A real API server would refuse most of these files
before the rest of the program reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kubeapi.client import KubeClient
from kubeapi.errors import KindNotServed, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import WELL_KNOWN, Kind
from kubeapi.rest import JSON


class EchoingClient(KubeClient):
    """Reads return `objects`; every write returns the object that was sent."""

    def __init__(self, objects: Iterable[Json] = ()) -> None:
        self._objects = list(objects)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Json:
        """Respond as an API server does to a valid request."""
        if method != "GET":
            sent = json.loads(json.dumps(body, allow_nan=False).encode("utf-8"))
            assert isinstance(sent, dict)
            return sent
        if path == "/apis":
            return {"kind": "APIGroupDiscoveryList", "items": [_discovered(kind) for kind in WELL_KNOWN if kind.group]}
        listed = [each for each in self._objects if path in _paths(each, None)]
        if listed or path.rpartition("/")[2] in {kind.plural for kind in WELL_KNOWN}:
            return {"items": listed, "metadata": {}}
        found = [each for each in self._objects if path in _paths(each, each["metadata"]["name"])]
        if not found:
            raise NotFound(404, "NotFound", "is not there")
        return found[0]

    def mapping(self, api_version: str, kind: str) -> Kind:
        """Return a kind from the list of known kinds."""
        for each in WELL_KNOWN:
            if (each.api_version, each.kind) == (api_version, kind):
                return each
        raise KindNotServed(404, "NotFound", f"{api_version} {kind} is not served")


def _discovered(kind: Kind) -> Json:
    resource = {"resource": kind.plural, "responseKind": {"kind": kind.kind}}
    version = kind.api_version.rpartition("/")[2]
    return {"metadata": {"name": kind.group}, "versions": [{"version": version, "resources": [resource]}]}


def _paths(obj: Json, name: str | None) -> set[str]:
    metadata = obj["metadata"]
    found = [each for each in WELL_KNOWN if (each.api_version, each.kind) == (obj["apiVersion"], obj["kind"])]
    return {each.path(metadata.get("namespace"), name) for each in found}
