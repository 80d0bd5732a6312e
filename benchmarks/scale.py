"""`python -m benchmarks scale`: thousands of services on hundreds of GPU nodes that kwok simulates.

Everything except the kubelets is real. Measured from outside: seconds until every service is Ready or knows its place
in the queue, the loop's memory, the cost of a departure, and the loop's work at rest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.subject import Subject
from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer
from program.dialects.crds.definitions import crd_documents
from tools import fake_nodes
from tools.localcluster import LocalCluster

GPU = "nvidia.com/gpu"
LIMITS = {"loop RSS (MB)": 400.0}
NAMESPACES = 20
REST_S = 60.0


def main(arguments: list[str]) -> int:
    """Measure and print; return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("--services", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--gpus", type=int, default=3, help="GPUs of each node; each service asks for one")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds until all must have converged")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-scale-"))
    cluster = LocalCluster(directory / "cluster")
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        with fake_nodes.simulated(cluster.kubeconfig, directory):
            result = _measure(client, cluster, directory, options)
    finally:
        cluster.down(purge=True)
        shutil.rmtree(directory / "state", ignore_errors=True)
    json.dump({name: round(value, 2) for name, value in result.items()}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    held = all(result[name] <= limit for name, limit in LIMITS.items())
    return 0 if held and "converged" not in result else 1


def _measure(
    client: KubeClient, cluster: LocalCluster, directory: Path, options: argparse.Namespace
) -> dict[str, float]:
    console = Console(stderr=True)
    _prepare(client, options.nodes, options.gpus)
    port = 28086
    command = f"{sys.executable} -m automation.cli run --state file://{directory}/state --health-port {port}"
    # A fake pod answers no request.
    os.environ["HERDSMAN_COMPLETION_CHECK"] = "false"
    loop = Subject("loop", command, cluster.kubeconfig, directory, health_url=f"http://127.0.0.1:{port}")
    result: dict[str, float] = {}
    services = Informer(client, kinds.INFERENCE_SERVICES, transform=_seen)
    services.start()
    services.wait_synced(60)
    loop.start()
    try:
        loop.wait_ready()
        room = options.nodes * options.gpus
        served, waiting = min(room, options.services), max(0, options.services - room)
        began = time.monotonic()
        _parallel(lambda number: _create(client, number), range(options.services))
        result["written (s)"] = time.monotonic() - began

        def converged() -> bool:
            phases, queued = _look(services)
            console.print(f"  {time.monotonic() - began:.0f} s: {dict(phases)}, {len(queued)} places in the queue")
            return bool(phases["Ready"] == served and phases["WaitingForGPU"] == waiting == len(queued))

        _await(converged, options.timeout)
        result[f"{options.services} services converged (s)"] = time.monotonic() - began
        if waiting:
            result["a departure seen by the whole queue (s)"] = _departure(client, services, waiting, options.timeout)
        cpu_s, requests = loop.cpu_s(), loop.metric("herdsman_api_requests_total")
        time.sleep(REST_S)
        result["rest: share of a core (%)"] = 100 * (loop.cpu_s() - cpu_s) / REST_S
        result["rest: API requests per minute"] = 60 * (loop.metric("herdsman_api_requests_total") - requests) / REST_S
    except TimeoutError as error:
        # The results so far are printed nevertheless.
        console.print(f"Gave up: {error}", style="bold red")
        result["converged"] = 0.0
    finally:
        services.stop()
        usage = loop.stop()
    result["loop RSS (MB)"] = usage.main_rss_bytes / 1e6
    result["RSS of a child (MB)"] = usage.child_rss_bytes / 1e6
    return result


def _prepare(client: KubeClient, nodes: int, gpus: int) -> None:
    for document in crd_documents():
        client.apply(kinds.CRDS, None, document, field_manager="benchmarks", force=True)
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="benchmarks", force=True)
    names = [f"gpu-{number}" for number in range(nodes)]
    _parallel(lambda name: client.create(kinds.NODES, None, fake_nodes.node(name, extended={GPU: gpus})), names)
    time.sleep(1.0)
    for number in range(NAMESPACES):
        name = f"scale-{number}"
        client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        body = {
            "apiVersion": kinds.MODELS.api_version,
            "kind": "Model",
            "metadata": {"name": "base"},
            "spec": {"source": "org/repo"},
        }
        client.create(kinds.MODELS, name, body)


def _create(client: KubeClient, number: int) -> None:
    # This priority never preempts: a service that waits keeps waiting.
    body = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {"name": f"svc-{number}"},
        "spec": {
            "modelRef": "base",
            "runtime": "generic",
            "image": "registry.invalid/engine:1",
            "resources": {"gpu": 1},
            "priority": "batch",
        },
    }
    client.create(kinds.INFERENCE_SERVICES, f"scale-{number % NAMESPACES}", body)


def _seen(service: dict[str, Any]) -> dict[str, Any]:
    """Keep only the counted fields of a service."""
    metadata, status = service["metadata"], service.get("status") or {}
    kept = {key: metadata.get(key, "") for key in ("name", "namespace", "resourceVersion")}
    return {"metadata": kept, "phase": status.get("phase", "none"), "place": status.get("queuePosition", 0)}


def _look(services: Informer) -> tuple[Counter[str], set[int]]:
    """Return the number of services in each phase, and the places in the queue in their statuses."""
    listed = services.list()
    return Counter(str(s["phase"]) for s in listed), {s["place"] for s in listed if s["place"]}


def _departure(client: KubeClient, services: Informer, waiting: int, timeout_s: float) -> float:
    """Delete a Ready service; return the seconds until the statuses of all waiting services have their new places."""
    gone = next(s["metadata"] for s in services.list() if s["phase"] == "Ready")
    began = time.monotonic()
    client.delete(kinds.INFERENCE_SERVICES, gone["namespace"], gone["name"])
    wanted = set(range(1, waiting))
    _await(lambda: sorted(s["place"] for s in services.list() if s["place"]) == sorted(wanted), timeout_s)
    return time.monotonic() - began


def _await(reached: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not converged within {timeout_s:.0f} s")
        time.sleep(1.0)


def _parallel(act: Callable[[Any], object], items: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, items))
