"""`python -m benchmarks drift`: from another client's edit of an object of Herdsman's to its repair.

A real API server, the loop with the real engine, 100 services with all kinds of objects that a cluster can have. Random
fields of random objects are edited one after the other; some objects are deleted. The object is read until it has its
old value again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.host_start import NAMESPACE, install
from benchmarks.scenarios import Latencies
from benchmarks.subject import Subject, own_loop, running
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.support import extensions
from tools.localcluster import LocalCluster

LIMITS = {"repaired p99 (s)": 2.0}
WHO = "kubectl-edit"
HEALTH_PORT = 18484
POLL_S = 0.01
TIMEOUT_S = 60.0
SEED = 5

ANNOTATIONS = {
    "herdsman.dev/expose": "gateway",
    "herdsman.dev/expose-gateway": "infra/public",
    "herdsman.dev/network-policy": "chat",
    "herdsman.dev/max-unavailable": "25%",
}
EDITS: tuple[tuple[Kind, Json], ...] = (
    (kinds.SERVICES, {"spec": {"type": "NodePort"}}),
    (kinds.SERVICES, {"metadata": {"labels": {"app": "other"}}}),
    (kinds.SERVICES, {"metadata": {"labels": {"app": None}}}),
    (kinds.DEPLOYMENTS, {"spec": {"template": {"spec": {"priorityClassName": "other"}}}}),
    (kinds.DEPLOYMENTS, {"metadata": {"annotations": {"herdsman.dev/applied-hash": "0"}}}),
    (kinds.DEPLOYMENTS, {"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": 5}}}}),
    (kinds.AUTOSCALERS, {"spec": {"maxReplicas": 90}}),
    (kinds.DISRUPTION_BUDGETS, {"spec": {"maxUnavailable": 7}}),
    (kinds.NETWORK_POLICIES, {"spec": {"ingress": None}}),
    (kinds.HTTP_ROUTES, {"spec": {"parentRefs": [{"name": "other"}]}}),
    (kinds.POD_MONITORS, {"spec": {"podMetricsEndpoints": []}}),
    (kinds.SERVICE_LEVEL_OBJECTIVES, {"spec": {"target": "1"}}),
)
"""Merge patches. Each changes the value of a field."""
DELETIONS = (kinds.SERVICES, kinds.AUTOSCALERS, kinds.DISRUPTION_BUDGETS, kinds.HTTP_ROUTES)
DELETED_SHARE = 0.15


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks drift", description=__doc__)
    parser.add_argument("--services", type=int, default=100)
    parser.add_argument("--edits", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.2, help="longest pause between two edits, in seconds")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    os.environ["HERDSMAN_PROMETHEUS_URL"] = "http://prometheus.invalid:9090"
    loop = own_loop(cluster.kubeconfig, directory, "--log-format=json", port=HEALTH_PORT)
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install(client)
        with extensions.installed(client), running(loop) as subject:
            make(client, options.services)
            settle(subject)
            result = measure(client, options.services, options.edits, options.pause)
            settle(subject)
            result["engine processes"] = subject.metric("herdsman_engine_cli_processes_total")
    finally:
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    json.dump({name: round(value, 3) for name, value in result.items()}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(result[name] <= limit for name, limit in LIMITS.items()) else 1


def name_of(number: int) -> str:
    return f"svc-{number:03}"


def make(client: KubeClient, services: int) -> None:
    """Write the services, and wait for the objects of all."""
    model = {"apiVersion": kinds.MODELS.api_version, "kind": "Model", "metadata": {"name": "base"}}
    client.create(kinds.MODELS, NAMESPACE, {**model, "spec": {"source": "org/repo"}})

    def write(number: int) -> None:
        spec: Json = {"modelRef": "base", "runtime": "vllm", "skipModelInit": True, "slo": {"objective": "99.5"}}
        spec["autoscaling"] = {"maxReplicas": 3}
        client.create(
            kinds.INFERENCE_SERVICES,
            NAMESPACE,
            {
                "apiVersion": kinds.INFERENCE_SERVICES.api_version,
                "kind": "InferenceService",
                "metadata": {"name": name_of(number), "annotations": ANNOTATIONS},
                "spec": spec,
            },
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(services)))
    for kind in (*{kind for kind, _ in EDITS},):
        wait(lambda kind=kind: len(client.list(kind, NAMESPACE, limit=1000)["items"]) >= services, 240)  # type: ignore[misc]


def settle(subject: Subject) -> None:
    """Wait until the engine is idle."""
    before = -1.0
    while (now := subject.metric("herdsman_engine_cli_processes_total")) != before:
        before = now
        time.sleep(4)


def measure(client: KubeClient, services: int, edits: int, pause_s: float) -> dict[str, float]:
    """Edit one object after the other and wait for each repair."""
    chance = random.Random(SEED)
    took: dict[str, list[float]] = {}
    for _ in range(edits):
        service = name_of(chance.randrange(services))
        if chance.random() < DELETED_SHARE:
            kind = chance.choice(DELETIONS)
            took.setdefault("deleted", []).append(deletion(client, kind, service))
        else:
            kind, body = chance.choice(EDITS)
            took.setdefault(kind.kind, []).append(edit(client, kind, service, body))
        time.sleep(chance.uniform(0, pause_s))
    everything = Latencies(tuple(sorted(seconds for each in took.values() for seconds in each)))
    slowest = {f"{kind}: slowest (s)": max(each) for kind, each in sorted(took.items())}
    return {
        "repaired p50 (s)": everything.quantile(0.5),
        "repaired p99 (s)": everything.quantile(0.99),
        "repaired max (s)": everything.values[-1],
        **slowest,
    }


def edit(client: KubeClient, kind: Kind, service: str, body: Json) -> float:
    """Patch an object; return the seconds from the answer until the patched fields have their old values."""
    name = f"{service}-availability" if kind is kinds.SERVICE_LEVEL_OBJECTIVES else service
    before = at(client.get(kind, NAMESPACE, name), body)
    changed = client.patch(kind, NAMESPACE, name, body, field_manager=WHO)
    began = time.monotonic()
    if at(changed, body) == before:
        raise RuntimeError(f"the edit {body} of {kind.kind} changes nothing")
    wait(lambda: at(client.get(kind, NAMESPACE, name), body) == before, TIMEOUT_S)
    return time.monotonic() - began


def at(obj: Any, body: Any) -> Any:
    """Return an object's values of the fields in a patch."""
    if not isinstance(body, dict):
        return obj
    return {key: at(obj.get(key) if isinstance(obj, dict) else None, value) for key, value in body.items()}


def deletion(client: KubeClient, kind: Kind, service: str) -> float:
    """Delete an object; return the seconds from the answer until a new one exists."""
    uid = client.get(kind, NAMESPACE, service)["metadata"]["uid"]
    client.delete(kind, NAMESPACE, service)
    began = time.monotonic()

    def made() -> bool:
        try:
            return bool(client.get(kind, NAMESPACE, service)["metadata"]["uid"] != uid)
        except NotFound:
            return False

    wait(made, TIMEOUT_S)
    return time.monotonic() - began


def wait(look: Callable[[], bool], timeout_s: float) -> None:
    """Wait until `look` returns true. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s")
        time.sleep(POLL_S)
