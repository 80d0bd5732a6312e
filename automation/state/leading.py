"""Tells whether a loop leads, so that nobody moves the state under it: reads the Leases of `leadership.election`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from automation.leadership.shards import shard_of_lease
from kubeapi.client import KubeClient
from kubeapi.kinds import LEASES


def leaders(client: KubeClient, namespace: str, base: str, *, now: datetime) -> tuple[str, ...]:
    """The holders of loops' Leases that have not run out. Raises KubeError."""
    found = []
    for lease in client.list(LEASES, namespace).get("items") or ():
        spec = lease.get("spec") or {}
        if shard_of_lease(lease["metadata"]["name"], base) is not None and _holds(spec, now):
            found.append(str(spec["holderIdentity"]))
    return tuple(sorted(found))


def _holds(spec: dict[str, Any], now: datetime) -> bool:
    if not spec.get("holderIdentity"):
        return False
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime")).replace("Z", "+00:00"))
    except ValueError:
        return True
    # Clocks of different machines differ; in doubt it is held.
    return (now.astimezone(UTC) - renewed).total_seconds() < 2 * float(spec.get("leaseDurationSeconds") or 15) + 10
