"""`herdsman cache` on a real API server with its Job controller. No pod runs here; tests/node runs them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.cli.main import invoke
from components.model_cache import inspector_pod, pruning_pod
from components.naming import CACHE_CLAIM
from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.source import cache_key
from tests.support.controlplane import eventually
from tests.support.loop import install_crds
from tests.support.model_server import File, FileServer
from tests.support.models import Cluster

PLAIN = (Path(__file__).resolve().parents[1] / "conformance/llmkube/fixtures/plain-7b.Q4_K_M.gguf").read_bytes()


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    install_crds(made)
    yield made
    made.close()


@pytest.fixture
def ready(client: KubeClient, namespace: str) -> Iterator[Cluster]:
    """A namespace with Model `m`, which is Ready and has never been fetched."""
    with FileServer() as server:
        cluster = Cluster(client, namespace, ())
        cluster.write("m", {"source": server.serve("/plain.gguf", File(PLAIN))})
        cluster.settle("m")
        yield cluster
        cluster.stop()


def claim(client: KubeClient, namespace: str, *, bound: bool) -> None:
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    name = f"cache-{namespace}"
    if bound:
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/nonexistent"},
                "claimRef": {"namespace": namespace, "name": CACHE_CLAIM},
            },
        }
        client.create(client.mapping("v1", "PersistentVolume"), None, volume)
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CACHE_CLAIM}, "spec": spec}
    client.create(kinds.CLAIMS, namespace, body)
    if bound:
        eventually(
            lambda: client.get(kinds.CLAIMS, namespace, CACHE_CLAIM)["status"].get("phase") == "Bound",
            what="the claim to be bound",
        )


def herdsman(kubeconfig: Path, *arguments: str) -> int:
    return invoke(["cache", *arguments, "--kubeconfig", str(kubeconfig)])


def test_an_unbound_claim_is_told_and_no_pod_is_made(
    client: KubeClient, kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(client, namespace, bound=False)
    assert herdsman(kubeconfig, "list", "-n", namespace) == 1
    told = capsys.readouterr()
    assert f"{namespace}/{CACHE_CLAIM} is Pending and has no volume yet" in told.err
    assert client.list(kinds.PODS, namespace)["items"] == []


def test_a_pod_that_no_node_takes_is_told_and_cleared_away(
    client: KubeClient, kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(client, namespace, bound=True)
    assert herdsman(kubeconfig, "prune", "--orphaned", "--yes", "-n", namespace, "--start-timeout", "8") == 1
    told = capsys.readouterr()
    assert "did not start within 8 s" in told.err
    assert "node" in told.err
    assert client.list(kinds.PODS, namespace)["items"] == []


def test_an_empty_cluster_has_no_caches(kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert herdsman(kubeconfig, "list", "-n", namespace) == 0
    assert "all model caches are empty" in capsys.readouterr().err
    assert herdsman(kubeconfig, "list", "-n", namespace, "-o", "json") == 0
    assert capsys.readouterr().out.strip() == "[]"


def test_what_to_prune_must_be_said(kubeconfig: Path, namespace: str) -> None:
    assert herdsman(kubeconfig, "prune", "-n", namespace) == 64
    assert herdsman(kubeconfig, "prune", "--orphaned", "--key", "0" * 16, "-n", namespace) == 64
    assert herdsman(kubeconfig, "prune", "--model", "m") == 64


def test_the_api_server_takes_the_pods(client: KubeClient, namespace: str) -> None:
    options = RenderOptions()
    for pod in (
        inspector_pod("p", namespace, CACHE_CLAIM, options, node="n"),
        pruning_pod("p", namespace, CACHE_CLAIM, ["0" * 16], options),
    ):
        client.create(kinds.PODS, namespace, pod, dry_run=True)


def test_warming_runs_a_job_to_its_end_although_the_model_asks_for_none(
    ready: Cluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace, client = ready.namespace, ready.client
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(herdsman(kubeconfig, "warm", "m", "-n", namespace)))
    thread.start()
    pod = eventually(lambda: client.list(kinds.PODS, namespace)["items"], what="the Job's pod")[0]
    # The loop keeps the Job, because a user requested it.
    eventually(lambda: ready.prefetcher.jobs.get(namespace, "m-prefetch"), what="the Job to be seen")
    ready.settle("m")
    path = f"/models/{cache_key(client.get(kinds.MODELS, namespace, 'm')['spec']['source'])}/Plain-7B-Chat.gguf"
    environment = {e["name"]: e.get("value") for e in pod["spec"]["initContainers"][1]["env"]}
    assert environment["MODEL_PATH"] == path
    assert client.get(kinds.CLAIMS, namespace, CACHE_CLAIM)
    body = {"status": {"phase": "Succeeded"}}
    client.patch(kinds.PODS, namespace, pod["metadata"]["name"], body, subresource="status")
    thread.join(60)
    assert codes == [0]
    assert "Model m is in the cache" in capsys.readouterr().out


def test_what_cannot_be_warmed_says_why(ready: Cluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert herdsman(kubeconfig, "warm", "missing", "-n", ready.namespace) == 1
    assert "no Model" in capsys.readouterr().err
    ready.write("m", {"source": "hf://acme/tiny", "format": "safetensors"})
    assert herdsman(kubeconfig, "warm", "m", "-n", ready.namespace) == 1
    assert "nothing to cache" in capsys.readouterr().err
    ready.write("m", {"source": "https://example.com/new.gguf"})
    assert herdsman(kubeconfig, "warm", "m", "-n", ready.namespace) == 1
    assert "no directory in the cache yet" in capsys.readouterr().err
    with pytest.raises(NotFound):
        ready.client.get(kinds.JOBS, ready.namespace, "m-prefetch")
