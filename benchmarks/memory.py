"""`python -m benchmarks memory`: how much memory an operator's pod needs for a number of services.

The loop and the engine's processes run in a control group with a limit, as in a pod. kwok simulates pods and nodes, so
that the loop keeps the same data of each service as in a cluster. It measures in stages with different content in
memory: all services at once, rest, a change of all, a start with the state, a start without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks.memory_group import MemoryGroup, Reading, memory_group
from benchmarks.subject import Subject
from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.dialects.crds.definitions import crd_documents
from tools import fake_nodes
from tools.localcluster import LocalCluster
from tools.toolchain import locate, override_variable
from tools.versions import CONTROL_PLANE

PORT = 28087
PODS_OF_A_NODE = 100
SAMPLE_S = 0.05


def main(arguments: list[str]) -> int:
    """Measure and print; return 1 if the kernel killed a process or a stage did not end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--namespaces", type=int, default=10)
    parser.add_argument("--limits", default="0", help="limits in MiB to try one after the other, as 1024,512; 0: none")
    parser.add_argument("--parallelism", type=int, default=2, help="engine runs at the same time")
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for each stage")
    parser.add_argument("--stages", type=int, default=5, help="how many: create, rest, change all, two starts")
    parser.add_argument("--bare", action="store_true", help="objects alone: no pods are made, which is quicker")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-memory-"))
    components = ("etcd", "kube-apiserver") if options.bare else CONTROL_PLANE
    cluster = LocalCluster(directory / "cluster", components=components)
    results = []
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        os.environ[override_variable("pulumi")] = str(_unread_copy(locate("pulumi"), directory / "pulumi"))
        with contextlib.ExitStack() as stack:
            if not options.bare:
                stack.enter_context(fake_nodes.simulated(cluster.kubeconfig, directory))
            _prepare(client, nodes=options.services // PODS_OF_A_NODE + 2)
            for number, limit in enumerate(int(word) for word in options.limits.split(",")):
                results.append(_measure(client, cluster, directory / str(number), limit, options))
    finally:
        cluster.down(purge=True)
        shutil.rmtree(directory, ignore_errors=True)
    json.dump(results, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(result["killed by the kernel"] == 0 and "gave up" not in result for result in results) else 1


class _Peaks:
    """The largest readings of a stage, sampled until `close`."""

    def __init__(self, group: MemoryGroup, main: int) -> None:
        self._group, self._main = group, main
        self.held = self.file = self.loop = self.children = self.child = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> dict[str, float]:
        """Stop and return the readings in MiB."""
        self._stop.set()
        self._thread.join()
        found = {
            "held": self.held,
            "page cache": self.file,
            "loop": self.loop,
            "engine processes together": self.children,
            "largest engine process": self.child,
        }
        return {name: round(value / 2**20, 1) for name, value in found.items()}

    def _sample(self) -> None:
        main = psutil.Process(self._main)
        while not self._stop.wait(SAMPLE_S):
            reading: Reading = self._group.read()
            self.held, self.file = max(self.held, reading.held), max(self.file, reading.file)
            with contextlib.suppress(psutil.Error):
                self.loop = max(self.loop, main.memory_info().rss)
                sizes = [child.memory_info().rss for child in main.children(recursive=True)]
                self.children = max(self.children, sum(sizes))
                self.child = max(self.child, *sizes, 0)


@contextlib.contextmanager
def _stage(name: str, result: dict[str, Any], group: MemoryGroup, loop: Subject) -> Iterator[None]:
    peaks = _Peaks(group, loop.pid)
    began = time.monotonic()
    try:
        yield
    finally:
        result[name] = {"seconds": round(time.monotonic() - began, 1), **peaks.close(), "kills": group.kills}
        Console(stderr=True).print(f"  {name}: {result[name]}")


def _measure(
    client: KubeClient, cluster: LocalCluster, directory: Path, limit: int, options: argparse.Namespace
) -> dict[str, Any]:
    Console(stderr=True).print(f"limit {limit or 'none'}", style="bold")
    result: dict[str, Any] = {"limit (MiB)": limit}
    spaces = [f"m-{directory.name}-{number}" for number in range(options.namespaces)]
    state = directory / "state"
    command = f"{sys.executable} -m automation.cli run --state file://{state} --health-port {PORT} --log-format json"
    # A simulated pod answers no request.
    os.environ["HERDSMAN_COMPLETION_CHECK"] = "false"
    os.environ["HERDSMAN_ENGINE_PARALLELISM"] = str(options.parallelism)
    with memory_group(limit * 2**20) as group:
        loop = Subject("loop", group.entering(command), cluster.kubeconfig, directory, f"http://127.0.0.1:{PORT}")
        try:
            _stages(client, loop, group, spaces, state, result, options)
        except (TimeoutError, RuntimeError, OSError) as error:
            log = (directory / "loop.log").read_text(errors="replace").splitlines()
            result["gave up"] = "\n".join([str(error), *log[-3:]])
        finally:
            loop.stop()
            result["killed by the kernel"] = group.kills
            _clear(client, spaces)
    return result


def _stages(
    client: KubeClient,
    loop: Subject,
    group: MemoryGroup,
    spaces: list[str],
    state: Path,
    result: dict[str, Any],
    options: argparse.Namespace,
) -> None:
    count, wait = options.services, partial(_await, timeout_s=options.timeout)
    _parallel(partial(_make_namespace, client), spaces)
    loop.start()
    loop.wait_ready()
    with _stage("create", result, group, loop):
        _parallel(lambda number: _create(client, spaces[number % len(spaces)], number), range(count))
        if options.bare:
            wait(lambda: _made(client, spaces) == count, "Deployments")
        else:
            wait(lambda: _ready(client, spaces) == count, "services to be Ready")
    if options.stages < 2:
        return
    with _stage("rest", result, group, loop):
        time.sleep(10)
    if options.stages < 3:
        return
    with _stage("change all", result, group, loop):
        for space in spaces:
            _parallel(
                lambda item: client.patch(
                    kinds.INFERENCE_SERVICES, item["metadata"]["namespace"], item["metadata"]["name"], _CHANGE
                ),
                client.list(kinds.INFERENCE_SERVICES, space)["items"],
            )
        wait(lambda: _changed(client, spaces) == count, "Deployments to have the change")
    if options.stages < 4:
        return
    loop.stop()
    loop.start()
    with _stage("start with state", result, group, loop):
        loop.wait_ready()
        wait(lambda: _is_quiet(loop, count), "a quiet loop")
    if options.stages < 5:
        return
    loop.stop()
    shutil.rmtree(state)
    loop.start()
    with _stage("start without state", result, group, loop):
        loop.wait_ready()
        wait(lambda: _is_quiet(loop, count), "a quiet loop")
        for space in spaces:
            item = client.list(kinds.INFERENCE_SERVICES, space, limit=1)["items"][0]
            client.patch(kinds.INFERENCE_SERVICES, space, item["metadata"]["name"], _CHANGE_AGAIN)
        wait(lambda: _changed(client, spaces, "again") == len(spaces), "Deployments to have the change")


_CHANGE = {"spec": {"env": [{"name": "CHANGED", "value": "once"}]}}
_CHANGE_AGAIN = {"spec": {"env": [{"name": "CHANGED", "value": "again"}]}}


def _prepare(client: KubeClient, nodes: int) -> None:
    for document in crd_documents():
        client.apply(kinds.CRDS, None, document, field_manager="benchmarks", force=True)
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="benchmarks", force=True)
    for number in range(nodes):
        # Nodes have room for twice as many pods, for a rolling update.
        client.create(kinds.NODES, None, fake_nodes.node(f"node-{number}", extended={"pods": 2 * PODS_OF_A_NODE}))


def _unread_copy(program: Path, to: Path) -> Path:
    """Copy a program, so that no process has its pages: the kernel counts pages for the group that reads them first."""
    shutil.copy2(program, to)
    with to.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return to


def _make_namespace(client: KubeClient, name: str) -> None:
    client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    model = {"apiVersion": kinds.MODELS.api_version, "kind": "Model", "metadata": {"name": "base"}}
    client.create(kinds.MODELS, name, {**model, "spec": {"source": "org/repo"}})


def _create(client: KubeClient, namespace: str, number: int) -> None:
    body = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {"name": f"svc-{number}"},
        "spec": {"modelRef": "base", "runtime": "generic", "image": "registry.invalid/engine:1"},
    }
    client.create(kinds.INFERENCE_SERVICES, namespace, body)


def _ready(client: KubeClient, spaces: list[str]) -> int:
    return sum(
        (item.get("status") or {}).get("phase") == "Ready"
        for space in spaces
        for item in client.list(kinds.INFERENCE_SERVICES, space, resource_version="0")["items"]
    )


def _made(client: KubeClient, spaces: list[str]) -> int:
    return sum(len(client.list(kinds.DEPLOYMENTS, space, resource_version="0")["items"]) for space in spaces)


def _changed(client: KubeClient, spaces: list[str], value: str = "once") -> int:
    return sum(
        {"name": "CHANGED", "value": value} in (item["spec"]["template"]["spec"]["containers"][0].get("env") or ())
        for space in spaces
        for item in client.list(kinds.DEPLOYMENTS, space, resource_version="0")["items"]
    )


def _is_quiet(loop: Subject, count: int) -> bool:
    return loop.metric("herdsman_reconciles_total") >= count and loop.metric("herdsman_queue_depth") == 0


def _clear(client: KubeClient, spaces: list[str]) -> None:
    for space in spaces:
        client.delete(kinds.NAMESPACES, None, space)


def _await(reached: Callable[[], bool], what: str, *, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(1.0)


def _parallel(act: Callable[[Any], object], items: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, items))
