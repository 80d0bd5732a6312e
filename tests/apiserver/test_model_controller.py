"""The Model controller on a real API server: the statuses and Events that it writes, and no unnecessary writes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from program.dialects.llmkube.parse.source import cache_key
from tests.support.controlplane import eventually
from tests.support.loop import install_crds
from tests.support.model_server import File, FileServer
from tests.support.models import Cluster, conditions

FIXTURES = Path(__file__).resolve().parents[1] / "conformance" / "llmkube" / "fixtures"
PLAIN = (FIXTURES / "plain-7b.Q4_K_M.gguf").read_bytes()
SHA256 = hashlib.sha256(PLAIN).hexdigest()


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    install_crds(made)
    yield made
    made.close()


@pytest.fixture
def cluster(client: KubeClient, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(client, namespace, (str(tmp_path),))
    yield made
    made.stop()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


def test_a_remote_model_becomes_ready_with_all_that_its_header_says(cluster: Cluster, server: FileServer) -> None:
    url = server.serve("/plain.gguf", File(PLAIN))
    cluster.write("m", {"source": url, "sha256": SHA256})
    status = cluster.settle("m")
    key = cache_key(url)
    assert status["phase"] == "Ready"
    assert (status["size"], status["sourceContentLength"], status["sourceETag"]) == ("544 B", 544, '"v1"')
    assert (status["cacheKey"], status["path"]) == (key, f"/models/{key}/Plain-7B-Chat.gguf")
    assert status["gguf"]["layerCount"] == 32
    assert status["sha256"] == SHA256
    assert status["acceleratorReady"] is True
    assert status["observedGeneration"] == 1
    assert conditions(status) == {
        "Ready": ("True", "WorkloadResolved"),
        "Reconciling": ("False", "WorkloadResolved"),
        "Stalled": ("False", "WorkloadResolved"),
        "Available": ("True", "WorkloadResolved"),
        "SourceDrifted": ("False", "InSync"),
        "SourceVerified": ("True", "ChecksumMatched"),
    }
    assert cluster.changed == ["m", "m"]  # Pending while the probe ran, then Ready
    assert cluster.events == [("m", "Normal", "ModelReady")]
    assert max(cluster.requeued) > 3000  # the next probe is due in about an hour


def test_a_pass_without_news_writes_nothing(cluster: Cluster, server: FileServer) -> None:
    cluster.write("m", {"source": server.serve("/plain.gguf", File(PLAIN))})
    cluster.settle("m")
    before, requests = cluster.version("m"), len(server.requests)
    for _ in range(5):
        cluster.controller.reconcile(cluster.namespace, "m")
    assert cluster.version("m") == before
    assert len(server.requests) == requests


def test_a_cache_that_lags_behind_our_own_write_causes_no_second_one(cluster: Cluster, server: FileServer) -> None:
    cluster.write("m", {"source": server.serve("/plain.gguf", File(PLAIN))})
    cluster.models.stop()  # from here on the cache does not change
    cluster.controller.reconcile(cluster.namespace, "m")
    eventually(cluster.probe.idle, what="the probe to be idle")
    cluster.controller.reconcile(cluster.namespace, "m")
    before = cluster.version("m")
    cluster.controller.reconcile(cluster.namespace, "m")
    assert cluster.version("m") == before


def test_a_wrong_checksum_fails_and_an_edit_recovers(cluster: Cluster, server: FileServer) -> None:
    url = server.serve("/plain.gguf", File(PLAIN))
    cluster.write("m", {"source": url, "sha256": "0" * 64})
    failed = cluster.settle("m")
    assert failed["phase"] == "Failed"
    assert conditions(failed)["Degraded"] == ("True", "IntegrityCheckFailed")
    assert conditions(failed)["Stalled"][0] == "True"
    assert conditions(failed)["SourceVerified"] == ("False", "ChecksumMismatch")
    assert ("m", "Warning", "ModelFailed") in cluster.events
    cluster.write("m", {"source": url, "sha256": SHA256})
    ready = cluster.settle("m")
    assert ready["phase"] == "Ready"
    assert "Degraded" not in conditions(ready)
    assert ready["observedGeneration"] == 2


def test_an_edited_source_leaves_nothing_of_the_old_one_in_the_status(cluster: Cluster, server: FileServer) -> None:
    first = server.serve("/plain.gguf", File(PLAIN))
    cluster.write("m", {"source": first})
    before = cluster.settle("m")
    second = server.url("/missing.gguf")
    cluster.write("m", {"source": second})
    after = cluster.settle("m")
    assert before["cacheKey"] != after["cacheKey"] == cache_key(second)
    assert after["phase"] == "Failed"
    assert conditions(after)["Ready"] == ("False", "SourceNotFound")
    assert not {"gguf", "sourceETag", "sourceContentLength", "sha256"} & after.keys()
    assert conditions(after)["SourceVerified"] == ("False", "SourceNotFound")
    assert "SourceDrifted" not in conditions(after)


def test_a_model_whose_source_is_gone_stays_ready_for_its_cached_copies(cluster: Cluster, server: FileServer) -> None:
    url = server.serve("/leaves.gguf", File(PLAIN))
    cluster.write("m", {"source": url})
    before = cluster.settle("m")
    server.serve("/leaves.gguf", File(PLAIN, statuses=[404] * 20))
    cluster.pass_recheck_interval()
    after = cluster.settle("m")
    assert (after["phase"], after["path"]) == ("Ready", before["path"])
    assert "the source no longer exists" in next(c["message"] for c in after["conditions"] if c["type"] == "Ready")


def test_a_claim_is_followed(cluster: Cluster, client: KubeClient) -> None:
    cluster.write("m", {"source": "pvc://weights/chat/plain.gguf"})
    assert conditions(cluster.settle("m"))["Degraded"] == ("True", "PVCNotFound")
    size = {"storage": "1Gi"}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": size}},
    }
    client.create(kinds.CLAIMS, cluster.namespace, claim)
    eventually(lambda: cluster.claims.get(cluster.namespace, "weights"), what="the claim to be seen")
    status = cluster.settle("m")
    assert (status["phase"], conditions(status)["Progressing"]) == ("Pending", ("True", "PVCNotBound"))
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"weights-{cluster.namespace}"},
        "spec": {
            "capacity": size,
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/nonexistent"},
            "claimRef": {"namespace": cluster.namespace, "name": "weights"},
        },
    }
    client.create(client.mapping("v1", "PersistentVolume"), None, volume)

    def bound() -> bool:
        seen = cluster.claims.get(cluster.namespace, "weights")
        return seen is not None and seen["status"]["phase"] == "Bound"

    eventually(bound, what="the claim to be bound")
    status = cluster.settle("m")
    assert (status["phase"], status["path"]) == ("Ready", "/model-source/chat/plain.gguf")
    assert "Progressing" not in conditions(status)


def test_a_local_file_needs_an_allowed_root(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(PLAIN)
    cluster.write("good", {"source": str(path)})
    cluster.write("bad", {"source": "/etc/x.gguf"})
    assert cluster.settle("good")["sha256"] == SHA256
    bad = cluster.settle("bad")
    assert conditions(bad)["Degraded"] == ("True", "SourceNotAllowed")
    ready = next(c for c in bad["conditions"] if c["type"] == "Ready")
    assert "spec.source" in ready["message"]
    assert "--allowed-host-path-roots" in ready["message"]


def test_an_accelerator_is_ready_when_a_node_has_it(cluster: Cluster, client: KubeClient, server: FileServer) -> None:
    url = server.serve("/plain.gguf", File(PLAIN))
    amd = {"vendor": "amd", "enabled": True, "count": 1}
    cluster.write("cuda", {"source": url, "hardware": {"accelerator": "cuda"}})
    cluster.write("rocm", {"source": url, "hardware": {"accelerator": "rocm", "gpu": amd}})
    assert "acceleratorReady" not in cluster.settle("cuda")
    node = f"gpu-{cluster.namespace}"
    client.create(kinds.NODES, None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    try:
        capacity = {"status": {"capacity": {"nvidia.com/gpu": "2", "amd.com/gpu": "0"}}}
        client.patch(kinds.NODES, None, node, capacity, subresource="status")

        def has_gpus() -> bool:
            seen = cluster.nodes.get(None, node)
            return seen is not None and bool(seen["status"]["capacity"])

        eventually(has_gpus, what="the node's capacity to be seen")
        assert cluster.settle("cuda")["acceleratorReady"] is True
        assert "acceleratorReady" not in cluster.settle("rocm")
    finally:
        client.delete(kinds.NODES, None, node)


def test_a_status_of_another_manager_is_taken_over(cluster: Cluster, client: KubeClient, server: FileServer) -> None:
    url = server.serve("/plain.gguf", File(PLAIN))
    cluster.write("m", {"source": url})
    left = {"status": "True", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    peer = {
        "phase": "Ready",
        "cacheKey": cache_key(url),
        "size": "0",
        "conditions": [
            {"type": "Available", "reason": "WorkloadResolved", "message": "there", **left},
            {"type": "Progressing", "reason": "CopyStarted", "message": "begun", **left},
        ],
    }
    body = {"status": peer}
    patched = client.patch(kinds.MODELS, cluster.namespace, "m", body, subresource="status", field_manager="llmkube")
    cluster.seen("m", patched)
    status = cluster.settle("m")
    # The peer had not read the header and named the file after the Model. Pods must use the same file name.
    assert status["path"] == f"/models/{cache_key(url)}/m.gguf"
    assert (status["size"], status["gguf"]["modelName"]) == ("544 B", "Plain 7B Chat")
    assert conditions(status)["Progressing"] == ("False", "Superseded")
    before = cluster.version("m")
    cluster.controller.reconcile(cluster.namespace, "m")
    assert cluster.version("m") == before


def test_a_model_that_was_deleted_and_made_again_is_not_written_for_the_old_one(
    cluster: Cluster, client: KubeClient, server: FileServer
) -> None:
    url = server.serve("/plain.gguf", File(PLAIN))
    cluster.write("m", {"source": url})
    cluster.settle("m")
    cluster.models.stop()  # the cache does not change, and still has the old object
    client.delete(kinds.MODELS, cluster.namespace, "m")
    cluster.controller.reconcile(cluster.namespace, "m")
    with pytest.raises(NotFound):
        client.get(kinds.MODELS, cluster.namespace, "m")
    client.create(
        kinds.MODELS,
        cluster.namespace,
        {
            "apiVersion": kinds.MODELS.api_version,
            "kind": "Model",
            "metadata": {"name": "m"},
            "spec": {"source": "https://example.com/other.gguf"},
        },
    )
    cluster.probe.close()
    cluster.controller.reconcile(cluster.namespace, "m")
    assert "status" not in client.get(kinds.MODELS, cluster.namespace, "m")
