"""One round of a controller: a start, services, changes, a restart. Called by `check`, on a `Workbench`.

A round takes about a minute. `python -m benchmarks` measures the same for longer, and also larger clusters and rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks import calibration, scenarios
from benchmarks.subject import Subject
from benchmarks.workbench import Workbench

MACHINE_FREE = frozenset(
    {"create: API requests of a service", "RSS (MB)", "largest child's RSS (MB)", "change: API requests"}
)
"""Measures that a slower machine does not change. They need no reference."""
TOLERANCES = {"restart (s)": 0.25, "change p50 (s)": 0.25}
"""The spread that is usual on a machine with nothing else to do, where it is more than the standard one."""
REST_LIMIT_S = 30.0
"""How much longer than its rest a controller may take to be quiet before its services are changed."""


@dataclass(frozen=True)
class Size:
    """The size of a round. Ratios of different sizes cannot be compared."""

    services: int = 100
    changes: int = 10
    rest_s: float = 10.0
    autoscaled: bool = True


@dataclass(frozen=True)
class Round:
    """The costs of one round of a controller."""

    costs: dict[str, float]
    """By measure. Less is better."""
    rest_rate: float
    """Requests a second of all clients before the changes. More than `scenarios.QUIET_RATE`: it was not at rest."""


def measure(subject: Subject, bench: Workbench, namespace: str, size: Size) -> Round:
    """Run a round in a new namespace, and remove what it made.

    Raises:
        SubjectEnded, TimeoutError: the controller ended, or made no progress.
    """
    try:
        return _measure(subject, bench, namespace, size)
    finally:
        subject.stop()
        scenarios.clear_namespace(bench.client, namespace)


def _measure(subject: Subject, bench: Workbench, namespace: str, size: Size) -> Round:
    client, check = bench.client, subject.check_alive
    scenarios.make_namespace(client, namespace, model_source=bench.model_source)
    subject.start()
    subject.wait_ready()
    if subject.health_url is None:
        scenarios.await_working(client, f"{namespace}-first", source=bench.model_source, check=check)
    row: dict[str, float] = {}
    cpu_s, requests = subject.cpu_s(), scenarios.api_requests(bench.cluster)
    row["create (s)"] = scenarios.create_services(
        client, namespace, size.services, timeout_s=300, autoscaled=size.autoscaled, check=check
    )
    # The statuses of the new services are written during the rest, and belong to their cost.
    time.sleep(size.rest_s)
    rest_rate = scenarios.await_rest(bench.cluster, timeout_s=REST_LIMIT_S)
    created_cpu_s, created_requests = subject.cpu_s(), scenarios.api_requests(bench.cluster)
    row["create: CPU of a service (s)"] = (created_cpu_s - cpu_s) / size.services
    row["create: API requests of a service"] = (created_requests - requests) / size.services
    latencies = scenarios.change_latencies(client, namespace, services=size.services, changes=size.changes, check=check)
    row["change p50 (s)"] = latencies.quantile(0.5)
    row["change: CPU (s)"] = (subject.cpu_s() - created_cpu_s) / size.changes
    row["change: API requests"] = (scenarios.api_requests(bench.cluster) - created_requests) / size.changes
    usage = subject.stop()
    row["RSS (MB)"] = usage.main_rss_bytes / 1e6
    if subject.health_url is not None:
        row["largest child's RSS (MB)"] = usage.child_rss_bytes / 1e6
        row["restart (s)"] = scenarios.restart(subject, services=size.services).seconds_to_idle
    return Round(row, rest_rate)


def machine_references(
    row: dict[str, float], before: calibration.Calibration, after: calibration.Calibration
) -> dict[str, float]:
    """Return the reference of each measure of a round: the duration of the calibration around it, in seconds.

    A measure that the machine does not change has the reference 1.
    """
    seconds = (before.seconds + after.seconds) / 2
    return {name: 1.0 if name in MACHINE_FREE else seconds for name in row}
