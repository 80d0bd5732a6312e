"""A cluster of simulated GPU nodes (kwok) beside a real control plane, and many services on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.priorities import PRIORITIES
from tests.support.controlplane import tool_or_skip
from tests.support.loop import install_crds, model
from tools import fake_nodes
from tools.localcluster import LocalCluster

GPU = "nvidia.com/gpu"


class Farm:
    """A cluster whose nodes simulate pods."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client

    def add_nodes(self, count: int, *, gpus: int, prefix: str = "gpu") -> None:
        nodes = [fake_nodes.node(f"{prefix}-{number}", extended={GPU: gpus}) for number in range(count)]
        self._all(lambda node: self.client.create(kinds.NODES, None, node), nodes)

    def namespace(self, name: str, **labels: str) -> str:
        """Create a namespace with a Model whose weights are never fetched."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.client.create(kinds.NAMESPACES, None, body)
        model(self.client, name)
        return name

    def services(self, namespace: str, names: list[str], **spec: Any) -> None:
        """Create services that each request one GPU unless `spec` sets another number; their pods need no volume."""
        wanted = {
            "modelRef": "base",
            "runtime": "generic",
            "image": "registry.invalid/engine:1",
            "resources": {"gpu": 1},
            **spec,
        }
        bodies = [
            {
                "apiVersion": kinds.INFERENCE_SERVICES.api_version,
                "kind": "InferenceService",
                "metadata": {"name": name},
                "spec": wanted,
            }
            for name in names
        ]
        self._all(lambda body: self.client.create(kinds.INFERENCE_SERVICES, namespace, body), bodies)

    def remove(self, namespace: str, *names: str) -> None:
        self._all(lambda name: self.client.delete(kinds.INFERENCE_SERVICES, namespace, name), list(names))

    def statuses(self, namespace: str) -> dict[str, Json]:
        """The status of each service of a namespace by name."""
        items = self.client.list(kinds.INFERENCE_SERVICES, namespace)["items"]
        return {item["metadata"]["name"]: item.get("status") or {} for item in items}

    def phases(self, namespace: str) -> dict[str, str]:
        return {name: status.get("phase", "") for name, status in self.statuses(namespace).items()}

    def queue(self, namespace: str) -> list[str]:
        """The services that wait for a GPU, in the order of the positions in their statuses."""
        waiting = {n: s["queuePosition"] for n, s in self.statuses(namespace).items() if s.get("queuePosition")}
        return sorted(waiting, key=lambda name: waiting[name])

    def by_priority_and_age(self, namespace: str) -> list[str]:
        """All services of a namespace in the order in which they should get GPUs."""
        items = self.client.list(kinds.INFERENCE_SERVICES, namespace)["items"]
        ordered = sorted(
            (-PRIORITIES[item["spec"]["priority"]], item["metadata"]["creationTimestamp"], item["metadata"]["name"])
            for item in items
        )
        return [name for _, _, name in ordered]

    @staticmethod
    def _all(act: Any, items: list[Any]) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(act, items))


@contextlib.contextmanager
def farm(cluster: LocalCluster, directory: Path) -> Iterator[Farm]:
    """Prepare a fresh control plane: CRDs, PriorityClasses, and kwok while the block lasts."""
    tool_or_skip("kwok")
    client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    try:
        install_crds(client)
        for document in priority_classes():
            client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)
        with fake_nodes.simulated(cluster.kubeconfig, directory):
            yield Farm(client)
    finally:
        client.close()
