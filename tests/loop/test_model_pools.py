"""Services that share a GPU by turns: a real control plane and loop. The test serves for the pods of the services."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from automation.cli.main import invoke
from automation.serving.wake import slice_name
from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.loop.test_request_scaling import knows
from tests.loop.test_sleep import Engine, events, machine_address, try_to_ask
from tests.support.gateway_rights import grant_gateway_rights
from tests.support.gateways import completion, gateway_process
from tests.support.kubelet import pods_of, write_ready_status
from tests.support.loop import LoopProcess, condition, deployed, eventually, find, loop_process, model, service
from tests.support.raw_engine import read_head
from tools.localcluster import LocalCluster

HOLD = "herdsman.dev/test-hold"
"""A finalizer. A pod with it stays when it is deleted, as a pod does that still finishes its requests."""


@pytest.fixture(scope="module")
def loop(loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopProcess]:
    """A loop that the cluster reaches at the machine's address."""
    with loop_process(loop_kubeconfig, tmp_path_factory.mktemp("loop"), start=False) as running:
        running.environment["HERDSMAN_PROXY_ADDRESS"] = machine_address()
        yield running.start()


@pytest.fixture(scope="module", autouse=True)
def priorities(client: KubeClient) -> None:
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)


@pytest.fixture
def engines() -> Iterator[dict[str, Engine]]:
    made = {"chat": Engine(), "code": Engine()}
    yield made
    for each in made.values():
        each.close()


def pool(client: KubeClient, namespace: str, *members: str, **spec: Any) -> Json:
    named = [{"inferenceServiceRef": {"name": name}} for name in members]
    body = {
        "apiVersion": kinds.MODEL_POOLS.api_version,
        "kind": kinds.MODEL_POOLS.kind,
        "metadata": {"name": "gpu", "namespace": namespace},
        "spec": {"members": named, **spec},
    }
    return client.apply(kinds.MODEL_POOLS, namespace, body, field_manager="tests")


def pool_status(client: KubeClient, namespace: str) -> Json:
    return (find(client, kinds.MODEL_POOLS, namespace, "gpu") or {}).get("status") or {}


def pool_condition(client: KubeClient, namespace: str, kind: str) -> tuple[str, str]:
    found = {each["type"]: each for each in pool_status(client, namespace).get("conditions", ())}
    return found.get(kind, {}).get("status", ""), found.get(kind, {}).get("reason", "")


def replicas(client: KubeClient, namespace: str, name: str) -> int:
    return int(deployed(client, namespace, name)["spec"]["replicas"])


def start_pod(client: KubeClient, namespace: str, name: str) -> str:
    """Make the only pod of a service ready, as its kubelet would; return its name."""
    (pod,) = eventually(lambda: pods_of(client, namespace, name), what=f"a pod of {name}")
    write_ready_status(client, pod, run=pod["metadata"]["uid"], address=machine_address())
    return str(pod["metadata"]["name"])


def request_to(client: KubeClient, namespace: str, name: str) -> Any:
    """Send a request to a member that waits for its turn; return the connection."""
    slices = eventually(lambda: find(client, kinds.ENDPOINT_SLICES, namespace, slice_name(name)), what="a slice")
    assert slices is not None
    return eventually(lambda: try_to_ask(slices), what="the listener")


def answered(connection: Any) -> bool:
    head, _ = read_head(connection)
    return b" 200 " in head


