"""`python -m benchmarks many-states`: a leader dies that has 1,000 services in 100 namespaces.

Each namespace has a stack. Two real loops over one PostgreSQL server, a real API server, the real engine. The leader
is killed, then services of some namespaces are edited. Measured are the seconds until the next leader has applied the
first and the last of these edits, and until it has read the state of all namespaces and reconciled all services, which
it does in the background; and the cost: CPU seconds, requests to the API server, transactions of PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import preview
from benchmarks.failover import LIMIT_S
from benchmarks.subject import Subject
from benchmarks.workbench import free_port
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.postgres import Postgres
from tools.localcluster import LocalCluster

EDITS = 4
"""Number of namespaces that are edited after the leader was killed."""
_WRITERS = 8


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if the limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks many-states", description=__doc__)
    parser.add_argument("--namespaces", type=int, default=100)
    parser.add_argument("--services", type=int, default=1000, help="in all namespaces together")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    table = Postgres()
    loops: list[Subject] = []
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        namespaces = [f"many-{number:03}" for number in range(options.namespaces)]
        preview.install(client)
        loops.append(_start_loop("one", cluster, table, directory))
        began = time.monotonic()
        _until(lambda: _when(loops[0], "Became the leader"), "a leader", timeout_s=60)
        count = _prepare(client, namespaces, options.services)
        _until(lambda: _made(client) >= count, "all Deployments", timeout_s=900, pause_s=2)
        _until(lambda: loops[0].metric("herdsman_queue_depth") == 0, "an empty queue", timeout_s=120)
        made_s = time.monotonic() - began
        loops.append(_start_loop("two", cluster, table, directory))
        _until(lambda: _when(loops[1], "Waiting for the leader lease"), "a second loop", timeout_s=60)
        # The statuses of the last services are written, and the second loop fills its caches.
        time.sleep(10)
        result = {"all services made (s)": round(made_s, 1), **_fail_over(client, loops, table, namespaces, count)}
        client.close()
    finally:
        for loop in loops:
            loop.kill()
        table.close()
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if result["last edit applied (s)"] <= LIMIT_S else 1


@dataclass(frozen=True)
class _Cost:
    """The resources that the loop with its ended children, and all clients of PostgreSQL, have used."""

    cpu_s: float
    requests: float
    transactions: int

    def since(self, before: _Cost, until: str) -> Json:
        return {
            f"CPU until {until} (s)": round(self.cpu_s - before.cpu_s, 1),
            f"API requests until {until}": int(self.requests - before.requests),
            f"PostgreSQL transactions until {until}": self.transactions - before.transactions,
        }


def _cost(loop: Subject, table: Postgres) -> _Cost:
    return _Cost(loop.cpu_s(), loop.metric("herdsman_api_requests_total"), table.transactions())


def _fail_over(
    client: KubeClient, loops: Sequence[Subject], table: Postgres, namespaces: Sequence[str], services: int
) -> Json:
    old, new = loops
    step = max(1, len(namespaces) // EDITS)
    waiting = list(namespaces[step - 1 :: step])
    edits = len(waiting)
    before = _cost(new, table)
    old.kill()
    died, died_at = time.monotonic(), time.time()
    for namespace in waiting:
        client.patch(kinds.INFERENCE_SERVICES, namespace, "svc-0", {"spec": {"replicas": 2}})
    applied_s = []
    while waiting:
        applied = _until(partial(_applied, client, waiting), "an edit to be applied", timeout_s=300)
        applied_s += [time.monotonic() - died] * len(applied)
        waiting = [namespace for namespace in waiting if namespace not in applied]
    working = _cost(new, table)
    read = _until(lambda: _when(new, "Read the state"), "the state to be read", timeout_s=300)
    _until(lambda: _is_settled(new, services), "all services to be reconciled", timeout_s=300)
    settled_s = time.monotonic() - died
    leading, started = (_when(new, event) or 0.0 for event in ("Became the leader", "Started"))
    return {
        "namespaces": len(namespaces),
        "services": services,
        "edits": edits,
        "leading (s)": round(leading - died_at, 1),
        "workers started (s)": round(started - died_at, 1),
        "first edit applied (s)": round(applied_s[0], 1),
        "last edit applied (s)": round(applied_s[-1], 1),
        "all of the state read (s)": round(read - died_at, 1),
        "all services reconciled (s)": round(settled_s, 1),
        **working.since(before, "the last edit"),
        **_cost(new, table).since(before, "all services"),
        "RSS of the new leader (MB)": round(new.stop().main_rss_bytes / 1e6),
    }


def _is_settled(loop: Subject, services: int) -> bool:
    return loop.metric("herdsman_reconciles_total") >= services and loop.metric("herdsman_queue_depth") == 0


def _start_loop(name: str, cluster: LocalCluster, table: Postgres, directory: Path) -> Subject:
    port = free_port()
    command = [
        *(sys.executable, "-m", "automation.cli", "run", f"--state={table.url}"),
        *(f"--health-port={port}", "--log-format=json", "--log-level=debug"),
    ]
    own = {"HERDSMAN_PASSPHRASE": "many-states", "HERDSMAN_WORK_DIR": str(directory / name)}
    url = f"http://127.0.0.1:{port}"
    loop = Subject(name, shlex.join(command), cluster.kubeconfig, directory, url, {**table.environment, **own})
    loop.start()
    return loop


def _when(loop: Subject, event: str) -> float | None:
    """Return the Unix time of an event in a loop's log; None if the event is not there."""
    loop.check_alive()
    for line in loop.log.read_text(errors="replace").splitlines():
        if event in line:
            try:
                said = json.loads(line)
            except ValueError:  # the last line may be incomplete
                continue
            if said.get("event") == event:
                return datetime.fromisoformat(said["timestamp"]).timestamp()
    return None


def _prepare(client: KubeClient, namespaces: Sequence[str], services: int) -> int:
    """Make the namespaces with their services, the same number in each; return the number of all services."""
    share = max(1, services // len(namespaces))
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(lambda namespace: _make(client, namespace, share), namespaces))
    return share * len(namespaces)


def _make(client: KubeClient, namespace: str, services: int) -> None:
    body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    client.create(kinds.NAMESPACES, None, body)
    api = kinds.MODELS.api_version
    model: Json = {"apiVersion": api, "kind": "Model", "metadata": {"name": "base"}, "spec": {"source": "org/repo"}}
    client.create(kinds.MODELS, namespace, model)
    spec = {"modelRef": "base", "runtime": "vllm", "skipModelInit": True}
    for number in range(services):
        metadata = {"name": f"svc-{number}"}
        service: Json = {"apiVersion": api, "kind": "InferenceService", "metadata": metadata, "spec": spec}
        client.create(kinds.INFERENCE_SERVICES, namespace, service)


def _made(client: KubeClient) -> int:
    return len(client.list(kinds.DEPLOYMENTS, resource_version="0")["items"])


def _applied(client: KubeClient, namespaces: Sequence[str]) -> list[str]:
    """Return those of the namespaces whose edited Deployment has two replicas."""
    return [
        namespace
        for namespace in namespaces
        if client.get(kinds.DEPLOYMENTS, namespace, "svc-0")["spec"]["replicas"] == 2
    ]


def _until(look: Callable[[], Any], what: str, *, timeout_s: float, pause_s: float = 0.1) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (answer := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(pause_s)
    return answer
