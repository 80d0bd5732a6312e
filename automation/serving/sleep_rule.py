"""The rules of sleep: which services in pods may sleep, when they are idle, how a sleeping one is marked. Pure.

A service is idle when no counter of its engines changed between two readings that are its idle timeout apart, and no
request is under way. An engine whose metrics cannot be read is never stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from automation.reconcile.observe import Observed
from automation.serving.engine_progress import all_samples
from components import naming
from components.engine_workloads import is_stopped
from kubeapi.json_types import Json
from program.desired import keys
from program.desired.facts import Problem
from program.desired.service import DesiredService
from program.dialects.status.conditions import START_FAILURES
from program.runtimes import runtime_for
from program.runtimes.base import ProgressMetrics

State = Literal["", "asleep", "waking"]

LEAST_EVERY_S, MOST_EVERY_S = 1.0, 120.0
READINGS = 4
"""Readings in one idle timeout."""
FRESH_S = 3.0
"""The greatest age of the reading that decides."""

_COUNTERS = ("_total", "_count", "_sum")


@dataclass(frozen=True)
class Activity:
    """The metrics of one replica; two readings are equal when it did not work in between."""

    busy: bool
    counted: float
    """All counters of the engine added up: prompts, tokens, requests, passes through the model."""
    at: float = field(compare=False, default=0.0)
    """The time of the reading, on the loop's monotonic clock."""


@dataclass(frozen=True)
class Quiet:
    """The start of a period without work, and the readings at its start."""

    since: float
    counted: tuple[tuple[str, float], ...]
    """By each engine's start."""


def unsupported_reason(desired: DesiredService, *, address: str) -> Problem | None:
    """Return why a service in pods whose spec enables sleep cannot sleep; None when it can, or does not enable it."""
    if desired.sleep is None or desired.host_placement is not None or desired.by_requests is not None:
        return None
    why = ""
    if desired.autoscaling is not None:
        why = (
            "has no effect with spec.autoscaling; set its minReplicas to 0, so that KEDA scales to zero, or add "
            f"annotation {keys.ANNOTATION_SCALE_BY}: requests"
        )
    elif runtime_for(desired.engine).progress(desired) is None:
        kind = "an API key" if desired.api_key else f"runtime {desired.engine.kind}"
        why = (
            f"replicas with {kind} do not report whether clients use them, so they never sleep; if all clients use "
            f"the gateway, add annotation {keys.ANNOTATION_SCALE_BY}: requests"
        )
    elif not address:
        why = "needs an address at which Herdsman receives requests for sleeping services (HERDSMAN_PROXY_ADDRESS)"
    if not why:
        return None
    return Problem(
        reason="NotHonoured", message=why, field=f"metadata.annotations[{keys.ANNOTATION_IDLE_TIMEOUT}]", terminal=True
    )


def may_sleep(desired: DesiredService, *, address: str) -> bool:
    """Return whether a service in pods may sleep."""
    asks = desired.sleep is not None and desired.host_placement is None and desired.by_requests is None
    return asks and unsupported_reason(desired, address=address) is None and not is_stopped(desired)


def sleeping_replicas(deployment: Json | None) -> str | None:
    """Return the replicas that a sleeping service had, by the mark on its Deployment; None when it does not sleep."""
    return deployment["metadata"]["annotations"].get(naming.ANNOTATION_ASLEEP) if deployment is not None else None


def hosted_sleep(desired: DesiredService, observed: Observed) -> State:
    """Return the state of a service whose processes on hosts sleep or wake, which their agents decide."""
    reports = [process["status"] for process in observed.host_processes.values()]
    if desired.sleep is None or desired.host_placement is None or not reports:
        return ""
    phases = {report.get("phase") for report in reports}
    if phases == {"Asleep"}:
        return "asleep"
    return "waking" if "Ready" not in phases and all(report.get("ready") for report in reports) else ""


def read_activity(text: str, metrics: ProgressMetrics, *, at: float) -> Activity | None:
    """Parse an engine's metrics; None when they do not show whether it works."""
    samples = all_samples(text)
    running = samples.get(metrics.running_requests)
    if running is None or metrics.generated_tokens not in samples:
        return None
    prefix = _prefix(metrics.generated_tokens)
    counted = sum(value for name, value in samples.items() if name.startswith(prefix) and name.endswith(_COUNTERS))
    return Activity(running > 0, counted, at)


def _prefix(metric: str) -> str:
    """Return the engine's own prefix (`vllm:`, `tgi_`), which excludes the metrics of its process and HTTP server."""
    head, colon, _ = metric.partition(":")
    return f"{head}:" if colon else f"{metric.partition('_')[0]}_"


def reading_interval_s(idle_timeout_s: float) -> float:
    """Return the time between two readings."""
    return min(MOST_EVERY_S, max(LEAST_EVERY_S, idle_timeout_s / READINGS))


def follow_quiet(before: Quiet | None, readings: dict[str, Activity] | None) -> Quiet | None:
    """Update the quiet period of a service: None when it works, or when the metrics of a replica are missing."""
    if not readings or any(reading.busy for reading in readings.values()):
        return None
    counted = tuple(sorted((run, reading.counted) for run, reading in readings.items()))
    if before is not None and before.counted == counted:
        return before
    return Quiet(max(reading.at for reading in readings.values()), counted)


def quiet_for_s(quiet: Quiet, readings: dict[str, Activity]) -> float:
    """Return how long the service certainly did not work: up to the oldest of the last readings."""
    return min(reading.at for reading in readings.values()) - quiet.since


def start_failure(cr: Json) -> str:
    """Return why the replicas do not start, by the status; empty while they may."""
    conditions = {c["type"]: c for c in (cr.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    if ready.get("reason") not in START_FAILURES:
        return ""
    return f"{ready['reason']}: {ready.get('message', '')}"[:300]
