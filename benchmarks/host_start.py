"""`python -m benchmarks hosts-start`: from the write of a service to its llama-server, with the model in the store.

A real loop, a real agent and real llama-servers on loopback; one service after the other, like edits by a person.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.subject import Subject, own_loop
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

LIMITS = {"spawned p50 (s)": 1.0, "ready p50 (s)": 2.5}
NAMESPACE = "bench"
HOST = "bench-host"
HEALTH_PORT = 18473
POLL_S = 0.01
TIMEOUT_S = 60.0


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosts-start", description=__doc__)
    parser.add_argument("--services", type=int, default=20)
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    subjects: list[Subject] = []
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install(client)
        (directory / "models").mkdir()
        model = write_tiny_model(directory / "models" / "tiny.gguf")
        subjects = start(cluster, directory, model)
        apply_model(client, model)
        result = measure(client, options.services)
    finally:
        for subject in reversed(subjects):
            subject.stop()
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(result[name] <= limit for name, limit in LIMITS.items()) else 1


def install(client: KubeClient) -> None:
    """Install the CRDs and wait until all of them are served."""
    for document in crd_documents():
        client.apply(kinds.CRDS, None, document, field_manager="benchmarks", force=True)
    deadline = time.monotonic() + 20
    for kind in (kinds.MODELS, kinds.INFERENCE_SERVICES, kinds.HOST_PROCESSES, kinds.HOSTS):
        while True:
            try:
                client.list(kind, limit=1)
                break
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    client.apply(kinds.NAMESPACES, None, namespace, field_manager="benchmarks")


def start(cluster: LocalCluster, directory: Path, model: Path) -> list[Subject]:
    """Start a loop and an agent, and wait until both are ready."""
    python, roots = sys.executable, f"--allowed-host-path-roots={model.parent}"
    loop = own_loop(cluster.kubeconfig, directory, roots, port=HEALTH_PORT)
    agent = Subject(
        "agent",
        f"{python} -m automation.cli agent run --host={HOST} --kubeconfig={cluster.kubeconfig} "
        f"--store={directory}/store {roots}",
        cluster.kubeconfig,
        directory,
    )
    loop.start()
    agent.start()
    loop.wait_ready()
    agent.wait_ready()
    return [agent, loop]


def apply_model(client: KubeClient, model: Path) -> None:
    """Make the Model and wait until it is Ready."""
    body = {
        "apiVersion": kinds.MODELS.api_version,
        "kind": "Model",
        "metadata": {"name": "tiny", "namespace": NAMESPACE},
        "spec": {"source": f"file://{model}"},
    }
    client.apply(kinds.MODELS, NAMESPACE, body, field_manager="benchmarks")
    deadline = time.monotonic() + TIMEOUT_S
    while (client.get(kinds.MODELS, NAMESPACE, "tiny").get("status") or {}).get("phase") != "Ready":
        if time.monotonic() > deadline:
            raise TimeoutError("the Model did not become Ready")
        time.sleep(POLL_S)


def measure(client: KubeClient, services: int) -> Json:
    """Make services one by one. The first does not count, because all caches are cold."""
    spawned, ready = [], []
    for number in range(services + 1):
        seconds_to_spawn, seconds_to_ready = one(client, f"svc-{number}")
        if number:
            spawned.append(seconds_to_spawn)
            ready.append(seconds_to_ready)
    return {
        "services": services,
        "spawned p50 (s)": round(statistics.median(spawned), 3),
        "spawned max (s)": round(max(spawned), 3),
        "ready p50 (s)": round(statistics.median(ready), 3),
        "ready max (s)": round(max(ready), 3),
    }


def one(client: KubeClient, name: str) -> tuple[float, float]:
    """Make one service; return the seconds until its llama-server was spawned, and until the service was Ready."""
    body = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {"herdsman.dev/host": HOST}},
        "spec": {"modelRef": "tiny", "contextSize": 256, "parallelSlots": 1},
    }
    written_at, began = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
    client.create(kinds.INFERENCE_SERVICES, NAMESPACE, body)
    while time.monotonic() - began < TIMEOUT_S:
        service = client.get(kinds.INFERENCE_SERVICES, NAMESPACE, name)
        if (service.get("status") or {}).get("phase") == "Ready":
            seconds = time.monotonic() - began
            pid = client.get(kinds.HOST_PROCESSES, NAMESPACE, name)["status"]["pid"]
            return _started_at(pid) - written_at, seconds
        time.sleep(POLL_S)
    raise TimeoutError(f"{name} was not Ready within {TIMEOUT_S:.0f} s: {service.get('status')}")


def _started_at(pid: int) -> float:
    """Return the start time of a process in seconds since boot, in hundredths, from the process table (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
