"""`python -m benchmarks kserve`: services of KServe with a scheduler, from their custom resources to all their objects.

A real API server with the CRDs of the Gateway API and its inference extension, the loop with the real engine. Each
service has two Deployments, two Services, an account with its role and bindings, a pool, a route, and a certificate.
Then services are changed one after the other, and the rendering of one object of each dialect is timed. CPU is that of
the loop and of the engine's processes; on a machine with other work it is more reliable than seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import scenarios
from benchmarks.host_start import NAMESPACE, install
from benchmarks.scenarios import Latencies
from benchmarks.subject import Subject, own_loop, running
from benchmarks.workbench import serve
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.crds.definitions import crd_documents
from program.dialects.registry import dialect_named
from tests.support import peer_crds
from tools.localcluster import LocalCluster

LIMITS = {"create (s)": 60.0, "render a service of KServe p50 (ms)": 5.0, "render a Playground p50 (ms)": 5.0}
HEALTH_PORT = 18485
TIMEOUT_S = 300.0
POLL_S = 0.1
PER_SERVICE: dict[Kind, int] = {
    kinds.DEPLOYMENTS: 2,
    kinds.SERVICES: 2,
    kinds.SECRETS: 1,
    kinds.SERVICE_ACCOUNTS: 1,
    kinds.ROLES: 1,
    kinds.ROLE_BINDINGS: 1,
    kinds.CLUSTER_ROLE_BINDINGS: 1,
    kinds.INFERENCE_POOLS: 1,
    kinds.HTTP_ROUTES: 1,
}
"""Objects of each service by kind."""
SELECTOR = "app.kubernetes.io/part-of=llminferenceservice"
ROUNDS = 300
PROCESSES = "herdsman_engine_cli_processes_total"
REST_S = 15.0
"""Seconds between the creation of InferenceServices and the first change of one."""
SETTLE_S = 3.0
"""Seconds after the creation until follow-up work, such as revisions, is finished."""


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kserve", description=__doc__)
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument(
        "--beside", type=int, default=0, help="then create so many InferenceServices, and change these one by one"
    )
    options = parser.parse_args(arguments)
    result = {**rendering("kserve", "render a service of KServe"), **rendering("llmaz", "render a Playground")}
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    os.environ["HERDSMAN_API_CHECK_S"] = "1"
    options_of_loop = ("--log-format=json", "--allowed-remote-hosts=127.0.0.0/8")
    loop = own_loop(cluster.kubeconfig, directory, *options_of_loop, port=HEALTH_PORT)
    server = serve(directory / "models")
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install(client)
        for document in crd_documents("kserve"):
            client.apply(kinds.CRDS, None, document, field_manager="benchmarks", force=True)
        with peer_crds.installed(client), running(loop) as subject:
            result |= measure(client, subject, options.services, options.changes)
            if options.beside:
                source = f"http://127.0.0.1:{server.server_address[1]}/tiny.gguf"
                result |= change_beside(client, cluster, subject, options.beside, options.changes, source)
            usage = subject.stop()
            result |= {"RSS (MB)": usage.main_rss_bytes / 1e6, "RSS of a child (MB)": usage.child_rss_bytes / 1e6}
    finally:
        server.shutdown()
        server.server_close()
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    json.dump({name: round(value, 3) for name, value in result.items()}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(result[name] <= limit for name, limit in LIMITS.items()) else 1


def service(number: int, *, replicas: int = 1) -> Json:
    """Return one service with scheduler, route and the global gateway."""
    return {
        "apiVersion": kinds.LLM_SERVICES.api_version,
        "kind": "LLMInferenceService",
        "metadata": {"name": f"svc-{number:03}", "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": "hf://acme/tiny-1b", "name": "tiny"},
            "replicas": replicas,
            "router": {"scheduler": {}, "route": {}, "gateway": {}},
        },
    }


def measure(client: KubeClient, subject: Subject, services: int, changes: int) -> dict[str, float]:
    """Create all services, then change one after the other."""
    arrivals = [Arrivals(client, kind, services * each) for kind, each in PER_SERVICE.items()]
    started, cpu_s = time.monotonic(), subject.cpu_s()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: client.create(kinds.LLM_SERVICES, NAMESPACE, service(number)), range(services)))
    written_s = time.monotonic() - started
    made_s = max(each.wait() for each in arrivals) - started
    wait(lambda: told(client) >= services, "a status of each")
    told_s = time.monotonic() - started
    time.sleep(SETTLE_S)
    created_cpu_s, cpu_s = subject.cpu_s() - cpu_s, subject.cpu_s()
    processes = subject.metric(PROCESSES)
    times = (changed(client, number * 7 % services, 2 + number) for number in range(changes))
    took = Latencies(tuple(sorted(times)))
    changed_cpu_s = subject.cpu_s() - cpu_s
    return {
        "services": services,
        "objects": sum(len(each.seen) for each in arrivals),
        "custom resources written (s)": written_s,
        "create (s)": made_s,
        "statuses (s)": told_s,
        "CPU of creation (s)": created_cpu_s,
        "engine processes of creation": processes,
        "change p50 (s)": took.quantile(0.5),
        "change max (s)": took.values[-1],
        "CPU of a change (s)": changed_cpu_s / changes,
    }


def change_beside(
    client: KubeClient, cluster: LocalCluster, subject: Subject, services: int, changes: int, source: str
) -> dict[str, float]:
    """Create InferenceServices beside those of KServe, wait for rest, and change one after the other."""
    namespace = "beside"
    scenarios.make_namespace(client, namespace, model_source=source)
    scenarios.create_services(
        client, namespace, services, timeout_s=TIMEOUT_S, autoscaled=True, check=subject.check_alive
    )
    time.sleep(REST_S)
    rate = scenarios.await_rest(cluster, timeout_s=TIMEOUT_S)
    took = scenarios.change_latencies(client, namespace, services=services, changes=changes, check=subject.check_alive)
    return {
        "InferenceServices": services,
        "at rest: API requests per second": rate,
        "change of an InferenceService p50 (s)": took.quantile(0.5),
        "change of an InferenceService p99 (s)": took.quantile(0.99),
    }


class Arrivals:
    """Follows the objects of a kind by a watch. Repeated lists would cost the server more than the loop does."""

    def __init__(self, client: KubeClient, kind: Kind, expected: int) -> None:
        """Open the watch. `expected` is the number of KServe's objects to wait for."""
        self.seen: set[str] = set()
        self._kind = kind
        self._expected = expected
        self._complete = threading.Event()
        self._last_at = 0.0
        namespace = NAMESPACE if kind.namespaced else None
        version = client.list(kind, namespace, label_selector=SELECTOR)["metadata"]["resourceVersion"]
        self._watch = client.watch(
            kind, namespace, label_selector=SELECTOR, resource_version=version, timeout_s=TIMEOUT_S
        )
        threading.Thread(target=self._follow, daemon=True).start()

    def wait(self) -> float:
        """Wait for all objects; return the monotonic time of the last one. Raises TimeoutError."""
        if not self._complete.wait(TIMEOUT_S):
            raise TimeoutError(f"{len(self.seen)} of {self._expected} {self._kind.plural} after {TIMEOUT_S:.0f} s")
        return self._last_at

    def _follow(self) -> None:
        for event, obj in self._watch:
            if event == "ADDED":
                self.seen.add(obj["metadata"]["name"])
                if len(self.seen) >= self._expected:
                    self._last_at = time.monotonic()
                    self._complete.set()
                    return