def test_two_members_take_turns_and_stay_as_they_are_without_the_pool(
    client: KubeClient,
    control_plane: LocalCluster,
    namespace: str,
    loop: LoopProcess,
    engines: dict[str, Engine],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model(client, namespace)
    pool(client, namespace, "chat", "code", "gone", default="chat", minTurn="1s")
    eventually(lambda: pool_status(client, namespace), what="the loop to know the pool")
    for name, engine in engines.items():
        service(client, namespace, name, containerPort=engine.port, skipModelInit=True)
    assert replicas(client, namespace, "code") == 0, "a member never starts before its turn"
    eventually(lambda: replicas(client, namespace, "chat") == 1, what="the start of chat")
    held = start_pod(client, namespace, "chat")
    eventually(lambda: pool_status(client, namespace).get("residentMember") == "chat", what="the turn of chat")
    assert pool_condition(client, namespace, "MembersValid") == ("False", "MissingMembers")
    eventually(
        lambda: "its turn in ModelPool `gpu`" in condition(client, namespace, "code", "Ready").get("message", ""),
        what="the status of the member that waits",
    )
    client.patch(kinds.PODS, namespace, held, {"metadata": {"finalizers": [HOLD]}})

    with request_to(client, namespace, "code") as waiting:
        eventually(lambda: replicas(client, namespace, "chat") == 0, what="the end of chat's turn")
        eventually(
            lambda: pool_condition(client, namespace, "SwapDeferred") == ("True", "PodsRemain"), what="PodsRemain"
        )
        assert pool_status(client, namespace)["pendingMember"] == "code"
        assert replicas(client, namespace, "code") == 0, "the pod of chat still has the GPU"
        client.patch(kinds.PODS, namespace, held, {"metadata": {"finalizers": []}})
        eventually(lambda: replicas(client, namespace, "code") == 1, what="the start of code")
        start_pod(client, namespace, "code")
        assert answered(waiting) and engines["code"].served > 0
    eventually(lambda: pool_status(client, namespace).get("residentMember") == "code", what="the turn of code")
    told = {"TurnStarted", "TurnEnded", "MemberRefused"}
    eventually(lambda: told <= events(client, namespace), what="Events")

    with request_to(client, namespace, "chat") as waiting:
        eventually(lambda: replicas(client, namespace, "chat") == 1, what="the start of chat")
        assert replicas(client, namespace, "code") == 0
        start_pod(client, namespace, "chat")
        assert answered(waiting)

    eventually(lambda: loop.metric("herdsman_model_pool_turns_total") == 3, what="three turns in the metrics")
    preview = ["preview", "--live", "code", "-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
    assert invoke(preview) == 0, capsys.readouterr().out
    client.delete(kinds.MODEL_POOLS, namespace, "gpu")
    eventually(lambda: loop.metric("herdsman_model_pool_turns_total") == 0, what="the loop to see the deletion")
    loop.stop()
    loop.start()
    with request_to(client, namespace, "code") as waiting:
        eventually(lambda: replicas(client, namespace, "code") == 1, what="the start of code without the pool")
        assert replicas(client, namespace, "chat") == 1, "without the pool no member stops for another"
        start_pod(client, namespace, "code")
        assert answered(waiting)


def test_a_request_at_the_gateway_leads_to_a_turn(
    client: KubeClient,
    control_plane: LocalCluster,
    namespace: str,
    loop: LoopProcess,
    engines: dict[str, Engine],
    tmp_path: Path,
) -> None:
    model(client, namespace)
    pool(client, namespace, "chat", "code", default="chat", minTurn="1s")
    eventually(lambda: pool_status(client, namespace), what="the loop to know the pool")
    for name, engine in engines.items():
        service(client, namespace, name, containerPort=engine.port, skipModelInit=True)
    eventually(lambda: replicas(client, namespace, "chat") == 1, what="the start of chat")
    start_pod(client, namespace, "chat")
    eventually(lambda: find(client, kinds.ENDPOINT_SLICES, namespace, slice_name("code")), what="a slice")
    kubeconfig = grant_gateway_rights(client, control_plane, tmp_path / "kubeconfig")
    with gateway_process(kubeconfig, tmp_path / "log") as gateway, ThreadPoolExecutor(1) as clients:
        eventually(lambda: knows(gateway, f"{namespace}/code"), what="the gateway to know the member")
        asked = clients.submit(completion, gateway, f"{namespace}/code")
        eventually(lambda: replicas(client, namespace, "code") == 1, what="the start of code")
        assert replicas(client, namespace, "chat") == 0 and not asked.done()
        start_pod(client, namespace, "code")
        assert asked.result()[0] == 200


def test_members_on_a_host_are_in_the_model_group_of_their_pool(
    client: KubeClient,
    control_plane: LocalCluster,
    namespace: str,
    loop: LoopProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model(client, namespace)
    for name in ("chat", "code"):
        service(client, namespace, name, annotations={"herdsman.dev/host": "desk"})
    plans = {name: planned(client, namespace, name) for name in ("chat", "code")}
    assert not any("group" in plan or "idleTimeoutS" in plan for plan in plans.values())
    pool(client, namespace, "chat", "code", default="chat", minTurn="90s", swapBudget="4m")
    for name, residency in (("chat", "preferred"), ("code", "onDemand")):
        eventually(lambda name=name: "group" in planned(client, namespace, name), what="the group")  # type: ignore[misc] # mypy cannot infer the lambda
        plan = planned(client, namespace, name)
        assert (plan["group"], plan["residency"], plan["minDwellS"]) == ("modelpool/gpu", residency, 90)
        assert plan["idleTimeoutS"] > 0 and plan["wakeTimeoutS"] == 240
    eventually(
        lambda: pool_condition(client, namespace, "MetalSupported") == ("True", "ModelGroup"), what="the pool's status"
    )
    preview = ["preview", "--live", "chat", "-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
    assert invoke(preview) == 0, capsys.readouterr().out
    client.delete(kinds.MODEL_POOLS, namespace, "gpu")
    for name, plan in plans.items():
        eventually(lambda name=name, plan=plan: planned(client, namespace, name) == plan, what="the plan as before")  # type: ignore[misc] # mypy cannot infer the lambda


def planned(client: KubeClient, namespace: str, name: str) -> Json:
    """Return the plan of a service's process on its host."""
    found = eventually(lambda: find(client, kinds.HOST_PROCESSES, namespace, name), what="a HostProcess")
    assert found is not None
    plan: Json = found["spec"]
    return plan
