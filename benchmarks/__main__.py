"""`python -m benchmarks`: run the scenarios, print a table (or JSON) with limits and, with a peer, ratios."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    adoption,
    agent,
    downloads,
    drift,
    failover,
    gpu_queue,
    host_start,
    hosts_lost,
    hosts_placement,
    kserve,
    many_states,
    memory,
    preview,
    proxy,
    scale,
    scenarios,
    start,
    static_fleet,
)
from benchmarks.subject import Subject, own_loop
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.dialects.crds.definitions import crd_documents
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

Row = dict[str, object]

# Limits for two cores. Rows without a limit are for information.
LIMITS = {
    "change p50 (s)": 0.7,
    "create 100 (s)": 8.0,
    "create 1000 (s)": 60.0,
    "restart: engine processes": 0.0,
    "restart: to idle (s)": 3.0,
    "idle: share of a core (%)": 1.0,
    "RSS at 100 (MB)": 150.0,
}


def main() -> int:
    """Measure, print, and return 1 if a limit is missed."""
    others = {
        "adoption": adoption.main,
        "agent": agent.main,
        "downloads": downloads.main,
        "drift": drift.main,
        "failover": failover.main,
        "gpu-queue": gpu_queue.main,
        "kserve": kserve.main,
        "memory": memory.main,
        "many-states": many_states.main,
        "scale": scale.main,
        "hosts-start": host_start.main,
        "hosts-lost": hosts_lost.main,
        "hosts-placement": hosts_placement.main,
        "preview": preview.main,
        "proxy": proxy.main,
        "start": start.main,
        "static-fleet": static_fleet.main,
    }
    if sys.argv[1:2] and (other := others.get(sys.argv[1])):
        return other(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peer", help="command of another controller of the same API; KUBECONFIG is set for it")
    parser.add_argument("--peer-crds", type=Path, help="folder of CRDs that only the peer needs")
    parser.add_argument("--changes", type=int, default=30)
    parser.add_argument("--rest-seconds", type=float, default=20.0, help="pause before the first change")
    parser.add_argument("--autoscaled", action="store_true", help="give each service a HorizontalPodAutoscaler")
    parser.add_argument("--large", type=int, default=1000, help="size of the large namespace; 0 leaves it out")
    parser.add_argument("--idle-seconds", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=1, help="how often subjects alternate; medians are shown")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    server = _serve_model(directory)
    results: dict[str, list[Row]] = {}
    console = Console(stderr=True)
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        _install_crds(client, options.peer_crds)
        source = f"http://127.0.0.1:{server.server_address[1]}/tiny.gguf"
        for round_number in range(options.rounds):
            for subject in _subjects(options.peer, cluster.kubeconfig, directory):
                console.print(f"Round {round_number + 1}: {subject.name}", style="bold")
                row = _measure(subject, cluster, client, source, f"r{round_number}-{subject.name}", options, console)
                results.setdefault(subject.name, []).append(row)
    finally:
        server.shutdown()
        cluster.down()
        shutil.rmtree(directory / "cluster", ignore_errors=True)
    summary = {name: _median(rows) for name, rows in results.items()}
    if options.output == "json":
        json.dump(summary, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(summary)
    return 0 if all(_held(name, value) for name, value in summary["herdsman"].items()) else 1


def _measure(
    subject: Subject,
    cluster: LocalCluster,
    client: KubeClient,
    source: str,
    prefix: str,
    options: argparse.Namespace,
    console: Console,
) -> Row:
    row: Row = {}
    small = f"{prefix}-small"
    scenarios.make_namespace(client, small, model_source=source)
    subject.start()
    subject.wait_ready()
    row["create 100 (s)"] = scenarios.create_services(client, small, 100, timeout_s=300, autoscaled=options.autoscaled)
    latencies = scenarios.change_latencies(
        client, small, services=100, changes=options.changes, rest_s=options.rest_seconds
    )
    row["change p50 (s)"] = latencies.quantile(0.5)
    row["change p99 (s)"] = latencies.quantile(0.99)
    usage = subject.stop()
    row["RSS at 100 (MB)"] = usage.main_rss_bytes / 1e6
    row["RSS of a child (MB)"] = usage.child_rss_bytes / 1e6
    if subject.health_url is not None:
        again = scenarios.restart(subject, services=100)
        row["restart: to idle (s)"] = again.seconds_to_idle
        row["restart: engine processes"] = float(again.engine_processes)
    else:
        subject.start()
        subject.wait_ready()
    if options.idle_seconds > 0:
        console.print(f"  idle for {options.idle_seconds:.0f} s …")
        quiet = scenarios.idle(subject, cluster, seconds=options.idle_seconds)
        row["idle: share of a core (%)"] = 100 * quiet.cpu_s / quiet.seconds
        row["idle: API requests per minute"] = 60 * quiet.api_requests / quiet.seconds
    if options.large:
        large = f"{prefix}-large"
        scenarios.make_namespace(client, large, model_source=source)
        seconds = scenarios.create_services(client, large, options.large, timeout_s=600, autoscaled=options.autoscaled)
        row[f"create {options.large} (s)"] = seconds
        latencies = scenarios.change_latencies(
            client, large, services=options.large, changes=10, rest_s=options.rest_seconds
        )
        row[f"change p50 at {options.large} (s)"] = latencies.quantile(0.5)
        usage = subject.stop()
        row[f"RSS at {options.large} (MB)"] = usage.main_rss_bytes / 1e6
        scenarios.remove_namespace(client, large)
    else:
        subject.stop()
    scenarios.remove_namespace(client, small)
    return row


def _subjects(peer: str | None, kubeconfig: Path, directory: Path) -> list[Subject]:
    port = 28085
    options = ("--allowed-remote-hosts=127.0.0.0/8", "--log-format=json")
    subjects = [own_loop(kubeconfig, directory, *options, port=port)]
    if peer:
        subjects.append(Subject("peer", peer, kubeconfig, directory))
    return subjects


def _install_crds(client: KubeClient, extra: Path | None) -> None:
    ours = crd_documents()
    names = {document["metadata"]["name"] for document in ours}
    for document in ours:
        client.apply(kinds.CRDS, None, document, field_manager="benchmarks", force=True)
    if extra is not None:
        import yaml

        for path in sorted(extra.glob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text()):
                if document and document["metadata"]["name"] not in names:
                    client.apply(kinds.CRDS, None, document, field_manager="benchmarks", force=True)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden parameter
        """Print nothing, because the terminal shows the results."""


def _serve_model(directory: Path) -> ThreadingHTTPServer:
    folder = directory / "models"
    folder.mkdir(parents=True)
    write_tiny_model(folder / "tiny.gguf")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _median(rows: list[Row]) -> dict[str, float]:
    result = {}
    for name in rows[0]:
        values = sorted(float(str(row[name])) for row in rows if name in row)
        result[name] = values[len(values) // 2]
    return result


def _held(name: str, value: float) -> bool:
    return name not in LIMITS or value <= LIMITS[name]


def _print(summary: dict[str, dict[str, float]]) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("MEASURE", "HERDSMAN", "LIMIT", *(("PEER", "HERDSMAN/PEER") if "peer" in summary else ())):
        table.add_column(column, justify="left" if column == "MEASURE" else "right")
    for name, value in summary["herdsman"].items():
        limit = f"{LIMITS[name]:g}" if name in LIMITS else ""
        cells = [name, f"[{'green' if _held(name, value) else 'red'}]{value:.3g}[/]", limit]
        other = summary.get("peer", {}).get(name)
        if "peer" in summary:
            ratio = f"{value / other:.2f}" if other else ""
            cells += [f"{other:.3g}" if other is not None else "", ratio]
        table.add_row(*cells)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
