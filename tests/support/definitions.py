"""CustomResourceDefinitions on a real API server, and what it says of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from tests.support import controlplane

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def establish(api: controlplane.Api, documents: Iterable[dict[str, Any]]) -> None:
    """Apply CRDs and wait until each is established."""
    paths = []
    for document in documents:
        paths.append(f"{CRDS}/{document['metadata']['name']}")
        api.apply(paths[-1], document)
    for path in paths:
        controlplane.eventually(functools.partial(_is_established, api, path), what=f"{path} to be established")


def _is_established(api: controlplane.Api, path: str) -> bool:
    return holds(api.get(path), "Established")


def holds(obj: dict[str, Any] | None, condition: str) -> bool:
    """Tell whether a condition of an object is true."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)
