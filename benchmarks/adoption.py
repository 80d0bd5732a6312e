"""`python -m benchmarks adoption`: adopt LLMKube's services while their pods run, and give them back.

The control plane is real, with ReplicaSets and pods, but without kubelets. The services are LLMKube's recorded output
or, with `--peer`, made by a real LLMKube controller, which then stops. Limits: no pod is removed, and no pod template
changes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from automation.adoption.kept_templates import digest_of
from automation.cli.main import invoke
from benchmarks.subject import Subject, own_loop
from components import naming
from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.dialects.crds.definitions import crd_documents
from tests.conformance.vectors import FIXTURES
from tests.support import llmkube
from tests.support.loop import http_folder
from tools.localcluster import LocalCluster

NAMESPACE = "adopted"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")
PORT = 28088
LIMITS = {
    "pods that restarted": 0.0,
    "pod templates that changed": 0.0,
    "not adopted": 0.0,
    "given back: pods that restarted": 0.0,
    "not given back": 0.0,
}


def main(arguments: list[str]) -> int:
    """Measure and print; return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks adoption", description=__doc__)
    parser.add_argument("--services", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=1, help="so many at a time, as `herdsman adopt --parallel`")
    parser.add_argument(
        "--peer", help="command of LLMKube's controller, to make the services; KUBECONFIG is set for it"
    )
    parser.add_argument("--peer-crds", type=Path, help="folder of CRDs that only the peer needs")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds until all pods must exist")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-adoption-"))
    cluster = LocalCluster(directory / "cluster", components=COMPONENTS)
    try:
        cluster.up()
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        with http_folder(FIXTURES) as url:
            result = _measure(client, cluster, directory, url, options)
    finally:
        cluster.down(purge=True)
        shutil.rmtree(directory / "state", ignore_errors=True)
    json.dump({name: round(value, 2) for name, value in result.items()}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(result[name] <= limit for name, limit in LIMITS.items()) else 1


def _measure(
    client: KubeClient, cluster: LocalCluster, directory: Path, url: str, options: argparse.Namespace
) -> dict[str, float]:
    console = Console(stderr=True)
    _prepare(client, options.peer_crds)
    _make(client, cluster, directory, url, options)
    console.print(f"{options.services} services of LLMKube's run")
    # A pod without a kubelet answers no request.
    os.environ["HERDSMAN_COMPLETION_CHECK"] = "false"
    given = ("--allowed-remote-hosts=127.0.0.0/8", "--controller-class=herdsman")
    loop = own_loop(cluster.kubeconfig, directory, *given, port=PORT)
    loop.start()
    result: dict[str, float] = {}
    here = (f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}", "--all")
    parallel = f"--parallel={options.parallel}"
    try:
        loop.wait_ready(180.0)
        before = _running(client)
        result["engine processes before"] = loop.metric("herdsman_engine_cli_processes_total")
        result["preview (s)"], _ = _adopt(*here, "--dry-run")
        result["adopted (s)"], answer = _adopt(*here, "--yes", parallel)
        result["not adopted"] = float(sum(each["state"] != "adopted" for each in answer["services"]))
        after = _running(client)
        result["engine processes"] = loop.metric("herdsman_engine_cli_processes_total")
        result["pods that restarted"] = float(len(before["pods"] ^ after["pods"]))
        result["pod templates that changed"] = float(len(before["templates"] ^ after["templates"]) / 2)
        result["Deployments whose spec changed at all"] = float(len(before["specs"] ^ after["specs"]) / 2)
        result["given back (s)"], answer = _adopt(*here, "--release", "--yes", parallel)
        result["not given back"] = float(sum(each["state"] != "released" for each in answer["services"]))
        result["given back: pods that restarted"] = float(len(before["pods"] ^ _running(client)["pods"]))
    finally:
        usage = loop.stop()
    result["loop RSS (MB)"] = usage.main_rss_bytes / 1e6
    return result


def _adopt(*arguments: str) -> tuple[float, Any]:
    """Run the command; return its seconds and its output."""
    out = io.StringIO()
    began = time.monotonic()
    with contextlib.redirect_stdout(out):
        invoke(["adopt", "-o", "json", *arguments])
    return time.monotonic() - began, json.loads(out.getvalue())


def _prepare(client: KubeClient, extra: Path | None) -> None:
    import yaml

    documents = list(crd_documents())
    names = {document["metadata"]["name"] for document in documents}
    for path in sorted(extra.glob("*.yaml")) if extra is not None else ():
        found = (document for document in yaml.safe_load_all(path.read_text()) if document)
        documents += [document for document in found if document["metadata"]["name"] not in names]
    for document in documents:
        client.apply(kinds.CRDS, None, document, field_manager="benchmarks", force=True)
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="benchmarks", force=True)
    client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    time.sleep(2.0)


def _make(client: KubeClient, cluster: LocalCluster, directory: Path, url: str, options: argparse.Namespace) -> None:
    """Make the services, by the peer if there is one, and wait for their pods."""
    names = [f"svc-{number:04d}" for number in range(options.services)]
    peer: Subject | None = None
    if options.peer:
        peer = Subject("peer", options.peer, cluster.kubeconfig, directory)
        peer.start()
        peer.wait_ready()
        _write(client, names, url)
    else:
        for name in names:
            llmkube.make(client, NAMESPACE, [llmkube.vector("001")], url=url, rename={"svc": name})
    deadline = time.monotonic() + options.timeout
    while len(_running(client)["pods"]) < options.services:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all pods exist after {options.timeout:.0f} s; see {directory}")
        time.sleep(0.5)
    if peer is not None:
        time.sleep(3.0)  # the peer writes its last statuses
        peer.stop()


def _write(client: KubeClient, names: list[str], url: str) -> None:
    api = kinds.MODELS.api_version
    source = {"source": f"{url}/{llmkube.FILE}"}
    client.create(
        kinds.MODELS, NAMESPACE, {"apiVersion": api, "kind": "Model", "metadata": {"name": "base"}, "spec": source}
    )
    for name in names:
        body = {"apiVersion": api, "kind": "InferenceService", "metadata": {"name": name}, "spec": {"modelRef": "base"}}
        client.create(kinds.INFERENCE_SERVICES, NAMESPACE, body)


def _running(client: KubeClient) -> dict[str, set[tuple[str, str]]]:
    """Return what changes with a restart: pods by uid, templates and specs by Deployment.

    A Deployment's generation is not used, because it also changes with annotations.
    """
    pods = client.list(kinds.PODS, NAMESPACE, label_selector=naming.LABEL_SERVICE)["items"]
    deployments = client.list(kinds.DEPLOYMENTS, NAMESPACE)["items"]
    return {
        "pods": {
            (p["metadata"]["name"], p["metadata"]["uid"]) for p in pods if "deletionTimestamp" not in p["metadata"]
        },
        "templates": {(d["metadata"]["name"], digest_of(d["spec"]["template"])) for d in deployments},
        "specs": {(d["metadata"]["uid"], json.dumps(d["spec"], sort_keys=True)) for d in deployments},
    }
