"""`python -m benchmarks hosts-lost`: from the death of a host until no endpoint of it is ready in any Service.

A real loop and a real API server. The hosts are simulated, but each renews its Lease by the agent's own code at the
agent's interval, and has EndpointSlices like those of agents. At a death the renewals end, at a random moment between
two of them. A watch observes the endpoints, as kube-proxy does.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from agent.server.cluster.host_lease import RENEW_S, HostLease, duration_s
from benchmarks.host_start import HEALTH_PORT, NAMESPACE, install
from benchmarks.subject import Subject, own_loop
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from tools.localcluster import LocalCluster

LIMITS = {"out p99 (s)": 15.0}
SYSTEM_NAMESPACE = "herdsman-system"
BETWEEN_DEATHS_S = (0.2, 0.8)
TIMEOUT_S = 60.0


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosts-lost", description=__doc__)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--deaths", type=int, default=60)
    parser.add_argument("--at-once", action="store_true", help="let them all die in the same moment")
    parser.add_argument("--services", type=int, default=5, help="EndpointSlices of each host")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    loop: Subject | None = None
    hosts: list[HostLease] = []
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install(client)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
        client.apply(kinds.NAMESPACES, None, namespace, field_manager="benchmarks")
        hosts = [begin(client, number, services=options.services) for number in range(options.hosts)]
        loop = own_loop(cluster.kubeconfig, directory, port=HEALTH_PORT)
        loop.start()
        loop.wait_ready()
        result = measure(client, hosts, deaths=min(options.deaths, options.hosts), at_once=options.at_once)
    finally:
        for host in hosts:
            host.stop(release=False)
        if loop is not None:
            loop.stop()
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(result[name] <= limit for name, limit in LIMITS.items()) else 1


def name_of(number: int) -> str:
    return f"host-{number:04}"


def begin(client: KubeClient, number: int, *, services: int) -> HostLease:
    """Start a simulated host with ready endpoints."""
    host = name_of(number)
    lease = HostLease(client, host=host, namespace=SYSTEM_NAMESPACE, holder=f"agent-of-{host}", on_lost=print)
    lease.acquire()
    lease.start()
    for service in range(services):
        name = f"{host}-svc-{service}"
        body = {
            "apiVersion": kinds.ENDPOINT_SLICES.api_version,
            "kind": kinds.ENDPOINT_SLICES.kind,
            "metadata": {
                "name": name,
                "labels": {
                    "herdsman.dev/host": host,
                    "llmkube.ai/managed-by": "metal-agent",
                    "kubernetes.io/service-name": name,
                },
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.9.8.7"], "conditions": {"ready": True, "serving": True}}],
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        }
        client.apply(kinds.ENDPOINT_SLICES, NAMESPACE, body, field_manager="herdsman-agent")
    return lease


class Seen:
    """The time at which the last ready endpoint of each host disappeared."""

    def __init__(self, client: KubeClient) -> None:
        self._ready: dict[str, set[str]] = {}
        self.out_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._informer = Informer(client, kinds.ENDPOINT_SLICES, namespaces=[NAMESPACE], on_change=self._changed)
        self._informer.start()
        if not self._informer.wait_synced(30):
            raise TimeoutError("the EndpointSlices could not be listed")

    def _changed(self, _old: Json | None, new: Json | None) -> None:
        if new is None:
            return
        metadata = new["metadata"]
        with self._lock:
            ready = self._ready.setdefault(metadata["labels"]["herdsman.dev/host"], set())
            if new["endpoints"][0]["conditions"]["ready"]:
                ready.add(metadata["name"])
                return
            ready.discard(metadata["name"])
            if not ready:
                self.out_at[metadata["labels"]["herdsman.dev/host"]] = time.monotonic()

    def stop(self) -> None:
        self._informer.stop()


def measure(client: KubeClient, hosts: list[HostLease], *, deaths: int, at_once: bool) -> Json:
    """End hosts one after the other at random moments, and wait until none of their endpoints is ready."""
    seen = Seen(client)
    time.sleep(duration_s(RENEW_S))
    died_at: dict[str, float] = {}
    chosen = random.sample(range(len(hosts)), deaths)
    for number in chosen:
        if not at_once:
            time.sleep(random.uniform(*BETWEEN_DEATHS_S))
        hosts[number].stop(release=False)
        died_at[name_of(number)] = time.monotonic()
    deadline = time.monotonic() + TIMEOUT_S
    while died_at.keys() - seen.out_at.keys() and time.monotonic() < deadline:
        time.sleep(0.05)
    seen.stop()
    missed = sorted(died_at.keys() - seen.out_at.keys())
    if missed:
        raise TimeoutError(f"endpoints of {', '.join(missed)} were still ready {TIMEOUT_S:.0f} s later")
    wrong = sorted(seen.out_at.keys() - died_at.keys())
    took = sorted(seen.out_at[host] - at for host, at in died_at.items())
    return {
        "hosts": len(hosts),
        "deaths": deaths,
        "lost though alive": len(wrong),
        "out p50 (s)": round(quantile(took, 0.5), 2),
        "out p99 (s)": round(quantile(took, 0.99), 2),
        "out max (s)": round(took[-1], 2),
    }


def quantile(values: list[float], share: float) -> float:
    """Return the smallest of the sorted values that is not exceeded by `share` of them (nearest rank)."""
    return values[min(len(values) - 1, max(0, round(share * len(values) + 0.5) - 1))]
