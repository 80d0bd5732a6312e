"""Downloads of a Model's weights into the cache, on a real API server: Jobs, sets of files, Secrets, drift."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.naming import CACHE_CLAIM
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.config import Access, Endpoint
from kubeapi.errors import Invalid, NotFound
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.source import cache_key
from tests.support.controlplane import eventually
from tests.support.loop import LOOP_USER, RBAC, grant_loop_rights, install_crds
from tests.support.model_server import File, FileServer
from tests.support.models import Cluster, conditions
from tests.support.rights import await_rights
from tools.localcluster import LocalCluster

PLAIN = (Path(__file__).resolve().parents[1] / "conformance/llmkube/fixtures/plain-7b.Q4_K_M.gguf").read_bytes()
NOW = "2026-11-21T12:00:00Z"


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    install_crds(made)
    yield made
    made.close()


@pytest.fixture(scope="module")
def loop_client(control_plane: LocalCluster, client: KubeClient, tmp_path_factory: Any) -> Iterator[KubeClient]:
    """A client with the rights of docs/install/rbac.yaml only."""
    path = grant_loop_rights(client, control_plane, tmp_path_factory.mktemp("loop") / "kubeconfig")
    made = KubeClient.from_kubeconfig(str(path))
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


@pytest.fixture
def cluster(client: KubeClient, loop_client: KubeClient, namespace: str, server: FileServer) -> Iterator[Cluster]:
    logs = KubeClient(Access(lambda: Endpoint(server.url(""))))
    made = Cluster(client, namespace, (), loop=loop_client, hub_url=server.url(""), logs=logs)
    yield made
    made.stop()
    logs.close()


def job(cluster: Cluster, name: str = "m-prefetch") -> Json:
    return cluster.client.get(kinds.JOBS, cluster.namespace, name)


def seen(cluster: Cluster, what: Callable[[Json | None], bool]) -> None:
    eventually(lambda: what(cluster.prefetcher.jobs.get(cluster.namespace, "m-prefetch")), what="the Job to be seen")


def end(cluster: Cluster, *, said: str = "") -> None:
    """Write the final status of the Job's pod: success, or the downloader's last message `said`.

    A real Job controller reads it.
    """
    namespace = cluster.namespace

    def pods() -> list[Json]:
        found = cluster.client.list(kinds.PODS, namespace, label_selector="batch.kubernetes.io/job-name=m-prefetch")
        return list(found["items"])

    # Only one attempt, since the Job controller waits long before the next one.
    cluster.client.patch(kinds.JOBS, namespace, "m-prefetch", {"spec": {"backoffLimit": 0}})
    pod = eventually(pods, what="the Job's pod")[0]
    status: Json = {"phase": "Failed" if said else "Succeeded"}
    if said:
        ended = {"exitCode": 77, "reason": "Error", "message": said, "finishedAt": NOW, "startedAt": NOW}
        state = {"state": {"terminated": ended}, "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
        status["initContainerStatuses"] = [{"name": "model-downloader", **state}]
    cluster.client.patch(kinds.PODS, namespace, pod["metadata"]["name"], {"status": status}, subresource="status")
    seen(cluster, lambda found: found is not None and bool(found["ended"]))


def test_a_prefetch_makes_a_job_and_ends_ready_even_after_the_job_is_gone(cluster: Cluster, server: FileServer) -> None:
    url = server.serve("/plain.gguf", File(PLAIN))
    toleration = {"key": "storage", "operator": "Exists"}
    cluster.write("m", {"source": url, "prefetch": True, "prefetchTolerations": [toleration]})
    status = cluster.settle("m")
    assert (status["phase"], conditions(status)["Progressing"]) == ("Downloading", ("True", "PrefetchStarted"))
    assert status["gguf"]["layerCount"] == 32
    cluster.settle("m")
    made = job(cluster)
    pod = made["spec"]["template"]["spec"]
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "model-prefetch"
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Model"
    assert not made["metadata"]["ownerReferences"][0]["blockOwnerDeletion"], "the loop has no right to its finalizers"
    assert (made["spec"]["backoffLimit"], made["spec"]["ttlSecondsAfterFinished"]) == (2, 86400)
    assert pod["tolerations"] == [toleration]
    assert [c["name"] for c in pod["initContainers"]] == ["model-cache-prep", "model-downloader"]
    fetched = {e["name"]: e.get("value") for e in pod["initContainers"][1]["env"]}
    assert fetched["MODEL_PATH"] == status["path"] == f"/models/{cache_key(url)}/Plain-7B-Chat.gguf"
    assert cluster.client.get(kinds.CLAIMS, cluster.namespace, CACHE_CLAIM)
    assert cluster.settle("m")["phase"] == "Downloading"
    end(cluster)
    status = cluster.settle("m")
    assert (status["phase"], conditions(status)["Available"]) == ("Ready", ("True", "ModelPrefetched"))
    cluster.client.delete(kinds.JOBS, cluster.namespace, "m-prefetch")
    seen(cluster, lambda found: found is None)
    assert cluster.settle("m") == status
    with pytest.raises(NotFound):
        job(cluster)


def test_a_failed_prefetch_names_the_cause_and_a_deleted_job_is_tried_again(
    cluster: Cluster, server: FileServer
) -> None:
    cluster.write("m", {"source": server.serve("/plain.gguf", File(PLAIN)), "prefetch": True})
    cluster.settle("m")
    cluster.settle("m")
    end(cluster, said="Trying again\nModelSourceUnauthorized: example.com: the server answered 401")
    status = cluster.settle("m")
    assert (status["phase"], conditions(status)["Degraded"]) == ("Failed", ("True", "PrefetchFailed"))
    message = next(c["message"] for c in status["conditions"] if c["type"] == "Degraded")
    assert message.startswith("ModelSourceUnauthorized: example.com: the server answered 401")
    assert "delete Job `m-prefetch`" in message
    before = job(cluster)["metadata"]["uid"]
    cluster.client.delete(kinds.JOBS, cluster.namespace, "m-prefetch")
    seen(cluster, lambda found: found is None)
    assert cluster.settle("m")["phase"] == "Downloading"
    assert job(cluster)["metadata"]["uid"] != before


def test_a_job_for_another_source_is_replaced_and_one_that_nobody_wants_is_ended(
    cluster: Cluster, server: FileServer
) -> None:
    cluster.write("m", {"source": server.serve("/plain.gguf", File(PLAIN)), "prefetch": True})
    cluster.settle("m")
    cluster.settle("m")
    seen(cluster, lambda found: found is not None)
    first = job(cluster)
    other = server.serve("/other.gguf", File(PLAIN))
    cluster.write("m", {"source": other, "prefetch": True})
    cluster.settle("m")
    cluster.settle("m")
    eventually(lambda: gone(cluster, first["metadata"]["uid"]), what="the first Job to be gone")
    cluster.settle("m")
    second = job(cluster)
    fetched = {e["name"]: e.get("value") for e in second["spec"]["template"]["spec"]["initContainers"][1]["env"]}
    assert fetched["CACHE_DIR"] == f"/models/{cache_key(other)}"
    seen(cluster, lambda found: found is not None and found["metadata"]["uid"] == second["metadata"]["uid"])
    cluster.write("m", {"source": other})
    assert cluster.settle("m")["phase"] == "Ready"
    eventually(lambda: gone(cluster, second["metadata"]["uid"]), what="the second Job to be gone")


def gone(cluster: Cluster, uid: str) -> bool:
    found = cluster.prefetcher.jobs.get(cluster.namespace, "m-prefetch")
    return found is None or found["metadata"]["uid"] != uid


def test_what_cannot_be_prefetched_says_so(cluster: Cluster) -> None:
    cluster.write("m", {"source": "hf://acme/tiny", "format": "safetensors", "prefetch": True})
    status = cluster.settle("m")
    assert conditions(status)["Degraded"] == ("True", "PrefetchInvalid")
    with pytest.raises(NotFound):
        job(cluster)


def test_a_set_of_files_is_looked_at_and_an_unsafe_one_never_ready(cluster: Cluster, server: FileServer) -> None:
    for name in ("a-1.gguf", "a-2.gguf", "mmproj.gguf", "evil.gguf"):
        server.serve(f"/acme/tiny/resolve/v2/{name}", File(PLAIN))
    spec = {"source": "hf://acme/tiny@v2", "files": ["a-1.gguf", "a-2.gguf"], "mmproj": "mmproj.gguf"}
    cluster.write("m", spec)
    status = cluster.settle("m")
    assert (status["phase"], status["sourceContentLength"]) == ("Ready", 3 * len(PLAIN))
    assert status["stagedFiles"] == ["a-1.gguf", "a-2.gguf", "mmproj.gguf"]
    asked = len(server.requests)
    cluster.write("m", {**spec, "files": ["../evil.gguf"]})
    status = cluster.settle("m")
    assert (status["phase"], conditions(status)["Degraded"]) == ("Failed", ("True", "InvalidFileSet"))
    assert len(server.requests) == asked


def test_a_redirect_to_a_private_address_is_refused_and_named(cluster: Cluster, server: FileServer) -> None:
    cluster.write("m", {"source": server.serve("/x.gguf", File(redirect="http://169.254.169.254/latest/meta-data"))})
    status = cluster.settle("m")
    assert conditions(status)["SourceVerified"] == ("False", "SourceRefused")
    assert "169.254.169.254" in next(c["message"] for c in status["conditions"] if c["type"] == "SourceVerified")


@pytest.mark.parametrize(
    ("file", "phase", "kind", "reason"),
    [
        (File(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 9)), "Failed", "Degraded", "NotGguf"),
        (File(b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1 << 62)), "Failed", "Degraded", "NotGguf"),
        (File(b"<html>quota exceeded</html>"), "Failed", "Degraded", "NotGguf"),
        # A pod may get a correct response later: the Model is Ready, and its condition reports the fault.
        (File(PLAIN, claims_length=len(PLAIN) + 10), "Ready", "SourceVerified", "SourceUnreachable"),
        (File(PLAIN, cut_after=100, cuts=99, ranges=False), "Ready", "SourceVerified", "SourceUnreachable"),
    ],
    ids=["a hostile count", "a hostile length", "a page", "a wrong length", "cut off"],
)
def test_what_a_hostile_or_lying_server_sends_is_named_and_stops_nothing(
    cluster: Cluster, server: FileServer, file: File, phase: str, kind: str, reason: str
) -> None:
    cluster.write("bad", {"source": server.serve("/bad.gguf", file)})
    cluster.write("good", {"source": server.serve("/good.gguf", File(PLAIN))})
    status = cluster.settle("bad")
    assert (status["phase"], conditions(status)[kind][1]) == (phase, reason)
    assert "gguf" not in status
    assert cluster.settle("good")["gguf"]["layerCount"] == 32


def test_a_secret_is_read_only_where_somebody_allowed_it(
    cluster: Cluster, client: KubeClient, server: FileServer
) -> None:
    namespace = cluster.namespace
    url = server.serve("/acme/tiny/resolve/main/x.gguf", File(PLAIN))
    assert url
    spec = {"source": "hf://acme/tiny/x.gguf", "sourceSecretRef": {"name": "model-source"}}
    cluster.write("m", spec)
    status = cluster.settle("m")
    assert status["phase"] == "Ready"
    assert conditions(status)["SourceVerified"] == ("False", "SourceSecretNotReadable")
    assert server.requests == []
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "model-source"}}
    client.create(kinds.SECRETS, namespace, {**secret, "stringData": {"HF_TOKEN": "hf_secret"}})
    for document in yaml.safe_load_all(RBAC.with_name("secrets-reader.yaml").read_text()):
        kind = client.mapping(document["apiVersion"], document["kind"])
        client.apply(kind, namespace, document, field_manager="tests")
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["model-source"], "verbs": ["get"]}
    await_rights(client, LOOP_USER, namespace, rule)
    cluster.write("m", {**spec, "sha256": "0" * 64})
    status = cluster.settle("m")
    assert conditions(status)["SourceVerified"] == ("False", "ChecksumMismatch")
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer hf_secret"}
    assert "hf_secret" not in str(client.get(kinds.MODELS, namespace, "m"))


def test_drift_is_over_when_a_pod_has_fetched_again(cluster: Cluster, server: FileServer) -> None:
    file = File(PLAIN)
    cluster.write("m", {"source": server.serve("/plain.gguf", file), "refreshPolicy": "OnChange"})
    cluster.settle("m")
    file.etag, file.content = '"v2"', PLAIN + bytes(100)
    cluster.pass_recheck_interval()
    status = cluster.settle("m")
    assert conditions(status)["SourceDrifted"] == ("True", "UpstreamChanged")
    server.serve(f"/api/v1/namespaces/{cluster.namespace}/pods/m-0/log", File(b"Fetched the new version\n"))
    for running in (True, False):
        cluster.transfers.downloader_changed(cluster.namespace, "m", "m-0", where="pod/m-0", running=running)
    eventually(lambda: cluster.transfers.fetched_at(cluster.namespace, "m"), what="the end of the download to be seen")
    status = cluster.settle("m")
    assert conditions(status)["SourceDrifted"] == ("False", "InSync")
    assert (status["sourceETag"], status["sourceContentLength"]) == ('"v2"', len(PLAIN) + 100)


def test_a_claim_that_goes_takes_ready_with_it(cluster: Cluster, client: KubeClient) -> None:
    name = f"gone-{cluster.namespace}"
    size = {"storage": "1Gi"}
    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {**shared, "volumeName": name, "resources": {"requests": size}},
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **shared,
            "capacity": size,
            "hostPath": {"path": "/nonexistent"},
            # Without it, a waiting claim of another test with no storage class takes this volume for itself.
            "claimRef": {"namespace": cluster.namespace, "name": "weights"},
        },
    }
    volumes = client.mapping("v1", "PersistentVolume")
    client.create(volumes, None, volume)
    # A claim whose named volume the controller does not know yet waits for the controller's next period of 15 s.
    eventually(lambda: client.get(volumes, None, name)["status"].get("phase") == "Available", what="the volume")
    client.create(kinds.CLAIMS, cluster.namespace, claim)
    cluster.write("m", {"source": "pvc://weights/x.gguf"})

    def phase() -> str:
        found = cluster.claims.get(cluster.namespace, "weights")
        return str(found["status"]["phase"]) if found is not None else ""

    eventually(lambda: phase() == "Bound", what="the claim to be bound")
    assert cluster.settle("m")["phase"] == "Ready"
    client.delete(volumes, None, name)
    client.patch(volumes, None, name, {"metadata": {"finalizers": None}})
    eventually(lambda: phase() == "Lost", what="the claim to be lost")
    status = cluster.settle("m")
    assert (status["phase"], conditions(status)["Progressing"]) == ("Pending", ("True", "PVCNotBound"))


@pytest.mark.parametrize(
    "gpu",
    [
        {"resourceName": "a/b", "resourceClaims": [{"name": "x", "resourceClaimName": "y"}]},
        {"resourceClaims": [{"name": "x"}]},
        {"resourceClaims": [{"name": "x", "resourceClaimName": "y", "resourceClaimTemplateName": "z"}]},
        {"resourceClaims": [{"name": f"x{n}", "resourceClaimName": "y"} for n in range(17)]},
        {"resourceName": "gpu"},
        {"runtime": "opencl"},
    ],
)
def test_the_api_server_refuses_gpus_that_make_no_sense(client: KubeClient, namespace: str, gpu: Json) -> None:
    body = {
        "apiVersion": kinds.MODELS.api_version,
        "kind": "Model",
        "metadata": {"name": "m"},
        "spec": {"source": "https://example.com/x.gguf", "hardware": {"gpu": gpu}},
    }
    with pytest.raises(Invalid):
        client.create(kinds.MODELS, namespace, body, dry_run=True)


@pytest.mark.parametrize("source", ["ftp://example.com/x.gguf", "https//example.com x"])
def test_the_api_server_says_which_sources_there_are(client: KubeClient, namespace: str, source: str) -> None:
    body = {"apiVersion": kinds.MODELS.api_version, "kind": "Model", "metadata": {"name": "m"}}
    with pytest.raises(Invalid) as refused:
        client.create(kinds.MODELS, namespace, {**body, "spec": {"source": source}}, dry_run=True)
    assert "must be an https, http, s3, hf, pvc or file address" in str(refused.value)
    assert "^(https" not in str(refused.value)
