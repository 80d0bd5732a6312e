"""The Model controller over one namespace of a real API server; tests start its passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from automation.cache import trim
from automation.models.model_controller import ModelController
from automation.models.model_probe import ModelProbe, ProbeSettings, SourcePolicy
from automation.models.prefetch import Prefetcher
from automation.models.source_credentials import SecretReader
from automation.models.transfers import TransferWatch
from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from program.desired.hub import HUB
from tests.support.controlplane import eventually


class Cluster:
    """The caches and the controller over one namespace; tests start its passes."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        roots: tuple[str, ...],
        *,
        loop: KubeClient | None = None,
        hub_url: str = HUB,
        logs: KubeClient | None = None,
    ) -> None:
        """`loop` is the controller's client, if it is not to have all rights of the test; `logs` reads the logs of
        pods, where there is no kubelet.
        """
        self.ahead_s = 0.0
        self.client = client
        loop = loop or client
        self.namespace = namespace
        self.changed: list[str] = []
        self.requeued: list[float] = []
        self.events: list[tuple[str, str, str]] = []

        def cache(kind: kinds.Kind, transform: Callable[[Json], Json], namespaces: tuple[str, ...] | None) -> Informer:
            return Informer(client, kind, namespaces=namespaces, transform=transform, on_change=lambda old, new: None)

        self.models = cache(kinds.MODELS, trim.custom_resource, (namespace,))
        self.claims = cache(kinds.CLAIMS, trim.claim, (namespace,))
        self.nodes = cache(kinds.NODES, trim.node, None)
        self.probe = ModelProbe(
            SourcePolicy(allowed_remote_hosts=("127.0.0.1",), allowed_host_path_roots=roots),
            hub_url=hub_url,
            read_secret=SecretReader(loop).read,
            settings=ProbeSettings(timeout_s=60.0),
            clock=lambda: time.monotonic() + self.ahead_s,
        )

        def requeue(namespace: str, name: str, delay_s: float = 0.0) -> None:
            self.requeued.append(delay_s)

        self.transfers = TransferWatch(logs or loop, changed=requeue, every_s=0.05)
        self.prefetcher = Prefetcher(
            loop,
            options=RenderOptions(cache_size="1Gi"),
            namespaces=(namespace,),
            changed=requeue,
            requeue=requeue,
            transfers=self.transfers,
        )
        self.controller = ModelController(
            client=loop,
            models=self.models,
            claims=self.claims,
            nodes=self.nodes,
            probe=self.probe,
            requeue=requeue,
            transfers=self.transfers,
            prefetcher=self.prefetcher,
            on_model_changed=lambda namespace, name: self.changed.append(name),
            recorder=self,
            clock=lambda: datetime.now(UTC),
        )
        for informer in self.informers:
            informer.start()
            assert informer.wait_synced(20)

    @property
    def informers(self) -> tuple[Informer, ...]:
        return (self.models, self.claims, self.nodes, self.prefetcher.jobs)

    def stop(self) -> None:
        self.probe.close()
        self.transfers.close()
        for informer in self.informers:
            informer.stop()

    def record(self, obj: Json, *, type: str, reason: str, message: str) -> None:
        self.events.append((obj["metadata"]["name"], type, reason))

    def write(self, name: str, spec: Json) -> None:
        body = {
            "apiVersion": kinds.MODELS.api_version,
            "kind": "Model",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        }
        applied = self.client.apply(kinds.MODELS, self.namespace, body, field_manager="user")
        self.seen(name, applied)

    def seen(self, name: str, obj: Json) -> None:
        """Wait until the cache holds an object as it was written."""
        version = int(obj["metadata"]["resourceVersion"])

        def caught_up() -> bool:
            cached = self.models.get(self.namespace, name)
            return cached is not None and int(cached["metadata"]["resourceVersion"]) >= version

        eventually(caught_up, what=f"the cache to see {name}")

    def settle(self, name: str) -> Json:
        """Run passes until nothing is pending, and return the status from the API server."""
        self.controller.reconcile(self.namespace, name)
        eventually(self.probe.idle, what="the probe to be idle")
        self.controller.reconcile(self.namespace, name)
        live = self.client.get(kinds.MODELS, self.namespace, name)
        self.seen(name, live)
        status = live["status"]
        assert isinstance(status, dict)
        return status

    def pass_recheck_interval(self) -> None:
        """Advance the clock past the interval after which every source is inspected again."""
        self.ahead_s += 4000.0

    def version(self, name: str) -> str:
        return str(self.client.get(kinds.MODELS, self.namespace, name)["metadata"]["resourceVersion"])


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
