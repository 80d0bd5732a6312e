"""Run a pod that looks into a model cache to its end, and give what it said. Called by `herdsman cache`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json

START_TIMEOUT_S = 120.0
_LOOK_EVERY_S = 0.5


class CacheUnreachable(Exception):
    """The cache cannot be looked into; the message says why and what to do."""


def check_bound(claim: Json) -> None:
    """Raise CacheUnreachable for a claim without a volume behind it."""
    metadata, phase = claim["metadata"], (claim.get("status") or {}).get("phase", "Pending")
    if phase != "Bound":
        name = f"{metadata['namespace']}/{metadata['name']}"
        raise CacheUnreachable(
            f"claim {name} is {phase}: nothing is on it yet; `kubectl -n {metadata['namespace']} describe pvc "
            f"{metadata['name']}` says why it has no volume"
        )


def run_pod(
    client: KubeClient,
    build: Callable[[str], Json],
    *,
    namespace: str,
    start_timeout_s: float = START_TIMEOUT_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Make the pod that `build` makes of a name, wait for its end, return its log, and delete it in any case.

    Raises CacheUnreachable when it does not start in time, or fails; ApiError when the API server refuses it.
    """
    name = f"herdsman-cache-{secrets.token_hex(4)}"
    client.create(kinds.PODS, namespace, build(name), field_manager=naming.FIELD_MANAGER)
    try:
        began = clock()
        while True:
            pod = client.get(kinds.PODS, namespace, name)
            phase = (pod.get("status") or {}).get("phase", "Pending")
            if phase in ("Succeeded", "Failed"):
                break
            if phase == "Pending" and clock() - began > start_timeout_s:
                raise CacheUnreachable(
                    f"pod {namespace}/{name} did not start within {start_timeout_s:.0f} s: {why_pending(pod)}"
                )
            sleep(_LOOK_EVERY_S)
        log = client.text(kinds.PODS.path(namespace, name, "log"))
        if phase == "Failed":
            raise CacheUnreachable(f"pod {namespace}/{name} failed: {log[-300:].strip() or why_failed(pod)}")
        return log
    finally:
        with suppress(KubeError, NotFound):
            client.delete(kinds.PODS, namespace, name)


def why_pending(pod: Json) -> str:
    """Say why a pod has not started, in the scheduler's or the kubelet's own words."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or "no node takes it")
    for entry in status.get("containerStatuses") or ():
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    node = (pod.get("spec") or {}).get("nodeName")
    return f"node {node} has not mounted the claim; another node may have it" if node else "no node has taken it"


def why_failed(pod: Json) -> str:
    """Say why a pod failed that said nothing itself."""
    status = pod.get("status") or {}
    return str(status.get("message") or status.get("reason") or "it said nothing")
