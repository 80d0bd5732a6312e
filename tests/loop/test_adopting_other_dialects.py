"""`herdsman adopt` on services that KServe and llmaz created: taken over and given back without a changed pod template.

The objects were recorded from the peers' controllers, which do not run here. The loop, the engine and the command are
real. So are the pods of Deployments and StatefulSets; LeaderWorkerSets have no controller here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.adoption.kept_templates import workload_digest
from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import dialects, peer_objects
from tests.support.loop import eventually, loop_process

pytestmark = pytest.mark.soak

RUNS = (kinds.DEPLOYMENTS, kinds.LEADER_WORKER_SETS)


@pytest.fixture(scope="module")
def with_dialects(client: KubeClient) -> Iterator[KubeClient]:
    """The administrator, on a cluster with the CRDs of both dialects and of their dependencies."""
    with dialects.needed(client):
        for family in ("kserve", "llmaz"):
            dialects.install(client, family)
        yield client
        for family in ("kserve", "llmaz"):
            dialects.uninstall(client, family)


class Cluster:
    """The namespace's state that shows a restart: workloads, pods, owners."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    def running(self) -> dict[str, tuple[str, str]]:
        """The uid of each workload, and a digest of its pod templates."""
        found = [obj for kind in RUNS for obj in self.client.list(kind, self.namespace)["items"]]
        return {f"{o['kind']}/{o['metadata']['name']}": (o["metadata"]["uid"], workload_digest(o)) for o in found}

    def pods(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.client.list(kinds.PODS, self.namespace)["items"]}

    def owner(self, kind: kinds.Kind, name: str) -> tuple[str, str]:
        (reference,) = self.client.get(kind, self.namespace, name)["metadata"]["ownerReferences"]
        return reference["kind"], reference["name"]

    def conditions(self, kind: kinds.Kind, name: str) -> dict[str, Json]:
        status = self.client.get(kind, self.namespace, name).get("status") or {}
        return {each["type"]: each for each in status.get("conditions") or ()}


def adopt(kubeconfig: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = invoke(["adopt", f"--kubeconfig={kubeconfig}", "-o", "json", *arguments])
    out = capsys.readouterr().out
    return code, json.loads(out) if out.strip() else None


def states(answer: Any) -> dict[str, str]:
    return {each["name"]: each["state"] for each in answer["services"]}


def check_history_and_consent(cluster: Cluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`history` shows the applied version as the current one; in mode Preview the next version waits for approval."""
    client, namespace = cluster.client, cluster.namespace
    words = ("playground/chat", f"--namespace={namespace}", f"--kubeconfig={kubeconfig}", "-o", "json")

    def newest() -> Json | None:
        capsys.readouterr()
        assert invoke(["history", *words]) == 0
        found = json.loads(capsys.readouterr().out)
        return found[0] if found and found[0]["current"] else None

    revision = eventually(newest, what="a revision of the present spec")
    assert revision["data"]["spec"]["replicas"] == 2
    assert {"OpenModel/tiny", "BackendRuntime/vllm"} <= revision["data"]["models"].keys()

    mode = {"metadata": {"annotations": {"herdsman.dev/mode": "Preview"}}, "spec": {"replicas": 3}}
    client.patch(kinds.PLAYGROUNDS, namespace, "chat", mode)
    eventually(lambda: "ChangePending" in cluster.conditions(kinds.PLAYGROUNDS, "chat"), what="a change that waits")
    assert client.get(kinds.LEADER_WORKER_SETS, namespace, "chat")["spec"]["replicas"] == 2
    capsys.readouterr()
    assert invoke(["approve", *words, "--yes", "--timeout=30"]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == "applied"
    assert client.get(kinds.LEADER_WORKER_SETS, namespace, "chat")["spec"]["replicas"] == 3


def test_services_of_kserve_and_llmaz_are_adopted_and_given_back(
    with_dialects: KubeClient,
    kubeconfig: Path,
    loop_kubeconfig: Path,
    pulumi_cli: Path,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client, here = with_dialects, f"--namespace={namespace}"
    peer_objects.make(client, namespace, peer_objects.vector("llmaz", "001"))
    peer_objects.make(client, namespace, peer_objects.vector("llmaz", "047"))
    peer_objects.make(client, namespace, peer_objects.vector("kserve", "050"))
    names = ("playground/chat", "llmaz-service/wide", "llminferenceservice/pd")
    cluster = Cluster(client, namespace)
    eventually(lambda: len(cluster.pods()) == 5, what="pods of Deployments and StatefulSets")
    before, pods = cluster.running(), cluster.pods()
    assert set(before) >= {"LeaderWorkerSet/chat", "LeaderWorkerSet/wide", "Deployment/pd-kserve"}

    with loop_process(loop_kubeconfig, tmp_path, "--controller-class=herdsman") as loop:
        code, preview = adopt(kubeconfig, capsys, *names, here, "--dry-run")
        assert code == 0, preview
        told = {each["name"]: each for each in preview["services"]}
        assert set(told) == {"chat", "wide", "pd"}
        for service in told.values():
            assert not service["restarts"] and not service["refused"], service
        assert any("that Service stays without an owner" in note for note in told["chat"]["notes"])
        assert (cluster.running(), cluster.pods()) == (before, pods), "a preview writes nothing"

        code, answer = adopt(kubeconfig, capsys, *names, here, "--yes", "--timeout=60")
        assert (code, states(answer)) == (0, dict.fromkeys(("chat", "wide", "pd"), "adopted")), answer
        assert cluster.running() == before, "nothing was made anew, no template changed"
        assert cluster.pods() == pods, "no pod restarted"
        for kind, name in ((kinds.LEADER_WORKER_SETS, "chat"), (kinds.SERVICES, "chat-lb")):
            assert cluster.owner(kind, name) == ("Playground", "chat")
        for kind, name in ((kinds.PLAYGROUNDS, "chat"), (kinds.LLMAZ_SERVICES, "wide"), (kinds.LLM_SERVICES, "pd")):
            assert cluster.conditions(kind, name)["TemplateKept"]["status"] == "True"
        # The llmaz Service between Playground and LeaderWorkerSet stays; no loop reconciles it.
        assert "Reconciling" not in cluster.conditions(kinds.LLMAZ_SERVICES, "chat")

        # A change of `replicas` does not change the pod template.
        client.patch(kinds.PLAYGROUNDS, namespace, "chat", {"spec": {"replicas": 2}})
        eventually(
            lambda: client.get(kinds.LEADER_WORKER_SETS, namespace, "chat")["spec"]["replicas"] == 2,
            what="more replicas",
        )
        assert cluster.running() == before
        check_history_and_consent(cluster, kubeconfig, capsys)

        code, answer = adopt(kubeconfig, capsys, *names, here, "--release", "--yes", "--timeout=60")
        assert (code, states(answer)) == (0, dict.fromkeys(("chat", "wide", "pd"), "released")), answer
        assert cluster.running() == before and cluster.pods() == pods
        assert cluster.owner(kinds.LEADER_WORKER_SETS, "chat") == ("Service", "chat")
        assert cluster.owner(kinds.SERVICES, "chat-lb") == ("Service", "chat")
        for name in ("pd-kserve", "pd-kserve-prefill"):
            notes = client.get(kinds.DEPLOYMENTS, namespace, name)["metadata"].get("annotations") or {}
            assert not {key for key in notes if key.startswith("herdsman.dev/")} - {"herdsman.dev/adopt"}, notes
        assert not [line for line in loop.lines() if line.get("level") == "error"]
