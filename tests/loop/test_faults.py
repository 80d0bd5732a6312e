"""Killed loops, killed API servers, lost state, two loops at once: the loop converges, and no pod restarts.

The tests share a separate control plane; each has a namespace and a state directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from automation.leadership.election import LeaseTimes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from tests.support.loop import (
    LoopProcess,
    arguments,
    deployed,
    edit,
    eventually,
    find,
    grant_loop_rights,
    install_crds,
    loop_process,
    model,
    service,
    settled,
)
from tests.support.model_server import File, FileServer
from tools.localcluster import LocalCluster

LONGEST_LEASE_S = 60.0
"""The highest value of HERDSMAN_LEASE_DURATION_S."""
VLLM: dict[str, Any] = {"runtime": "vllm", "skipModelInit": True}


class Scene:
    """A namespace with a Model, and the identities of its objects, which show whether any was replaced."""

    def __init__(self, cluster: LocalCluster, client: KubeClient, kubeconfig: Path, directory: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.kubeconfig = kubeconfig
        self.directory = directory
        self.namespace = f"faults-{uuid.uuid4().hex[:6]}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        client.create(kinds.NAMESPACES, None, body)
        model(client, self.namespace)

    def deployments(self) -> dict[str, tuple[str, int]]:
        """Each Deployment's uid and generation, which change if the Deployment is replaced or changed."""
        items = self.client.list(kinds.DEPLOYMENTS, self.namespace)["items"]
        return {d["metadata"]["name"]: (d["metadata"]["uid"], d["metadata"]["generation"]) for d in items}

    def close(self) -> None:
        """Leave no objects for the next test's loop."""
        of_services = (kinds.INFERENCE_SERVICES, kinds.DEPLOYMENTS, kinds.SERVICES, kinds.AUTOSCALERS)
        for kind in of_services:
            for obj in self.client.list(kind, self.namespace)["items"]:
                with contextlib.suppress(NotFound):
                    self.client.delete(kind, self.namespace, obj["metadata"]["name"])
        self.client.delete(kinds.NAMESPACES, None, self.namespace)
        for kind in of_services:
            eventually(
                lambda kind=kind: not self.client.list(kind, self.namespace)["items"],  # type: ignore[misc]
                what=f"no {kind.kind} of the test",
            )


@pytest.fixture(scope="module")
def client(own_client: KubeClient) -> KubeClient:
    """The administrator, on a cluster with the CRDs."""
    install_crds(own_client)
    return own_client


