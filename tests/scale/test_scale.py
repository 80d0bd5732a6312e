"""Two hundred services on fifty GPU nodes that kwok simulates: queue, preemption, capacity, quotas, and scaling.

Only the kubelets are simulated; the API server, the scheduler, the controllers and the loop are real. The tests share
one cluster and one loop, and use separate namespaces. `python -m benchmarks scale` runs the full size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.json_types import Json
from tests.support import controlplane
from tests.support.kwok import GPU, Farm, farm
from tests.support.loop import LoopProcess, edit, eventually, loop_process
from tools import fake_nodes

pytestmark = pytest.mark.soak

NODES, GPUS_EACH = 50, 3


@pytest.fixture(scope="module")
def gpu_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    controlplane.sweep()
    controlplane.tool_or_skip("kwok")
    with controlplane.running() as cluster, farm(cluster, tmp_path_factory.mktemp("kwok")) as made:
        made.add_nodes(NODES, gpus=GPUS_EACH)
        with pytest.MonkeyPatch.context() as patch:
            # A simulated pod answers no request.
            patch.setenv("HERDSMAN_COMPLETION_CHECK", "false")
            with loop_process(cluster.kubeconfig, tmp_path_factory.mktemp("loop")) as loop:
                made.loop = loop  # type: ignore[attr-defined]
                yield made


@pytest.fixture(scope="module")
def loop(gpu_farm: Farm) -> LoopProcess:
    found: LoopProcess = gpu_farm.loop  # type: ignore[attr-defined]
    return found


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:03}" for number in range(count)]


@pytest.fixture(scope="module")
def crowd(gpu_farm: Farm) -> str:
    """A namespace whose services use all GPUs."""
    room = NODES * GPUS_EACH
    made = gpu_farm.namespace("crowd")
    gpu_farm.services(made, names("low", room), priority="low")
    eventually(
        lambda: list(gpu_farm.phases(made).values()).count("Ready") == room, what="a full cluster", timeout_s=240
    )
    return made


def test_services_fill_the_cluster_and_the_rest_wait_in_order(gpu_farm: Farm, loop: LoopProcess, crowd: str) -> None:
    line = gpu_farm.namespace("line")
    # Pods of priority `batch` preempt no others. Age counts in whole seconds; within a second, the name decides.
    gpu_farm.services(line, ["z", "a"], priority="batch")
    time.sleep(1.1)
    gpu_farm.services(line, names("late", 46), priority="batch")
    gpu_farm.services(line, ["low-1", "low-2"], priority="low")
    expected = gpu_farm.by_priority_and_age(line)
    assert set(expected[:2]) == {"low-1", "low-2"}
    assert set(expected[2:4]) == {"a", "z"}
    eventually(lambda: len(gpu_farm.queue(line)) == 50, what="everybody in the queue", timeout_s=240)
    eventually(lambda: gpu_farm.queue(line) == expected, what=f"the queue in the order {expected}", timeout_s=60)
    waiting = gpu_farm.statuses(line)["low-1"]
    assert waiting["phase"] == "WaitingForGPU"
    assert waiting["waitingFor"] == f"{GPU}: 1"
    assert f"Insufficient {GPU}" in waiting["schedulingMessage"]
    # The scheduler retries a pod when its back-off ends, so the first service need not get the free GPU. The others
    # keep their order and move up.
    gpu_farm.remove(crowd, "low-000")

    def moved_up() -> str:
        phases = gpu_farm.phases(line)
        served = [name for name in expected if phases[name] == "Ready"]
        return (
            served[0] if len(served) == 1 and gpu_farm.queue(line) == [n for n in expected if n not in served] else ""
        )

    eventually(moved_up, what="one to be served, and the queue to move up", timeout_s=120)


def test_both_sides_of_a_preemption_say_so(gpu_farm: Farm, crowd: str) -> None:
    urgent = gpu_farm.namespace("urgent")
    gpu_farm.services(urgent, ["chat"], priority="critical")
    eventually(lambda: gpu_farm.phases(urgent).get("chat") == "Ready", what="chat to take a place", timeout_s=120)

    def told(namespace: str, reason: str) -> list[tuple[str, str]]:
        events = gpu_farm.client.list(kinds.EVENTS, namespace)["items"]
        found = [(e["involvedObject"], e["message"]) for e in events if e["reason"] == reason]
        return [(obj["name"], message) for obj, message in found if obj["kind"] == "InferenceService"]

    def losers() -> list[str]:
        return [
            f"{namespace}/{name}"
            for namespace in (crowd, "line")
            for name, message in told(namespace, "Preempted")
            if "by urgent/chat (priority 1000000 over " in message
        ]

    (loser,) = eventually(losers, what="an Event of the preempted service that names the other one", timeout_s=60)
    ((winner, message),) = eventually(lambda: told(urgent, "PreemptedOthers"), what="the winner to say whose it took")
    assert winner == "chat"
    assert f"reempted {loser} on node gpu-" in message
    namespace, name = loser.split("/")

    def says_so() -> bool:
        waiting = gpu_farm.statuses(namespace)[name]
        return waiting["phase"] in ("WaitingForGPU", "Creating") and "urgent/chat" in str(waiting["conditions"])

    eventually(says_so, what="a condition of the preempted service that names it, too")


def test_a_service_that_no_node_can_hold_says_so_until_one_can(gpu_farm: Farm) -> None:
    huge = gpu_farm.namespace("huge")
    gpu_farm.services(huge, ["huge"], resources={"gpu": 8}, priority="critical")

    def said() -> str:
        return str(gpu_farm.statuses(huge).get("huge"))

    eventually(lambda: f"8 of {GPU} requested for each replica" in said(), what="huge to say that it never fits")
    assert f"has {GPUS_EACH}" in said()
    assert "queuePosition" not in said()
    gpu_farm.client.create(kinds.NODES, None, fake_nodes.node("big", extended={GPU: 8}))
    eventually(lambda: gpu_farm.phases(huge)["huge"] == "Ready", what="huge to be placed", timeout_s=120)
    gpu_farm.remove(huge, "huge")


def test_a_quota_holds_for_services_that_are_made_at_once(gpu_farm: Farm) -> None:
    team = gpu_farm.namespace("team", team="red")
    body = {
        "apiVersion": kinds.GPU_QUOTAS.api_version,
        "kind": "GPUQuota",
        "metadata": {"name": "red"},
        "spec": {"selector": {"matchLabels": {"team": "red"}}, "gpuCount": 3},
    }
    gpu_farm.client.create(kinds.GPU_QUOTAS, team, body)
    eventually(
        lambda: gpu_farm.client.get(kinds.GPU_QUOTAS, team, "red").get("status"), what="the quota to be in force"
    )
    gpu_farm.services(team, names("red", 8), priority="high")

    def refused() -> list[str]:
        return [name for name, status in gpu_farm.statuses(team).items() if "QuotaExceeded" in str(status)]

    def deployments() -> list[str]:
        return sorted(item["metadata"]["name"] for item in gpu_farm.client.list(kinds.DEPLOYMENTS, team)["items"])

    eventually(lambda: len(refused()) == 5, what="five services to be refused", timeout_s=120)
    admitted = sorted(set(names("red", 8)) - set(refused()))
    eventually(lambda: deployments() == admitted, what="the others, and only they, to be made")
    gpu_farm.remove(team, admitted[0])
    eventually(lambda: len(refused()) == 4, what="the next one to be let in", timeout_s=120)
    assert len(deployments()) <= 3

    def counted() -> bool:
        status = gpu_farm.client.get(kinds.GPU_QUOTAS, team, "red")["status"]
        return status["usedGPUCount"] == 3 and status["admissionDenials"] >= 5

    eventually(counted, what="the quota to say what it holds")


def _scale(gpu_farm: Farm, namespace: str, name: str, replicas: int) -> None:
    gpu_farm.client.patch(
        kinds.DEPLOYMENTS,
        namespace,
        name,
        {"spec": {"replicas": replicas}},
        subresource="scale",
        field_manager="autoscaler",
    )


@pytest.mark.parametrize("autoscaling", [None, {"minReplicas": 1, "maxReplicas": 9}])
def test_forty_changes_of_load_and_no_fight(gpu_farm: Farm, loop: LoopProcess, autoscaling: Json | None) -> None:
    namespace = gpu_farm.namespace("load" if autoscaling is None else "load-by-autoscaler")
    more = {"autoscaling": autoscaling} if autoscaling else {}
    gpu_farm.services(namespace, ["svc"], resources={}, priority="high", **more)

    def runs() -> list[Json]:
        return [line for line in loop.lines() if line.get("event") == "Ran a batch" and line["stack_name"] == namespace]

    eventually(lambda: gpu_farm.phases(namespace)["svc"] == "Ready", what="svc to be ready", timeout_s=120)
    began = len(runs())
    written = [2 + number % 3 for number in range(40)]
    seen = []
    for replicas in written:
        _scale(gpu_farm, namespace, "svc", replicas)
        time.sleep(0.25)
        seen.append(gpu_farm.client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["replicas"])
    assert seen == written

    def told() -> tuple[Any, ...]:
        status = gpu_farm.statuses(namespace)["svc"]
        return tuple(status.get(each) for each in ("phase", "desiredReplicas", "replicas", "readyReplicas"))

    eventually(lambda: told() == ("Ready", written[-1], written[-1], written[-1]), what="all replicas ready, and told")
    # One run gives up the field, and another may follow if a change came at the same time. An autoscaler causes no run.
    assert len(runs()) - began <= (0 if autoscaling else 2)
    if autoscaling is None:
        edit(gpu_farm.client, namespace, replicas=5)
        eventually(
            lambda: gpu_farm.client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["replicas"] == 5,
            what="the service's own word to count again",
        )
