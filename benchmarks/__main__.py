"""`python -m benchmarks`: run the scenarios, print a table (or JSON) with limits and, with a peer, ratios."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    adoption,
    agent,
    bulk,
    check,
    downloads,
    drift,
    failover,
    gateway,
    gpu_queue,
    host_start,
    hosts_lost,
    hosts_placement,
    http_servers,
    kserve,
    many_states,
    memory,
    preview,
    proxy,
    registration,
    results,
    scale,
    scenarios,
    start,
    static_fleet,
)
from benchmarks.subject import Subject, SubjectEnded
from benchmarks.workbench import Workbench, workbench

Row = dict[str, object]

# Limits for two cores. Rows without a limit are for information.
LIMITS = {
    "create 100 (s)": 2.5,
    "create 1000 (s)": 25.0,
    "change p50 (s)": 0.25,
    "change p99 (s)": 0.5,
    "change p50 at 1000 (s)": 0.25,
    "change p99 at 1000 (s)": 0.5,
    "restart: engine processes": 0.0,
    "restart: to idle (s)": 3.0,
    "idle: share of a core (%)": 1.0,
    "RSS at 100 (MB)": 110.0,
    "RSS at 1000 (MB)": 140.0,
}

REST_LIMIT_S = 60.0
"""How much longer than `--rest-seconds` a controller may take to come to rest before its services are changed."""


def main() -> int:
    """Measure, print, and return 1 if a limit is missed, 2 if a controller ended or made no progress."""
    others = {
        "adoption": adoption.main,
        "agent": agent.main,
        "bulk": bulk.main,
        "check": check.main,
        "downloads": downloads.main,
        "drift": drift.main,
        "failover": failover.main,
        "gateway": gateway.main,
        "gpu-queue": gpu_queue.main,
        "kserve": kserve.main,
        "memory": memory.main,
        "many-states": many_states.main,
        "scale": scale.main,
        "hosts-start": host_start.main,
        "hosts-lost": hosts_lost.main,
        "hosts-placement": hosts_placement.main,
        "http-servers": http_servers.main,
        "preview": preview.main,
        "proxy": proxy.main,
        "registration": registration.main,
        "start": start.main,
        "static-fleet": static_fleet.main,
    }
    if sys.argv[1:2] and (other := others.get(sys.argv[1])):
        return other(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peer", help="command of another controller of the same API; KUBECONFIG is set for it")
    parser.add_argument("--peer-crds", type=Path, help="folder of CRDs that only the peer needs")
    parser.add_argument("--changes", type=int, default=30)
    parser.add_argument("--rest-seconds", type=float, default=20.0, help="pause before the first change")
    parser.add_argument("--autoscaled", action="store_true", help="give each service a HorizontalPodAutoscaler")
    parser.add_argument("--large", type=int, default=1000, help="size of the large namespace; 0 leaves it out")
    parser.add_argument("--idle-seconds", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=1, help="how often subjects alternate; medians are shown")
    parser.add_argument("--release", help="add the figures to benchmarks/RESULTS.md, in rows of this name")
    parser.add_argument("--peer-name", default="peer", help="name and version of the peer in these rows")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    measured: dict[str, list[Row]] = {}
    console = Console(stderr=True)
    try:
        with workbench(options.peer_crds) as bench:
            for number in range(options.rounds):
                subjects = [bench.own_loop(f"r{number}")]
                if options.peer:
                    subjects.append(bench.peer(options.peer))
                for subject in subjects:
                    console.print(f"Round {number + 1}: {subject.name}", style="bold")
                    row = _measure(subject, bench, f"r{number}-{subject.name}", options, console)
                    measured.setdefault(subject.name, []).append(row)
    except (SubjectEnded, TimeoutError) as error:
        console.print(f"The measurement ended early: {error}", style="red", markup=False)
        return 2
    summary = {name: _median(rows) for name, rows in measured.items()}
    if options.release:
        command = results.command_line(sys.argv[1:])
        results.append(
            results.FILE, results.rows(options.release, summary, peer_name=options.peer_name, command=command)
        )
    if options.output == "json":
        json.dump(summary, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(summary)
    return 0 if all(_held(name, value) for name, value in summary["herdsman"].items()) else 1


def _measure(subject: Subject, bench: Workbench, prefix: str, options: argparse.Namespace, console: Console) -> Row:
    try:
        return _scenarios(subject, bench, prefix, options, console)
    finally:
        subject.stop()


def _scenarios(subject: Subject, bench: Workbench, prefix: str, options: argparse.Namespace, console: Console) -> Row:
    row: Row = {}
    client, source = bench.client, bench.model_source
    small = f"{prefix}-small"
    scenarios.make_namespace(client, small, model_source=source)
    _start(subject, bench, f"{prefix}-first")
    row["create 100 (s)"] = scenarios.create_services(
        client, small, 100, timeout_s=300, autoscaled=options.autoscaled, check=subject.check_alive
    )
    row["at rest before changes: API requests per second"] = _rest(bench, options.rest_seconds)
    latencies = scenarios.change_latencies(
        client, small, services=100, changes=options.changes, check=subject.check_alive
    )
    row["change p50 (s)"] = latencies.quantile(0.5)
    row["change p99 (s)"] = latencies.quantile(0.99)
    usage = subject.stop()
    row["RSS at 100 (MB)"] = usage.main_rss_bytes / 1e6
    row["RSS of a child (MB)"] = usage.child_rss_bytes / 1e6
    if subject.health_url is not None:
        again = scenarios.restart(subject, services=100)
        row["restart: to idle (s)"] = again.seconds_to_idle
        row["restart: engine processes"] = float(again.engine_processes)
    else:
        _start(subject, bench, f"{prefix}-second")
    if options.idle_seconds > 0:
        console.print(f"  idle for {options.idle_seconds:.0f} s …")
        quiet = scenarios.idle(subject, bench.cluster, seconds=options.idle_seconds)
        row["idle: share of a core (%)"] = 100 * quiet.cpu_s / quiet.seconds
        row["idle: API requests per minute"] = 60 * quiet.api_requests / quiet.seconds
    if options.large:
        large = f"{prefix}-large"
        scenarios.make_namespace(client, large, model_source=source)
        seconds = scenarios.create_services(
            client, large, options.large, timeout_s=600, autoscaled=options.autoscaled, check=subject.check_alive
        )
        row[f"create {options.large} (s)"] = seconds
        row[f"at rest at {options.large}: API requests per second"] = _rest(bench, options.rest_seconds)
        latencies = scenarios.change_latencies(
            client, large, services=options.large, changes=options.changes, check=subject.check_alive
        )
        row[f"change p50 at {options.large} (s)"] = latencies.quantile(0.5)
        row[f"change p99 at {options.large} (s)"] = latencies.quantile(0.99)
        usage = subject.stop()
        row[f"RSS at {options.large} (MB)"] = usage.main_rss_bytes / 1e6
        scenarios.clear_namespace(client, large)
    else:
        subject.stop()
    scenarios.clear_namespace(client, small)
    return row


def _rest(bench: Workbench, seconds: float) -> float:
    time.sleep(seconds)
    return scenarios.await_rest(bench.cluster, timeout_s=REST_LIMIT_S)


def _start(subject: Subject, bench: Workbench, namespace: str) -> None:
    subject.start()
    subject.wait_ready()
    if subject.health_url is None:
        scenarios.await_working(bench.client, namespace, source=bench.model_source, check=subject.check_alive)


def _median(rows: list[Row]) -> dict[str, float]:
    result = {}
    for name in rows[0]:
        values = sorted(float(str(row[name])) for row in rows if name in row)
        result[name] = values[len(values) // 2]
    return result


def _held(name: str, value: float) -> bool:
    return name not in LIMITS or value <= LIMITS[name]


def _print(summary: dict[str, dict[str, float]]) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("MEASURE", "HERDSMAN", "LIMIT", *(("PEER", "HERDSMAN/PEER") if "peer" in summary else ())):
        table.add_column(column, justify="left" if column == "MEASURE" else "right")
    for name, value in summary["herdsman"].items():
        limit = f"{LIMITS[name]:g}" if name in LIMITS else ""
        cells = [name, f"[{'green' if _held(name, value) else 'red'}]{value:.3g}[/]", limit]
        other = summary.get("peer", {}).get(name)
        if "peer" in summary:
            ratio = f"{value / other:.2f}" if other else ""
            cells += [f"{other:.3g}" if other is not None else "", ratio]
        table.add_row(*cells)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
