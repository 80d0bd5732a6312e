"""Measures how fast this machine is now, by work of the kind that the loop does. Called by `rounds`.

The work is fixed and uses none of the loop's code, so its duration changes with the machine and not with Herdsman.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kubeapi import kinds
from kubeapi.client import KubeClient

NAMESPACE = "calibration"
DOCUMENTS = 1500
"""Documents that are written and parsed as JSON; about a second."""
OBJECTS = 150
"""ConfigMaps that are applied and read through the API server; about a second."""
PROCESSES = 20
"""Processes that are started one after the other; about a second."""
_WORKERS = 8


@dataclass(frozen=True)
class Calibration:
    """The durations of the three kinds of work, in seconds."""

    json_s: float
    requests_s: float
    processes_s: float

    @property
    def seconds(self) -> float:
        """The duration of all work."""
        return self.json_s + self.requests_s + self.processes_s


def prepare(client: KubeClient) -> None:
    """Make the namespace of the calibration."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    client.apply(kinds.NAMESPACES, None, body, field_manager="benchmarks")


def calibrate(client: KubeClient) -> Calibration:
    """Do the work once, in about three seconds on two idle cores. Nothing that it made remains."""
    return Calibration(_timed_json(), _timed_requests(client), _timed_processes())


def _timed_json() -> float:
    text = json.dumps(_document("document"))
    began = time.perf_counter()
    for _ in range(DOCUMENTS):
        text = json.dumps(json.loads(text), sort_keys=True)
    return time.perf_counter() - began


def _timed_requests(client: KubeClient) -> float:
    def write_and_read(number: int) -> None:
        name = f"object-{number}"
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"app": name}},
            "data": {"document": json.dumps(_document(name))},
        }
        client.apply(kinds.CONFIG_MAPS, NAMESPACE, body, field_manager="calibration")
        client.get(kinds.CONFIG_MAPS, NAMESPACE, name)

    began = time.perf_counter()
    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(write_and_read, range(OBJECTS)))
    took = time.perf_counter() - began
    client.request("DELETE", kinds.CONFIG_MAPS.path(NAMESPACE))
    return took


def _timed_processes() -> float:
    began = time.perf_counter()
    for _ in range(PROCESSES):
        subprocess.run([sys.executable, "-I", "-c", "import json, subprocess"], check=True)
    return time.perf_counter() - began


def _document(name: str) -> dict[str, object]:
    """Return an object of the size of a Deployment."""
    containers = [
        {
            "name": f"{name}-{part}",
            "image": "registry.invalid/engine:1",
            "args": [f"--option-{number}={name}" for number in range(30)],
            "env": [{"name": f"VARIABLE_{number}", "value": str(number * 1.5)} for number in range(20)],
            "resources": {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "2", "memory": "4Gi"}},
        }
        for part in ("engine", "downloader")
    ]
    script = "\n".join(f"echo 'line {number} of a script'; test -f /models/{number}" for number in range(150))
    spec = {"replicas": 1, "template": {"spec": {"containers": containers}, "metadata": {"annotations": {"s": script}}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
