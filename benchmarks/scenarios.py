"""The scenarios, each on a running control plane and one subject. All traffic stays on loopback."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from benchmarks.deployment_watch import deployment_watch
from benchmarks.subject import Subject
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.discovery import ACCEPT
from kubeapi.errors import NotFound
from kubeapi.kinds import Kind, group_version_path
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
    client: KubeClient,
    namespace: str,
    count: int,
    *,
    timeout_s: float,
    autoscaled: bool = False,
    check: Callable[[], None] = lambda: None,
) -> float:
    """Write `count` services and wait until each has its Deployment; return the seconds from the first write.

    `check` is called twice a second and may raise, if the controller has ended.

    Raises:
        TimeoutError: not all Deployments exist after `timeout_s`.
    """

    def write(number: int) -> None:
        client.create(kinds.INFERENCE_SERVICES, namespace, service_manifest(f"svc-{number:04d}", autoscaled))

    with deployment_watch(client, namespace) as watch:
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(count)))
        what = f"the Deployments of {count} services"
        return watch.await_state(lambda seen: len(seen) >= count, what, timeout_s=timeout_s, check=check) - began


def await_working(client: KubeClient, namespace: str, *, source: str, check: Callable[[], None]) -> None:
    """Wait until a controller without a health check works: it makes the Deployment of a service in a new namespace.

    Raises:
        TimeoutError: it did not within a minute.
    """
    make_namespace(client, namespace, model_source=source)
    create_services(client, namespace, 1, timeout_s=60, check=check)
    clear_namespace(client, namespace)


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


_LABEL = re.compile(r'(\w+)="([^"]*)"')
CLEAR_S = 300.0
"""The time limit for the deletion of all objects of a kind. 5,000 took longer than the default of 30 s."""
QUIET_RATE = 5.0
"""Requests a second of all clients below which a controller counts as at rest."""


def await_rest(cluster: LocalCluster, *, timeout_s: float) -> float:
    """Wait until the API server answers fewer than QUIET_RATE requests a second; return its last rate.

    After `timeout_s` it returns the higher rate of a controller that does not come to rest. Changes then wait behind
    the work that this controller makes for itself, so the rate belongs beside their durations.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        before, began = api_requests(cluster), time.monotonic()
        time.sleep(2.0)
        rate = (api_requests(cluster) - before) / (time.monotonic() - began)
        if rate < QUIET_RATE or time.monotonic() > deadline:
            return rate


def change_latencies(
    client: KubeClient,
    namespace: str,
    *,
    services: int,
    changes: int,
    check: Callable[[], None] = lambda: None,
) -> Latencies:
    """Change one service at a time; return the times until its Deployment shows the change.

    Call it after a rest: else the first changes wait for a subject that still writes the statuses of new services.
    `check` is called twice a second and may raise, if the controller has ended.

    Raises:
        TimeoutError: a change did not arrive within a minute.
    """
    measured = []
    with deployment_watch(client, namespace) as watch:
        for number in range(changes):
            name = f"svc-{number * 7 % services:04d}"
            size = 8192 + number
            began = time.monotonic()
            client.patch(kinds.INFERENCE_SERVICES, namespace, name, {"spec": {"contextSize": size}})
            shown = partial(_has, name=name, flag=f"--ctx-size {size}")
            measured.append(watch.await_state(shown, f"the change of {name}", timeout_s=60, check=check) - began)
            time.sleep(_PAUSE_S)
    return Latencies(tuple(sorted(measured)))


def _has(seen: Mapping[str, str], *, name: str, flag: str) -> bool:
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
    return sum(value for _, value in api_request_counts(cluster))


def api_request_counts(cluster: LocalCluster) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the numbers of requests that the API server has answered, with their labels: verb, resource, code."""
    with urllib.request.urlopen(f"{cluster.server}/metrics", context=cluster.ssl_context(), timeout=30) as answer:
        text = answer.read().decode()
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{"):
            labels, _, value = line.removeprefix("apiserver_request_total{").rpartition("} ")
            yield dict(_LABEL.findall(labels)), float(value)


def clear_namespace(client: KubeClient, namespace: str) -> None:
    """Delete all objects of a namespace, so that the next subject does not list what this one made.

    There is no garbage collector, and finalizers of a stopped subject are removed.
    """
    for kind in _deletable(client):
        client.request("DELETE", kind.path(namespace), timeout_s=CLEAR_S)
        for item in client.list(kind, namespace)["items"]:
            with contextlib.suppress(NotFound):
                client.patch(kind, namespace, item["metadata"]["name"], {"metadata": {"finalizers": None}})


def _deletable(client: KubeClient) -> Iterator[Kind]:
    """Yield the namespaced kinds that the API server serves and whose objects can be deleted together."""
    for each in client.request("GET", group_version_path("v1"))["resources"]:
        if each["namespaced"] and "deletecollection" in each["verbs"]:
            yield Kind("v1", each["kind"], each["name"], True)
    for group in client.request("GET", "/apis", accept=ACCEPT["/apis"])["items"]:
        preferred = group["versions"][0]
        for each in preferred["resources"]:
            if each["scope"] == "Namespaced" and "deletecollection" in each["verbs"]:
                version = f"{group['metadata']['name']}/{preferred['version']}"
                yield Kind(version, each["responseKind"]["kind"], each["resource"], True)
