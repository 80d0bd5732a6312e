"""`python -m benchmarks preview`: the duration of `herdsman preview`, the start of its process included.

A real API server with services as a loop makes them: rendered and applied by server-side apply. Then the command runs
as for people and CI: for one edited service in a namespace of many; for a fleet of files that are all new to the
cluster; for the same fleet after it was made, with every service edited.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from components import naming
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service
from tools.localcluster import LocalCluster

LIMITS = {"one change, p50 (s)": 0.5, "fleet of new services (s)": 3.0, "fleet, all edited (s)": 3.5}
WRITERS = 8
MANAGER = "benchmarks"
SMALL = "small"
SERVED_WITHIN_S = 30.0


def main(arguments: list[str]) -> int:
    """Measure, print a table, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks preview", description=__doc__)
    parser.add_argument("--services", type=int, default=100, help="in the namespace in which one is changed")
    parser.add_argument("--fleet", type=int, default=500, help="services of the fleet, in ten namespaces; 0 for none")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args(arguments)
    with served_cluster() as (cluster, client, directory):
        result = measure(client, cluster.kubeconfig, directory, options)
    _print(result)
    return 0 if all(result[name] <= limit for name, limit in LIMITS.items() if name in result) else 1


@contextlib.contextmanager
def served_cluster() -> Iterator[tuple[LocalCluster, KubeClient, Path]]:
    """Start a cluster that serves the CRDs, with an administrator's client and a folder, until the block ends."""
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install(client)
        yield cluster, client, directory
    finally:
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)


def install(client: KubeClient) -> None:
    """Install the CRDs and wait until they are served."""
    for document in crd_documents():
        client.apply(kinds.CRDS, None, document, field_manager=MANAGER, force=True)
    deadline = time.monotonic() + SERVED_WITHIN_S
    while True:
        try:
            for kind in (kinds.MODELS, kinds.INFERENCE_SERVICES, kinds.HOST_PROCESSES):
                client.list(kind, "default")
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def measure(client: KubeClient, kubeconfig: Path, directory: Path, options: argparse.Namespace) -> dict[str, float]:
    """Make the services and measure the command."""
    result: dict[str, float] = {}
    # An installed command has its modules as bytecode. The first run below compiles them.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"KUBECONFIG": str(kubeconfig), "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}

    def preview(*words: str, code: int) -> float:
        began = time.perf_counter()
        run = subprocess.run(
            [sys.executable, "-m", "automation.cli", "preview", *words, "-o", "json"],
            env=environment,
            capture_output=True,
            check=False,
        )
        took = time.perf_counter() - began
        assert run.returncode == code, f"exit code {run.returncode}: {run.stdout[-2000:]!r} {run.stderr[-2000:]!r}"
        return took

    small = fleet(options.services, [SMALL])
    make(client, small)
    one = service_of(options.services // 2, SMALL, contextSize=2048)
    (directory / "one.yaml").write_text(yaml.safe_dump(one))
    preview("-f", str(directory / "one.yaml"), code=2)
    times = sorted(preview("-f", str(directory / "one.yaml"), code=2) for _ in range(options.runs))
    result["one change, p50 (s)"] = statistics.median(times)
    result["one change, slowest (s)"] = times[-1]
    result["as it stands, one service (s)"] = preview("--live", one["metadata"]["name"], "-n", SMALL, code=0)
    result[f"as they stand, all {options.services} (s)"] = preview("--all", "-n", SMALL, code=0)
    if not options.fleet:
        return result
    large = fleet(options.fleet, [f"fleet-{number}" for number in range(10)])
    for namespace in sorted({each["metadata"]["namespace"] for each in large}):
        _namespace(client, namespace)
    folder = directory / "fleet"
    folder.mkdir()
    _write(folder, large)
    result["fleet of new services (s)"] = preview("-f", str(folder), code=2)
    make(client, large)
    for document in large:
        if document["kind"] == "InferenceService":
            document["spec"]["contextSize"] = 2048
    _write(folder, large)
    result["fleet, all edited (s)"] = preview("-f", str(folder), code=2)
    result["fleet, as it stands (s)"] = preview("--all", "-A", code=0)
    return result


def fleet(services: int, namespaces: list[str]) -> list[Json]:
    """Return Models and services as people write them: ten services share a Model."""
    found: dict[tuple[str, str], Json] = {}
    listed = [service_of(number, namespaces[number % len(namespaces)]) for number in range(services)]
    for service in listed:
        namespace, name = service["metadata"]["namespace"], service["spec"]["modelRef"]
        spec = {"source": f"https://example.com/{name}.gguf", "format": "gguf"}
        found.setdefault((namespace, name), _document("Model", name, namespace, spec))
    return [*found.values(), *listed]


def service_of(number: int, namespace: str, **spec: Any) -> Json:
    """Return one service of many."""
    wanted = {"modelRef": f"model-{number // 10 % 10}", "contextSize": 1024, "replicas": 1 + number % 3, **spec}
    return _document("InferenceService", f"service-{number:03}", namespace, wanted)


def _document(kind: str, name: str, namespace: str, spec: Json) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": kinds.MODELS.api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _write(folder: Path, documents: Iterable[Json]) -> None:
    for number, document in enumerate(documents):
        (folder / f"{number:04}.yaml").write_text(yaml.safe_dump(document))


def _namespace(client: KubeClient, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    client.apply(kinds.NAMESPACES, None, body, field_manager=MANAGER)


def make(client: KubeClient, documents: list[Json]) -> None:
    """Apply documents to the cluster, and the objects that a loop would make for them."""
    models: dict[tuple[str, str], Json] = {}

    def make_model(document: Json) -> None:
        namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
        model = client.apply(kinds.MODELS, namespace, document, field_manager="kubectl", force=True)
        known = model_of(model)
        path = f"/models/{known.cache_key}/{known.file_name}"
        status = {"phase": "Ready", "path": path, "cacheKey": known.cache_key, "sourceContentLength": 4_000_000_000}
        models[namespace, name] = client.patch(kinds.MODELS, namespace, name, {"status": status}, subresource="status")

    def make_service(document: Json) -> None:
        namespace = document["metadata"]["namespace"]
        cr = client.apply(kinds.INFERENCE_SERVICES, namespace, document, field_manager="kubectl", force=True)
        desired = parse_service(cr, model_of(models[namespace, cr["spec"]["modelRef"]]))
        rendered = render(desired, RenderOptions())
        for each in (*rendered.shared, *rendered.objects):
            kind = client.mapping(each.manifest["apiVersion"], each.kind)
            client.apply(kind, namespace, each.manifest, field_manager=naming.FIELD_MANAGER, force=True)

    for namespace in sorted({document["metadata"]["namespace"] for document in documents}):
        _namespace(client, namespace)
    by_kind: list[tuple[str, Callable[[Json], None]]] = [("Model", make_model), ("InferenceService", make_service)]
    with ThreadPoolExecutor(WRITERS) as pool:
        for kind, made in by_kind:
            list(pool.map(made, [document for document in documents if document["kind"] == kind]))


def _print(result: dict[str, float]) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("MEASURE", "HERDSMAN", "LIMIT"):
        table.add_column(column, justify="left" if column == "MEASURE" else "right")
    for name, value in result.items():
        limit = LIMITS.get(name)
        colour = "green" if limit is None or value <= limit else "red"
        table.add_row(name, f"[{colour}]{value:.2f}[/]", f"{limit:g}" if limit is not None else "")
    Console().print(table)
