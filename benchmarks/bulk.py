"""`python -m benchmarks bulk`: many services at once, and where the time of each goes.

A real etcd and API server and a new loop for each size. Beside the seconds until all objects exist, it reports the CPU
seconds of each process and the API requests, both for one service. CPU and requests include the statuses, Events and
revisions that follow, until the API server is at rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping

import psutil

from benchmarks import scenarios
from benchmarks.subject import Subject
from benchmarks.workbench import Workbench, workbench
from kubeapi import kinds
from kubeapi.kinds import Kind

REST_LIMIT_S = 30.0
SHOWN_REQUESTS = 0.02
"""Requests of a kind that are fewer than this for each service are not listed."""


def main(arguments: list[str]) -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bulk", description=__doc__)
    parser.add_argument("--services", default="100,300", help="sizes, separated by commas")
    parser.add_argument("--autoscaled", action="store_true", help="give each service a HorizontalPodAutoscaler")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    rows = []
    with workbench() as bench:
        for number in range(options.rounds):
            for size in map(int, options.services.split(",")):
                name = f"bulk-{number}-{size}"
                loop = bench.own_loop(name)
                try:
                    rows.append(measure(bench, loop, name, size, autoscaled=options.autoscaled))
                finally:
                    loop.stop()
                scenarios.clear_namespace(bench.client, name)
    json.dump(rows, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def measure(bench: Workbench, loop: Subject, namespace: str, services: int, *, autoscaled: bool) -> dict[str, object]:
    """Create the services, and return the durations, the CPU seconds and the API requests."""
    client = bench.client
    scenarios.make_namespace(client, namespace, model_source=bench.model_source)
    loop.start()
    loop.wait_ready()
    time.sleep(2.0)
    servers = processes(bench)
    before, requests = used(servers, loop), requests_by_kind(bench)
    began = time.monotonic()
    deployments_s = scenarios.create_services(
        client,
        namespace,
        services,
        timeout_s=max(280.0, 0.15 * services),
        autoscaled=autoscaled,
        check=loop.check_alive,
    )
    last = kinds.AUTOSCALERS if autoscaled else kinds.SERVICES
    while _count(bench, last, namespace) < services:
        time.sleep(0.2)
    objects_s = time.monotonic() - began
    until_objects = used(servers, loop) - before
    scenarios.await_rest(bench.cluster, timeout_s=REST_LIMIT_S)
    rest_s = time.monotonic() - began
    until_rest = used(servers, loop) - before
    made = requests_by_kind(bench) - requests
    return {
        "services": services,
        "Deployments (s)": round(deployments_s, 2),
        "all objects (s)": round(objects_s, 2),
        "at rest (s)": round(rest_s, 1),
        "engine processes": loop.metric("herdsman_engine_cli_processes_total"),
        "passes of a service": round(loop.metric("herdsman_reconciles_total") / services, 2),
        "CPU of a service until all objects (ms)": _each(until_objects, services),
        "CPU of a service until rest (ms)": _each(until_rest, services),
        "API requests of a service": {
            name: round(count / services, 2) for name, count in made.most_common() if count / services >= SHOWN_REQUESTS
        },
    }


def processes(bench: Workbench) -> dict[str, psutil.Process]:
    """Return the processes of the control plane by name."""
    found = ((name, bench.cluster.pid(name)) for name in ("etcd", "kube-apiserver"))
    return {name: psutil.Process(pid) for name, pid in found if pid is not None}


def requests_by_kind(bench: Workbench) -> Counter[str]:
    """Return the requests that the API server has answered, by verb and resource."""
    found: Counter[str] = Counter()
    for labels, value in scenarios.api_request_counts(bench.cluster):
        name = "/".join(part for part in (labels["resource"], labels["subresource"]) if part)
        found[f"{labels['verb']} {name}"] += int(value)
    return found


def used(servers: Mapping[str, psutil.Process], loop: Subject) -> Counter[str]:
    """Return the CPU milliseconds so far of the control plane, the loop, and the CLI processes that have ended."""
    found: Counter[str] = Counter()
    for name, process in servers.items():
        times = process.cpu_times()
        found[name] = round(1000 * (times.user + times.system))
    times = psutil.Process(loop.pid).cpu_times()
    found["loop"] = round(1000 * (times.user + times.system))
    found["CLI"] = round(1000 * (times.children_user + times.children_system))
    return found


def _each(milliseconds: Counter[str], services: int) -> dict[str, float]:
    sums = {**milliseconds, "sum": milliseconds.total()}
    return {name: round(value / services, 1) for name, value in sums.items()}


def _count(bench: Workbench, kind: Kind, namespace: str) -> int:
    """Return the number of objects, of which the API server sends only one."""
    found = bench.client.list(kind, namespace, limit=1)
    return len(found["items"]) + int(found["metadata"].get("remainingItemCount") or 0)
