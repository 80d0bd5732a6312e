"""`python -m benchmarks hosts-placement`: the cost of many hosts and services for the loop.

First, in this process alone: parse, place and render all services, and process heartbeats and changes of hosts, by the
loop's own code. Then, with `--live`, on a real API server: a loop, Host objects, and Leases that are renewed every 10
s, to measure the cost of heartbeats alone.
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
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from agent.server.cluster.host_lease import lease_name
from automation.cache import trim_hosts
from automation.hosts.registry import HostRegistry
from automation.settings import SYSTEM_NAMESPACE
from benchmarks.host_start import HEALTH_PORT, install
from benchmarks.subject import Subject, own_loop
from components import naming
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.model import DesiredModel, GgufFacts
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service
from tools.localcluster import LocalCluster

GIB = 1 << 30
LIMITS = {"place (CPU s)": 5.0, "heartbeats: share of a core (%)": 10.0}
RENEW_S = 10.0
WRITERS = 8


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosts-placement", description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--services", type=int, default=2000)
    parser.add_argument("--live", action="store_true", help="measure heartbeats against a real API server, too")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long heartbeats are watched")
    options = parser.parse_args(arguments)
    result = in_process(options.hosts, options.services)
    if options.live:
        result |= live(options.hosts, options.seconds)
    json.dump({name: round(value, 3) for name, value in result.items()}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(result[name] <= limit for name, limit in LIMITS.items() if name in result) else 1


def host_of(number: int) -> Json:
    """Return a Host of one of several types, in one of several zones."""
    metal = number % 2 == 0
    return {
        "apiVersion": kinds.HOSTS.api_version,
        "kind": kinds.HOSTS.kind,
        "metadata": {"name": f"host-{number:04}", "labels": {"zone": f"z{number % 5}", "host": f"h{number}"}},
        "spec": {},
        "status": {
            "os": "darwin" if metal else "linux",
            "accelerators": [{"type": "metal"}] if metal else [],
            "allocatable": {"memory": (16 << (number % 4)) * GIB},
            "capacity": {"memory": (24 << (number % 4)) * GIB},
            "runtimes": {"llama-server": "b1"},
        },
    }


def lease_of(number: int) -> Json:
    """Return the Lease of a host, renewed now."""
    name = f"host-{number:04}"
    return {
        "apiVersion": kinds.LEASES.api_version,
        "kind": kinds.LEASES.kind,
        "metadata": {"name": lease_name(name), "labels": {naming.LABEL_HOST: name}},
        "spec": {
            "holderIdentity": f"agent-of-{name}",
            "leaseDurationSeconds": 40,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def model_for(size_gib: int, accelerator: str) -> DesiredModel:
    """Return a Model with the facts of a header."""
    cr = {
        "metadata": {"name": f"{accelerator}-{size_gib}", "namespace": "ns"},
        "spec": {"source": "https://example.com/m.gguf", "hardware": {"accelerator": accelerator}},
    }
    header = GgufFacts(
        architecture="llama",
        layer_count=32,
        embedding_size=4096,
        head_count=32,
        head_count_kv=8,
        weights_bytes=size_gib * GIB,
    )
    return model_of(cr).model_copy(update={"gguf": header})


def service_cr(number: int, model: DesiredModel) -> Json:
    """Return a service; the host selectors vary with the number."""
    annotations = {"herdsman.dev/host-selector": f"zone=z{number % 5}"} if number % 3 == 0 else {}
    if model.accelerator == "cpu":
        annotations = {"herdsman.dev/host-selector": f"zone=z{number % 5}"}
    return {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {
            "name": f"svc-{number:04}",
            "namespace": f"ns-{number % 20}",
            "uid": f"uid-{number}",
            "generation": 1,
            "annotations": annotations,
        },
        "spec": {"modelRef": model.name, "contextSize": 4096},
    }


def in_process(hosts: int, services: int) -> dict[str, float]:
    """Measure the loop's own work in seconds of CPU, which other work on this machine does not change."""
    told: list[ServiceKey] = []
    registry = HostRegistry(enqueue=told.append, later=lambda _, __: None)
    began = time.thread_time()
    known = [trim_hosts.host(host_of(number)) for number in range(hosts)]
    for number, host in enumerate(known):
        registry.host_changed(None, host)
        registry.lease_changed(None, trim_hosts.lease(lease_of(number)))
    result = {"take in hosts (CPU s)": time.thread_time() - began}

    models = [model_for(size, accelerator) for size in (1, 2, 4, 8) for accelerator in ("metal", "cpu")]
    crs = [service_cr(number, models[number % len(models)]) for number in range(services)]

    def place_all() -> int:
        placed = 0
        for number, cr in enumerate(crs):
            desired, decision = registry.place(parse_service(cr, models[number % len(models)]))
            rendered = render(desired, RenderOptions())
            placed += len(rendered.objects)
            assert decision is not None
        return placed

    began = time.thread_time()
    placed = place_all()
    result["place (CPU s)"] = time.thread_time() - began
    result["placed"] = placed
    began = time.thread_time()
    assert place_all() == placed
    result["look again at all (CPU s)"] = time.thread_time() - began

    began = time.thread_time()
    beats = [(trim_hosts.lease(lease_of(number)), trim_hosts.lease(lease_of(number))) for number in range(hosts)]
    for before, after in beats:
        registry.lease_changed(before, after)
    result["heartbeats of all (CPU s)"] = time.thread_time() - began

    too_large = model_for(1000, "metal")
    waiting = [service_cr(number, too_large) for number in range(services, 2 * services)]
    began = time.thread_time()
    for cr in waiting:
        registry.place(parse_service(cr, too_large))
    result["refuse all, because none fits (CPU s)"] = time.thread_time() - began
    told.clear()
    large = host_of(0) | {"metadata": {"name": "large", "labels": {"zone": "z0"}}}
    large["status"]["allocatable"]["memory"] = 2500 * GIB
    began = time.thread_time()
    registry.host_changed(None, trim_hosts.host(large))
    registry.lease_changed(None, {**trim_hosts.lease(lease_of(0)), "host": "large"})
    result["a host appears (CPU s)"] = time.thread_time() - began
    result["woken by it"] = len(told)
    assert all(reserved <= (host.memory_bytes or 0) for host, _, reserved, _ in registry.allocations.hosts())
    return result


