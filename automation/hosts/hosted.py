"""Summarizes a service's replicas on hosts: how many serve, and the state of the first one that does not. Without I/O.

Called by `automation.reconcile` once per pass, with data from the caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from agent.contract import ProcessPhase
from automation.hosts.host_allocations import PlacementDecision
from automation.hosts.placement import Refusals
from automation.hosts.registry import HostRegistry
from kubeapi.json_types import Json
from program.desired.facts import HostedFacts, Problem
from program.desired.keys import ANNOTATION_IDLE_TIMEOUT, ANNOTATION_MEMORY_CHECK, ANNOTATION_MODEL_GROUP
from program.desired.service import DesiredService

# LLMKube's agent renews its EndpointSlice's heartbeat every 30 s, and LLMKube considers a host stale after three
# minutes.
STALE_HEARTBEAT_S = 180.0


def hosted_facts(
    registry: HostRegistry,
    hosts: tuple[str | None, ...],
    processes: Mapping[int, Json],
    slices: Mapping[int, Json],
    decision: PlacementDecision | None,
    *,
    now: datetime,
) -> tuple[HostedFacts, int]:
    """Return the facts of the first replica that does not serve (of replica 0 if all do), and the number that serve.

    `hosts` are the hosts of the replicas, `processes` and `slices` the HostProcesses and EndpointSlices, by replica.
    """
    serving = [_serves(registry, host, slices.get(number), now=now) for number, host in enumerate(hosts)]
    telling = next((number for number, ready in enumerate(serving) if not ready), 0)
    host = hosts[telling] if hosts else None
    report = (processes.get(telling) or {}).get("status") or {}
    has_lease = host is not None and registry.has_lease(host)
    beat = "" if has_lease or telling not in slices else slices[telling]["heartbeat"]
    refusals = decision.refusals if decision is not None else None
    earlier, earlier_fails = _earlier(hosts, processes)
    facts = HostedFacts(
        host=host,
        phase=report.get("phase", ""),
        reason=report.get("reason", ""),
        message=report.get("message", ""),
        heartbeat_age_s=age_s(beat, now=now) if beat else None,
        lost=has_lease and not registry.liveness.alive(host or ""),
        refusal=_refusal(registry, refusals) if refusals is not None and refusals.hosts else "",
        stuck=decision.stuck if decision is not None else "",
        earlier=earlier,
        earlier_fails=earlier_fails,
    )
    return facts, sum(serving)


def _earlier(hosts: tuple[str | None, ...], processes: Mapping[int, Json]) -> tuple[str, bool]:
    """Return `earlier` and `earlier_fails` of the facts. A replica whose fetch fails counts before others."""
    found = [(number, (processes.get(number) or {}).get("status") or {}) for number in range(len(hosts))]
    waiting = [(number, report) for number, report in found if report.get("earlier") and report.get("ready")]
    waiting.sort(key=lambda each: each[1].get("phase") != ProcessPhase.BACKING_OFF)
    if not waiting:
        return "", False
    number, report = waiting[0]
    told = [str(report[part]) for part in ("reason", "message") if report.get(part)]
    words = ": ".join([f"host `{hosts[number]}`", str(report.get("phase", "")), *told])
    return words, report.get("phase") == ProcessPhase.BACKING_OFF


def without_agent(registry: HostRegistry, desired: DesiredService) -> tuple[Problem, ...]:
    """List the fields that have no effect because a host of the service is reached over SSH, without an agent."""
    placement = desired.host_placement
    hosts = [host for host in (placement.hosts if placement else ()) if host]
    by_ssh = [host for host in hosts if (found := registry.capacity(host)) is not None and found.by_ssh]
    if not by_ssh or placement is None:
        return ()
    why = f"has no effect on host `{by_ssh[0]}`, which is managed over SSH; the field needs an agent on the host"
    asked = {
        ANNOTATION_IDLE_TIMEOUT: desired.sleep is not None and desired.by_requests is None,
        ANNOTATION_MODEL_GROUP: bool(placement.group),
        ANNOTATION_MEMORY_CHECK: placement.memory_check is not None,
    }
    return tuple(
        Problem(reason="NotHonoured", message=why, field=f"metadata.annotations[{name}]", terminal=True)
        for name, is_asked in asked.items()
        if is_asked
    )


def _refusal(registry: HostRegistry, refusals: Refusals) -> str:
    if registry.hosts_served():
        return str(refusals)
    unknown = "the cluster has no CRD for Hosts; apply the CRDs of `herdsman crds`"
    return f"{refusals}; {unknown}"


def age_s(timestamp: str, *, now: datetime) -> float:
    """Return the seconds since an RFC 3339 time. Infinite if it is missing or invalid."""
    try:
        return (now - datetime.fromisoformat(timestamp)).total_seconds()
    except (ValueError, TypeError):
        # An annotation may contain any text, or a time without a time zone.
        return float("inf")


def _serves(registry: HostRegistry, host: str | None, found: Json | None, *, now: datetime) -> bool:
    """Return whether a replica's endpoint is ready and its host lives. Without a Lease, the heartbeat counts.

    Earlier agents of LLMKube write no heartbeat. For them a ready endpoint suffices.
    """
    if host is None or found is None or not found["ready"]:
        return False
    if registry.has_lease(host):
        return registry.liveness.alive(host)
    return not found["heartbeat"] or age_s(found["heartbeat"], now=now) <= STALE_HEARTBEAT_S
