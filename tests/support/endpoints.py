"""The part of the loop that publishes the endpoints of hosts, for tests of agents, which publish none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from automation.cache import trim_hosts
from automation.hosts.endpoints import HostEndpoints
from automation.hosts.liveness import Liveness
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer


@contextlib.contextmanager
def publishing(
    client: KubeClient,
    *,
    namespaces: tuple[str, ...] = (),
    lease_namespace: str = SYSTEM_NAMESPACE,
    liveness: Liveness | None = None,
    **options: Any,
) -> Iterator[HostEndpoints]:
    """Publish endpoints while the block lasts. The hosts' Leases decide which are alive, unless `liveness` is given."""
    told = liveness or Liveness()
    made = HostEndpoints(client, liveness=told, namespaces=namespaces, **options)
    told.on_change = made.host_liveness_changed
    leases = Informer(
        client,
        kinds.LEASES,
        namespaces=[lease_namespace],
        label_selector="herdsman.dev/host",
        transform=trim_hosts.lease,
        on_change=lambda old, new: told.seen((new or old or {})["host"], new),
    )
    if liveness is None:
        leases.start()
        assert leases.wait_synced(60)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        leases.stop()


def living(*hosts: str) -> Liveness:
    """Return a `Liveness` that reports these hosts as alive."""
    made = Liveness()
    for host in hosts:
        made.seen(host, {"renewed": "1", "holder": "agent", "duration_s": 3600, "fenced": ""})
    return made


def make_host(client: KubeClient, name: str, *, address: str = "10.1.2.3", **spec: Any) -> None:
    """Create a Host whose agent has reported its address."""
    body = {"apiVersion": kinds.HOSTS.api_version, "kind": kinds.HOSTS.kind, "metadata": {"name": name}, "spec": spec}
    client.apply(kinds.HOSTS, None, body, field_manager="tests", force=True)
    client.patch(kinds.HOSTS, None, name, {"status": {"address": address}}, subresource="status")
