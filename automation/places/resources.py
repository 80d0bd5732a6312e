"""Lists the custom resources that refer to services: ModelRouters, ModelPools and LoRAAdapters."""

from __future__ import annotations

from contextlib import suppress

from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json
from program.dialects.registry import REFERRERS


def list_resources(client: KubeClient, namespace: str | None) -> list[Json]:
    """Return the resources of the kinds that the caller may list and that the cluster serves; None for all namespaces.

    Raises KubeError.
    """
    found: list[Json] = []
    for kind in REFERRERS.values():
        with suppress(NotFound, Forbidden):
            found += client.list(kind, namespace)["items"]
    return found
