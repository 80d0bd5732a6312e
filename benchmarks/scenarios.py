"""The scenarios, each on a running control plane and one subject. All traffic stays on loopback."""

from __future__ import annotations

import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from benchmarks.subject import Subject
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from tools.localcluster import LocalCluster

_PAUSE_S = 1.0
"""Between two changes, so that each is measured alone."""


@dataclass(frozen=True)
class Latencies:
    """Sorted durations in seconds."""

    values: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """Return the value below which `share` of the measurements lie (nearest rank)."""
        return self.values[min(len(self.values) - 1, int(share * len(self.values)))]


def make_namespace(client: KubeClient, name: str, *, model_source: str) -> None:
    """Make a namespace with the Model `base`."""
    client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    model = {
        "apiVersion": kinds.MODELS.api_version,
        "kind": "Model",
        "metadata": {"name": "base"},
        "spec": {"source": model_source},
    }
    client.create(kinds.MODELS, name, model)


def create_services(
    client: KubeClient, namespace: str, count: int, *, timeout_s: float, autoscaled: bool = False
) -> float:
    """Write `count` services and wait until each has its Deployment; return the seconds from the first write."""
    # A watch reports each Deployment once. Repeated lists would cost the server more than the subject does.
    seen: set[str] = set()
    last_seen_at = [0.0]
    done = threading.Event()
    version = client.list(kinds.DEPLOYMENTS, namespace)["metadata"]["resourceVersion"]
    watch = client.watch(kinds.DEPLOYMENTS, namespace, label_selector=None, resource_version=version, timeout_s=900)

    def follow() -> None:
        for _, obj in watch:
            name = obj["metadata"].get("name", "")
            if name.startswith("svc-") and name not in seen:
                seen.add(name)
                last_seen_at[0] = time.monotonic()
                if len(seen) >= count:
                    done.set()
                    return

    threading.Thread(target=follow, daemon=True).start()
    began = time.monotonic()

    def write(number: int) -> None:
        client.create(kinds.INFERENCE_SERVICES, namespace, service_manifest(f"svc-{number:04d}", autoscaled))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(count)))
    if not done.wait(timeout_s):
        watch.stop()
        raise TimeoutError(f"{len(seen)} of {count} Deployments after {timeout_s:.0f} s")
    return last_seen_at[0] - began


def service_manifest(name: str, autoscaled: bool = False) -> dict[str, object]:
    """Return the smallest service, with a HorizontalPodAutoscaler if it is `autoscaled`."""
    spec: dict[str, object] = {"modelRef": "base", "contextSize": 4096}
    if autoscaled:
        spec["autoscaling"] = {"minReplicas": 1, "maxReplicas": 2}
    return {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": spec,
    }


def change_latencies(client: KubeClient, namespace: str, *, services: int, changes: int, rest_s: float) -> Latencies:
    """Change one service at a time, after `rest_s` seconds; return the times until its Deployment shows the change.

    Without the rest, the first changes wait for a subject that still writes the statuses of the services it created.
    """
    time.sleep(rest_s)
    seen: dict[str, str] = {}
    news = threading.Condition()
    version = client.list(kinds.DEPLOYMENTS, namespace)["metadata"]["resourceVersion"]
    watch = client.watch(kinds.DEPLOYMENTS, namespace, label_selector=None, resource_version=version, timeout_s=900)

    def follow() -> None:
        for _, obj in watch:
            containers = obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers")
            if containers:
                with news:
                    seen[obj["metadata"]["name"]] = " ".join(containers[0].get("args", ()))
                    news.notify_all()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    measured = []
    for number in range(changes):
        name = f"svc-{number * 7 % services:04d}"
        size = 8192 + number
        began = time.monotonic()
        client.patch(kinds.INFERENCE_SERVICES, namespace, name, {"spec": {"contextSize": size}})
        with news:
            flag = f"--ctx-size {size}"
            done = news.wait_for(partial(_has, seen, name, flag), timeout=60)
        if not done:
            raise TimeoutError(f"the change of {name} did not arrive within 60 s")
        measured.append(time.monotonic() - began)
        time.sleep(_PAUSE_S)
    watch.stop()
    follower.join(10)
    return Latencies(tuple(sorted(measured)))


def _has(seen: dict[str, str], name: str, flag: str) -> bool:
    return flag in seen.get(name, "")


@dataclass(frozen=True)
class Restart:
    """The cost of a start without changes to make."""

    seconds_to_idle: float
    engine_processes: int


def restart(subject: Subject, *, services: int) -> Restart:
    """Start the subject on `services` unchanged services and wait until all are reconciled and the queue is empty."""
    began = time.monotonic()
    subject.start()
    subject.wait_ready()
    while subject.metric("herdsman_reconciles_total") < services or subject.metric("herdsman_queue_depth") > 0:
        if time.monotonic() - began > 120:
            raise TimeoutError("still busy after 120 s")
        time.sleep(0.05)
    elapsed = time.monotonic() - began
    time.sleep(2.0)
    return Restart(elapsed, int(subject.metric("herdsman_engine_cli_processes_total")))


@dataclass(frozen=True)
class Idle:
    """The cost of an idle subject."""

    seconds: float
    cpu_s: float
    api_requests: float


def idle(subject: Subject, cluster: LocalCluster, *, seconds: float) -> Idle:
    """Wait `seconds` and return the subject's CPU seconds and the API server's requests of all clients."""
    cpu, requests = subject.cpu_s(), api_requests(cluster)
    time.sleep(seconds)
    return Idle(seconds, subject.cpu_s() - cpu, api_requests(cluster) - requests)


def api_requests(cluster: LocalCluster) -> float:
    """Return all requests that the API server has answered, also those to itself; watches count when they end."""
    with urllib.request.urlopen(f"{cluster.server}/metrics", context=cluster.ssl_context(), timeout=30) as answer:
        text = answer.read().decode()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("apiserver_request_total{")
    )


def remove_namespace(client: KubeClient, namespace: str) -> None:
    """Delete the services of a namespace, so that the next subject starts with an idle cluster."""
    for item in client.list(kinds.INFERENCE_SERVICES, namespace)["items"]:
        try:
            client.delete(kinds.INFERENCE_SERVICES, namespace, item["metadata"]["name"])
        except NotFound:
            continue
    for item in _deployments(client, namespace):
        try:
            client.delete(kinds.DEPLOYMENTS, namespace, item["metadata"]["name"])
        except NotFound:
            continue


def _deployments(client: KubeClient, namespace: str) -> list[dict[str, dict[str, str]]]:
    # From the server's watch cache, so that frequent lists do not load the store.
    items: list[dict[str, dict[str, str]]] = client.list(kinds.DEPLOYMENTS, namespace, resource_version="0")["items"]
    return items