def told(client: KubeClient) -> int:
    """Return the number of services whose status contains their objects."""
    found = client.list(kinds.LLM_SERVICES, NAMESPACE)["items"]
    return sum(1 for each in found if (each.get("status") or {}).get("workloads"))


def changed(client: KubeClient, number: int, replicas: int) -> float:
    """Change the number of replicas; return the seconds until the Deployment has it."""
    started = time.monotonic()
    name = f"svc-{number:03}"
    client.patch(kinds.LLM_SERVICES, NAMESPACE, name, {"spec": {"replicas": replicas}})

    def follows() -> bool:
        return bool(client.get(kinds.DEPLOYMENTS, NAMESPACE, f"{name}-kserve")["spec"]["replicas"] == replicas)

    wait(follows, f"{name} to have {replicas} replicas", poll_s=0.01)
    return time.monotonic() - started


def wait(holds: Callable[[], bool], what: str, *, poll_s: float = POLL_S) -> None:
    """Wait until `holds` returns true. Raises TimeoutError."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {TIMEOUT_S:.0f} s for {what}")
        time.sleep(poll_s)


class Nothing:
    """A `Lookup` that finds OpenModels of any name and no other object."""

    reads_model_status = False

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:  # noqa: ARG002
        if kind is not kinds.OPEN_MODELS:
            return None
        source = {"modelHub": {"modelID": "acme/tiny", "filename": "tiny.gguf"}}
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, "uid": "of-the-model"},
            "spec": {"familyName": "acme", "source": source},
        }

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:  # noqa: ARG002
        return ()


def rendering(dialect: str, name: str) -> dict[str, float]:
    """Measure the time to parse and render one object, over many rounds."""
    playground = {
        "apiVersion": kinds.PLAYGROUNDS.api_version,
        "kind": "Playground",
        "metadata": {"name": "chat", "namespace": NAMESPACE},
        "spec": {"modelClaim": {"modelName": "tiny"}, "backendRuntimeConfig": {"backendName": "llamacpp"}},
    }
    cr = service(1) if dialect == "kserve" else playground
    options, parser, took = RenderOptions(), dialect_named(dialect), []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        render(parser.parse(cr, Nothing()).desired, options)
        took.append((time.perf_counter() - started) * 1000)
    found = Latencies(tuple(sorted(took)))
    return {f"{name} p50 (ms)": found.quantile(0.5), f"{name} p99 (ms)": found.quantile(0.99)}