@pytest.fixture(scope="module")
def kubeconfig(client: KubeClient, own_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grant_loop_rights(client, own_cluster, tmp_path_factory.mktemp("rights") / "kubeconfig")


@pytest.fixture
def scene(
    own_cluster: LocalCluster, client: KubeClient, kubeconfig: Path, tmp_path: Path, pulumi_cli: Path
) -> Iterator[Scene]:
    made = Scene(own_cluster, client, kubeconfig, tmp_path)
    yield made
    made.close()


def pulumi_children(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children(recursive=True) if "pulumi" in p.name()]


@pytest.mark.soak
def test_a_loop_killed_in_a_batch_converges_after_a_restart(scene: Scene) -> None:
    count = 20
    with loop_process(scene.kubeconfig, scene.directory / "loop") as loop:
        for number in range(count):
            service(scene.client, scene.namespace, f"svc-{number}", **VLLM)
        children = eventually(lambda: pulumi_children(loop.pid), what="an engine run", timeout_s=60)
        loop.kill()
        for child in children:
            with_grace(child)
        before = scene.deployments()
        loop.start()
        eventually(lambda: len(scene.deployments()) == count, what="all Deployments", timeout_s=60)
        after = scene.deployments()
        assert {name: after[name] for name in before} == before, "what was made before the kill was made again"
        client = scene.client
        client.delete(kinds.INFERENCE_SERVICES, scene.namespace, "svc-0")
        eventually(
            lambda: find(client, kinds.DEPLOYMENTS, scene.namespace, "svc-0") is None, what="no orphan", timeout_s=30
        )
        names = {s["metadata"]["name"] for s in client.list(kinds.SERVICES, scene.namespace)["items"]}
        assert names <= {f"svc-{number}" for number in range(count)}


def with_grace(process: psutil.Process) -> None:
    """Kill an engine process that outlived its loop. On a real machine it ends with the cgroup or by itself."""
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_a_lost_state_directory_restarts_nothing(scene: Scene) -> None:
    client = scene.client
    with loop_process(scene.kubeconfig, scene.directory / "loop") as loop:
        service(client, scene.namespace, "plain", **VLLM)
        service(client, scene.namespace, "scaled", autoscaling={"maxReplicas": 3}, **VLLM)
        for name in ("plain", "scaled"):
            deployed(client, scene.namespace, name)
            settled(client, scene.namespace, name)
        loop.stop()
        before = scene.deployments()
        shutil.rmtree(loop.state)
        edit(client, scene.namespace, "scaled", autoscaling=None)
        client.delete(kinds.INFERENCE_SERVICES, scene.namespace, "plain")
        loop.start()
        eventually(
            lambda: find(client, kinds.AUTOSCALERS, scene.namespace, "scaled") is None, what="no autoscaler left"
        )
        eventually(lambda: find(client, kinds.DEPLOYMENTS, scene.namespace, "plain") is None, what="no Deployment left")
        assert scene.deployments()["scaled"][0] == before["scaled"][0]
        edit(client, scene.namespace, "scaled", vllmConfig={"maxModelLen": 512})
        eventually(
            lambda: "512" in arguments(deployed(client, scene.namespace, "scaled")), what="a change after the loss"
        )


@pytest.mark.soak
def test_a_service_deleted_while_no_loop_ran_leaves_nothing(scene: Scene) -> None:
    client = scene.client
    with loop_process(scene.kubeconfig, scene.directory / "loop") as loop:
        for name in ("gone", "stays"):
            service(client, scene.namespace, name, **VLLM)
            deployed(client, scene.namespace, name)
            settled(client, scene.namespace, name)
        loop.stop()
        before = scene.deployments()
        client.delete(kinds.INFERENCE_SERVICES, scene.namespace, "gone")
        loop.start()
        eventually(lambda: set(scene.deployments()) == {"stays"}, what="only `stays` to be left")
        assert scene.deployments()["stays"] == before["stays"]
        eventually(
            lambda: [s["metadata"]["name"] for s in client.list(kinds.SERVICES, scene.namespace)["items"]] == ["stays"],
            what="only the Service of `stays` to be left",
        )


@pytest.mark.soak
def test_a_restart_with_nothing_to_do_starts_no_engine(scene: Scene) -> None:
    """An upgrade that renders the same objects is such a restart: it replaces no pod of any kind of service."""
    client = scene.client
    kinds_of_service: dict[str, dict[str, object]] = {
        "plain": {},
        "scaled": {"autoscaling": {"maxReplicas": 3}},
        "on-gpus": {"resources": {"gpu": 2, "memory": "4Gi"}, "priority": "high"},
        "careful": {"rolloutPolicy": {"waitForIdle": True}, "maxPodLifetimeSeconds": 86400},
        "asleep": {"suspend": True},
        "router": {"runtime": "llamacpp-router"},
        "open": {"annotations": {"herdsman.dev/network-policy": "clients", "herdsman.dev/readiness-gate": "true"}},
    }
    with loop_process(scene.kubeconfig, scene.directory / "loop") as loop:
        for name, spec in kinds_of_service.items():
            service(client, scene.namespace, name, **{**VLLM, **spec})  # type: ignore[arg-type]
        for name in kinds_of_service:
            deployed(client, scene.namespace, name)
            settled(client, scene.namespace, name)
        loop.stop()
        before = scene.deployments()
        loop.start()
        eventually(lambda: loop.metric("herdsman_reconciles_total") >= len(kinds_of_service), what="a pass over each")
        time.sleep(1.0)
        assert loop.metric("herdsman_engine_cli_processes_total") == 0
        assert scene.deployments() == before


@pytest.mark.soak
def test_of_two_loops_one_works_and_the_other_takes_over(scene: Scene) -> None:
    client = scene.client
    with loop_process(scene.kubeconfig, scene.directory / "one") as first:
        second = LoopProcess(scene.kubeconfig, scene.directory / "two")
        try:
            second.start(ready=False)
            service(client, scene.namespace, "svc", **VLLM)
            deployed(client, scene.namespace)
            eventually(lambda: second.url, what="the second loop's health server")
            assert second.metric("herdsman_leader") == 0
            assert first.metric("herdsman_leader") == 1
            assert second.metric("herdsman_reconciles_total") == 0
            first.stop()
            eventually(lambda: second.metric("herdsman_leader") == 1, what="the second loop to lead", timeout_s=60)
            edit(client, scene.namespace, vllmConfig={"maxModelLen": 777})
            eventually(
                lambda: "777" in arguments(deployed(client, scene.namespace)), what="a change by the second loop"
            )
        finally:
            second.stop()


@pytest.mark.soak
def test_once_ends_by_itself_and_its_exit_code_tells(scene: Scene) -> None:
    client = scene.client
    service(client, scene.namespace, "svc", **VLLM)
    loop = LoopProcess(scene.kubeconfig, scene.directory / "loop")
    loop.start("--once", ready=False)
    assert loop.wait(60) == 0, loop.log.read_text()[-3000:]
    deployed(client, scene.namespace, timeout_s=1)
    service(client, scene.namespace, "broken", resources={"memory": "much"}, **VLLM)
    loop.start("--once", ready=False)
    assert loop.wait(60) == 1, loop.log.read_text()[-3000:]


@pytest.mark.soak
def test_an_api_server_that_dies_in_a_batch_and_comes_back_is_survived(scene: Scene) -> None:
    count = 20
    # On a busy machine the API server needs more than 9 s to come back, after which a lease of 13 s is lost.
    loop = LoopProcess(
        scene.kubeconfig, scene.directory / "loop", environment={"HERDSMAN_LEASE_DURATION_S": str(LONGEST_LEASE_S)}
    )
    try:
        loop.start()
        for number in range(count):
            service(scene.client, scene.namespace, f"svc-{number}", **VLLM)
        eventually(lambda: pulumi_children(loop.pid), what="an engine run", timeout_s=60)
        killed = time.monotonic()
        scene.cluster.kill("kube-apiserver")
        time.sleep(2.0)
        scene.cluster.start("kube-apiserver")
        away_s = time.monotonic() - killed
        assert away_s < LeaseTimes.of(LONGEST_LEASE_S).deadline_s, "no short outage any more"
        eventually(lambda: len(scene.deployments()) == count, what="all Deployments", timeout_s=90)
        assert loop.poll() is None, "the loop must outlive a short outage"
    finally:
        loop.stop()


@pytest.mark.soak
def test_a_look_that_killed_the_loop_is_told_and_not_repeated_at_once(scene: Scene) -> None:
    with FileServer() as server, loop_process(scene.kubeconfig, scene.directory / "loop") as loop:
        # The server sends one byte a second, so that the inspection lasts until the loop is killed.
        url = server.serve("/held.gguf", File(b"GGUF" + bytes(1 << 20), bytes_per_s=1.0))
        model(scene.client, scene.namespace, "held", source=url)
        eventually(lambda: bool(server.requests), what="a look at the model")
        loop.kill()
        seen = len(server.requests)
        loop.start()

        def verified() -> dict[str, str]:
            found = scene.client.get(kinds.MODELS, scene.namespace, "held").get("status") or {}
            return next((c for c in found.get("conditions") or () if c["type"] == "SourceVerified"), {})

        eventually(lambda: verified().get("reason") == "LookInterrupted", what="the interrupted look to be told")
        assert verified()["status"] == "False"
        assert "ended while it read this source" in verified()["message"]
        assert len(server.requests) == seen
        assert loop.stop() == 0
