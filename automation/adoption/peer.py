"""Tells whether LLMKube's own controller runs. Two controllers of the same objects must not.

LLMKube has no switch for one service, so where it runs it works on all of them. Called by `herdsman adopt`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden

Object = dict[str, Any]

LEASE = "882d6afe.llmkube.dev"
"""The id of its leader election, which its chart switches on."""
NAMESPACE = "llmkube-system"
"""Where its chart installs it."""
STOP = f"kubectl -n {NAMESPACE} scale deployment --all --replicas 0"
_GRACE_S = 5.0
"""Clocks differ by so much."""


def running_controllers(client: KubeClient, *, now: datetime) -> list[str]:
    """Name the signs that LLMKube's controller runs, one phrase each; none where it was stopped. Raises ApiError."""
    return [*_leases(client, now), *_deployments(client)]


def _leases(client: KubeClient, now: datetime) -> Iterable[str]:
    try:
        found = client.list(kinds.LEASES, field_selector=f"metadata.name={LEASE}")["items"]
    except Forbidden:
        found = []
    for lease in found:
        if holder := held_by(lease, now):
            yield f"Lease {lease['metadata']['namespace']}/{LEASE} is held by {holder}"


def _deployments(client: KubeClient) -> Iterable[str]:
    try:
        found = client.list(kinds.DEPLOYMENTS, NAMESPACE)["items"]
    except Forbidden:
        found = []
    for deployment in found:
        replicas = (deployment.get("spec") or {}).get("replicas", 1)
        if replicas:
            yield f"Deployment {NAMESPACE}/{deployment['metadata']['name']} has {replicas} replicas"


def held_by(lease: Object, now: datetime) -> str:
    """Name who holds a Lease now; empty when nobody does, or has not renewed it for as long as it lasts. Pure."""
    spec = lease.get("spec") or {}
    holder, renewed = str(spec.get("holderIdentity") or ""), spec.get("renewTime")
    if not holder or not renewed:
        return ""
    lasts = timedelta(seconds=float(spec.get("leaseDurationSeconds") or 0) + _GRACE_S)
    return holder if now <= datetime.fromisoformat(str(renewed)) + lasts else ""
