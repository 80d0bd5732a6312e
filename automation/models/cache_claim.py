"""One model cache: its claim is read and cleaned through a pod that mounts it, because there is no other way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from automation.models.cache_inventory import (
    START_TIMEOUT_S,
    Directory,
    check_bound,
    find_node,
    parse_directories,
    parse_outcomes,
    run_pod,
)
from components.model_cache import inspector_pod, pruning_pod
from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json


@dataclass(frozen=True)
class CacheClaim:
    """A claim with model files.

    Its methods raise CacheUnreachable, InventoryBroken, and KubeError. `start_timeout_s`: seconds that a pod may take
    to start.
    """

    client: KubeClient
    claim: Json
    options: RenderOptions
    start_timeout_s: float = START_TIMEOUT_S

    @property
    def namespace(self) -> str:
        return str(self.claim["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.claim["metadata"]["name"])

    def directories(self) -> list[Directory]:
        """Return the models that are in the cache."""
        check_bound(self.claim)
        build = partial(inspector_pod, options=self.options)
        return parse_directories(self._run(build))

    def delete(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete the directories of these keys. Return what became of each: deleted, gone, busy or failed."""
        build = partial(pruning_pod, keys=keys, options=self.options)
        return dict.fromkeys(keys, "failed") | parse_outcomes(self._run(build))

    def _run(self, build: partial[Json]) -> str:
        node = find_node(self.claim, self.client.list(kinds.PODS, self.namespace)["items"])
        placed = partial(build, namespace=self.namespace, claim=self.name, node=node)
        return run_pod(self.client, placed, namespace=self.namespace, start_timeout_s=self.start_timeout_s)
