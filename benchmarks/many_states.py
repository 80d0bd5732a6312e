"""`python -m benchmarks many-states`: a leader dies whose state has a stack for each of 100 namespaces.

Two real loops over one PostgreSQL server, a real API server, the real engine. The leader is killed, then services of
four namespaces are edited. It measures the seconds until the next leader has applied the first and the last of these
edits, and until it has read the state of all namespaces. The other namespaces are paused, each with a copy of a real
stack.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.failover import LIMIT_S
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_MODE
from program.dialects.crds.definitions import crd_documents
from tests.support.postgres import Postgres, stack_key
from tools.localcluster import LocalCluster

MANAGER = "many-states"
EDITS = 4
"""Number of namespaces that are edited after the leader was killed."""


class Loop:
    """One `herdsman run`."""

    def __init__(self, name: str, cluster: LocalCluster, table: Postgres, directory: Path) -> None:
        self.log = directory / f"{name}.log"
        command = [
            *(sys.executable, "-m", "automation.cli", "run", f"--kubeconfig={cluster.kubeconfig}"),
            *(f"--state={table.url}", "--health-port=-1", "--log-format=json", "--log-level=debug"),
        ]
        own = {"HERDSMAN_PASSPHRASE": "many-states", "HERDSMAN_WORK_DIR": str(directory / name)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **table.environment, **own}
            )

    def kill(self) -> None:
        """End it at once, like a machine that fails."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def lines(self) -> list[Json]:
        """Return its log so far."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def ran(self) -> int:
        """Return the number of its finished engine runs."""
        return sum(line.get("event") == "Ran a batch" for line in self.lines())

    def when(self, event: str) -> float | None:
        """Return the Unix time of an event in its log; None if the event is not there."""
        said = next((line for line in self.lines() if line.get("event") == event), None)
        return datetime.fromisoformat(said["timestamp"]).timestamp() if said is not None else None


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if the limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks many-states", description=__doc__)
    parser.add_argument("--namespaces", type=int, default=100)
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    table = Postgres()
    loops: list[Loop] = []
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        namespaces = [f"many-{number:03}" for number in range(options.namespaces)]
        step = max(1, len(namespaces) // EDITS)
        edited = namespaces[step - 1 :: step]
        _prepare(client, namespaces, edited)
        loops.append(Loop("one", cluster, table, directory))
        _until(lambda: loops[0].when("Became the leader"), "a leader", timeout_s=60)
        _until(lambda: _applied(client, edited, 1) == len(edited), "all services", timeout_s=300)
        _until(lambda: loops[0].ran() >= len(edited), "the end of all runs", timeout_s=60)
        state = table.read(stack_key(edited[0])).decode()
        for namespace in set(namespaces) - set(edited):
            table.write(stack_key(namespace), state.replace(edited[0], namespace).encode())
        loops.append(Loop("two", cluster, table, directory))
        _until(lambda: loops[1].when("Waiting for the leader lease"), "a second loop", timeout_s=60)
        result = _fail_over(client, loops, namespaces, edited)
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


def _fail_over(client: KubeClient, loops: list[Loop], namespaces: list[str], edited: list[str]) -> Json:
    loops[0].kill()
    died, died_at = time.monotonic(), time.time()
    for namespace in edited:
        client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", {"spec": {"replicas": 2}})
    _until(lambda: _applied(client, edited, 2) >= 1, "an edit to be applied", timeout_s=300)
    first_s = time.monotonic() - died
    _until(lambda: _applied(client, edited, 2) == len(edited), "all edits to be applied", timeout_s=300)
    last_s = time.monotonic() - died
    leading, started = (loops[1].when(event) or 0.0 for event in ("Became the leader", "Started"))
    read = None
    if loops[1].when("Read the state") is not None or started - leading < last_s / 2:
        read = _until(lambda: loops[1].when("Read the state"), "the state to be read", timeout_s=300)
    return {
        "namespaces": len(namespaces),
        "edits": len(edited),
        "leading (s)": round(leading - died_at, 1),
        "workers started (s)": round(started - died_at, 1),
        "first edit applied (s)": round(first_s, 1),
        "last edit applied (s)": round(last_s, 1),
        "all of the state read (s)": round((read or started) - died_at, 1),
    }


def _prepare(client: KubeClient, namespaces: Iterable[str], active: Iterable[str]) -> None:
    for document in crd_documents():
        client.apply(kinds.CRDS, None, document, field_manager=MANAGER, force=True)
    for namespace in namespaces:
        metadata = {"name": namespace, "annotations": {ANNOTATION_MODE: "Apply" if namespace in active else "Paused"}}
        body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        client.apply(kinds.NAMESPACES, None, body, field_manager=MANAGER)
    for namespace in namespaces:
        _until(lambda namespace=namespace: _make(client, namespace), "the CRDs to be served", timeout_s=60)  # type: ignore[misc]


def _make(client: KubeClient, namespace: str) -> bool:
    api = kinds.MODELS.api_version
    model: Json = {"apiVersion": api, "kind": "Model", "metadata": {"name": "base"}, "spec": {"source": "org/repo"}}
    spec = {"modelRef": "base", "runtime": "vllm", "skipModelInit": True}
    service: Json = {"apiVersion": api, "kind": "InferenceService", "metadata": {"name": "svc"}, "spec": spec}
    try:
        client.apply(kinds.MODELS, namespace, model, field_manager=MANAGER)
        client.apply(kinds.INFERENCE_SERVICES, namespace, service, field_manager=MANAGER)
    except ApiError:
        return False
    return True


def _applied(client: KubeClient, namespaces: Iterable[str], replicas: int) -> int:
    """Return in how many of these namespaces the Deployment has this number of replicas."""
    found = 0
    for namespace in namespaces:
        try:
            found += client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["replicas"] == replicas
        except NotFound:
            continue
    return found


def _until(look: Callable[[], Any], what: str, *, timeout_s: float) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (answer := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.1)
    return answer