def live(hosts: int, seconds: float) -> dict[str, float]:
    """Measure the loop's share of a core while only heartbeats arrive."""
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    loop: Subject | None = None
    stop = threading.Event()
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install(client)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
        client.apply(kinds.NAMESPACES, None, namespace, field_manager="benchmarks")

        def make(number: int) -> None:
            host = host_of(number)
            status = host.pop("status")
            client.create(kinds.HOSTS, None, host)
            client.patch(kinds.HOSTS, None, host["metadata"]["name"], {"status": status}, subresource="status")
            client.create(kinds.LEASES, SYSTEM_NAMESPACE, lease_of(number))

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(make, range(hosts)))
        beating = threading.Thread(target=_beat, args=(client, hosts, stop), daemon=True)
        beating.start()
        loop = own_loop(cluster.kubeconfig, directory, port=HEALTH_PORT)
        loop.start()
        loop.wait_ready()
        time.sleep(2 * RENEW_S)
        before, began = loop.cpu_s(), time.monotonic()
        time.sleep(seconds)
        share = (loop.cpu_s() - before) / (time.monotonic() - began)
        lost = hosts - loop.metric("herdsman_host_alive")
        return {"heartbeats: share of a core (%)": 100 * share, "hosts called lost": lost}
    finally:
        stop.set()
        if loop is not None:
            loop.stop()
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)


def _beat(client: KubeClient, hosts: int, stop: threading.Event) -> None:
    """Renew all Leases every ten seconds, evenly spread, as with hosts that started at different times."""
    order = list(range(hosts))
    random.Random(1).shuffle(order)

    def renew(number: int) -> None:
        lease = lease_of(number)
        body = {"spec": {"renewTime": lease["spec"]["renewTime"]}}
        client.patch(kinds.LEASES, SYSTEM_NAMESPACE, lease["metadata"]["name"], body)

    with ThreadPoolExecutor(WRITERS) as pool:
        began = time.monotonic()
        while not stop.is_set():
            for place, number in enumerate(order):
                due = began + place * RENEW_S / hosts
                if stop.wait(max(0.0, due - time.monotonic())):
                    return
                pool.submit(renew, number)
            began += RENEW_S
