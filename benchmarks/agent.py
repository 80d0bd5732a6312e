"""`python -m benchmarks agent`: the cost of an agent that runs ten llama-servers without requests.

A real agent that takes its plan from a real API server, and real llama-servers with the tiny model on loopback.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from agent.contract import FilePlan, ProcessPlan
from benchmarks.host_start import HOST, NAMESPACE, TIMEOUT_S, install
from benchmarks.subject import Subject
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

LIMITS = {"agent RSS (MB)": 60.0, "idle: share of a core (%)": 0.5}
HTTP_PORT = 18474
SETTLE_S = 10.0


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks agent", description=__doc__)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--idle-seconds", type=float, default=120.0)
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    agent: Subject | None = None
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install(client)
        (directory / "models").mkdir()
        model = write_tiny_model(directory / "models" / "tiny.gguf")
        agent = Subject(
            "agent",
            f"{sys.executable} -m automation.cli agent run --host={HOST} --kubeconfig={cluster.kubeconfig} "
            f"--store={directory}/store --http-port={HTTP_PORT} --allowed-host-path-roots={model.parent}",
            cluster.kubeconfig,
            directory,
        )
        agent.start()
        agent.wait_ready()
        began = time.monotonic()
        place(client, model, options.processes)
        result: Json = {"processes": options.processes, "all ready (s)": round(time.monotonic() - began, 2)}
        result |= idle(agent.pid, options.idle_seconds)
        result |= scrape()
    finally:
        if agent is not None:
            agent.stop()
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(result[name] <= limit for name, limit in LIMITS.items()) else 1


def place(client: KubeClient, model: Path, count: int) -> None:
    """Write the plans of the processes and wait until all serve."""
    for number in range(count):
        name = f"svc-{number}"
        plan = ProcessPlan(
            host=HOST,
            service=name,
            argv=(
                "llama-server",
                "--model",
                "{model}",
                "--host",
                "{host}",
                "--port",
                "{port}",
                "-c",
                "256",
                "--metrics",
            ),
            file=FilePlan(source=str(model), cache_key="tiny", file_name="tiny.gguf"),
            completion_path="/v1/chat/completions",
            service_name=name,
        )
        body = {
            "apiVersion": kinds.HOST_PROCESSES.api_version,
            "kind": kinds.HOST_PROCESSES.kind,
            "metadata": {"name": name, "labels": {"herdsman.dev/host": HOST}},
            "spec": plan.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        client.create(kinds.HOST_PROCESSES, NAMESPACE, body)
    deadline = time.monotonic() + TIMEOUT_S + 3.0 * count
    while True:
        told = [each.get("status") or {} for each in client.list(kinds.HOST_PROCESSES, NAMESPACE)["items"]]
        if all(status.get("ready") for status in told):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all processes are ready: {told}")
        time.sleep(0.1)


def idle(pid: int, seconds: float) -> Json:
    """Measure the agent while nothing happens."""
    time.sleep(SETTLE_S)
    process = psutil.Process(pid)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    switches = _wake_ups(pid)
    time.sleep(seconds)
    spent, passed = sum(process.cpu_times()[:2]) - before, time.monotonic() - began
    return {
        "agent RSS (MB)": round(process.memory_info().rss / 1e6, 1),
        "idle: share of a core (%)": round(100 * spent / passed, 3),
        "idle: wake-ups per second": round((_wake_ups(pid) - switches) / passed, 1),
        "threads": process.num_threads(),
    }


def _wake_ups(pid: int) -> int:
    """Return how often the current threads have waited, from the process table (Linux)."""
    statuses = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in statuses)


def scrape() -> Json:
    """Read the metrics as Prometheus does; return the median time and the size."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}/metrics", timeout=10) as answer:
            text = answer.read()
        times.append(time.monotonic() - began)
        time.sleep(1.1)
    return {"scrape (s)": round(sorted(times)[2], 3), "scrape (bytes)": len(text)}
