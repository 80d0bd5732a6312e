"""The services that are enqueued when hosts change, and the messages about replicas on hosts."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from automation.cache import trim_hosts
from automation.hosts.hosted import hosted_facts, without_agent
from automation.hosts.parse import capacity_of, placement_request
from automation.hosts.placement import LABEL_ACCELERATOR, HostCapacity, Taint
from automation.hosts.registry import HostRegistry
from components import naming
from program.desired.engines import Generic
from program.desired.keys import ServiceKey
from program.desired.model import GgufFacts
from program.desired.service import HostPlacement, PodSettings, Sleep
from tests.support.builders import http_model, service

GIB = 1 << 30
NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
KEY = ServiceKey("llmkube", "ns", "svc")
HEADER = GgufFacts(architecture="llama", layer_count=2, embedding_size=64, head_count=4, weights_bytes=GIB)


def host(name: str = "mac", *, labels: Any = None, status: Any = None, **spec: Any) -> dict[str, Any]:
    return trim_hosts.host(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": spec,
            "status": {"allocatable": {"memory": 4 * GIB}, "runtimes": {"llama-server": "b1"}, **(status or {})},
        }
    )


def lease(name: str = "mac", *, renewed: str = "1", holder: str = "agent", fenced: str = "") -> dict[str, Any]:
    return {"host": name, "renewed": renewed, "holder": holder, "duration_s": 40, "fenced": fenced}


class Watched:
    """A registry, and the services that it has enqueued since the last call of `told`."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._timers: list[Any] = []
        self.registry = HostRegistry(
            enqueue=lambda key: self._told.append(key.name),
            enqueue_after=lambda key, _: self._told.append(f"{key.name} later"),
            move_after_s=60.0,
            later=lambda _, call: self._timers.append(call),
        )

    def told(self) -> list[str]:
        told, self._told[:] = list(self._told), []
        return told

    def settle(self) -> list[str]:
        timers, self._timers[:] = list(self._timers), []
        for call in timers:
            call()
        return self.told()

    def place(self, name: str = "svc", **fields: Any) -> Any:
        key = ServiceKey("llmkube", "ns", name)
        values = {"host_placement": HostPlacement(), "model": http_model(gguf=HEADER), **fields}
        return self.registry.place(service(key=key, **values))


def test_a_host_that_appears_is_for_those_who_wait_and_a_heartbeat_is_for_nobody() -> None:
    watched = Watched()
    _, decision = watched.place()
    assert decision.refusals.hosts == 0
    watched.registry.lease_changed(None, lease())
    assert "svc" in watched.told()
    desired, _ = watched.place()
    assert desired.host_placement.hosts == ("mac",)
    watched.registry.lease_changed(lease(), lease(renewed="2"))
    watched.registry.host_changed(None, host())
    before = host(status={"lastHeartbeat": "1"})
    watched.registry.host_changed(before, host(status={"lastHeartbeat": "2"}))
    watched.told()
    watched.registry.host_changed(before, host(status={"lastHeartbeat": "3", "processes": [{"name": "x"}]}))
    assert watched.settle() == []


def test_a_drain_a_taint_and_a_loss_wake_those_who_are_placed_there() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.registry.host_changed(None, host())
    watched.place()
    watched.told()
    watched.registry.host_changed(host(), host(drain=True))
    assert watched.told() == ["svc"]
    watched.registry.host_changed(host(), host(taints=[{"key": "a", "effect": "NoExecute"}]))
    assert watched.told() == ["svc"]
    watched.registry.host_changed(host(taints=[{"key": "a", "effect": "NoExecute"}]), host())
    assert watched.told() == ["svc"]
    watched.registry.lease_changed(lease(), lease(fenced="lost"))
    assert watched.told() == ["svc"]
    _, decision = watched.place()
    assert 59 < decision.retry_after_s < 61
    watched.registry.lease_changed(lease(fenced="lost"), lease(renewed="9"))
    assert watched.told() == ["svc"]
    watched.registry.lease_changed(lease(renewed="9"), None)
    watched.registry.host_changed(host(), None)
    assert watched.registry.capacity("mac") is None


def test_who_waits_is_told_of_another_reason_once_hosts_have_settled() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.registry.host_changed(None, host(unschedulable=True))
    _, decision = watched.place()
    assert str(decision.refusals) == "0/1 hosts fit: 1 is unschedulable"
    watched.settle()
    watched.registry.host_changed(host(unschedulable=True), host(drain=True))
    assert watched.told() == []
    assert watched.settle() == ["svc later"]


def test_a_host_is_as_the_last_change_says_when_its_lease_and_its_object_change_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    registry, alive = watched.registry, watched.registry.liveness.alive
    registry.lease_changed(None, lease())
    registry.host_changed(None, host())
    other = threading.Thread(target=registry.lease_changed, args=(lease(), None))

    def changes_meanwhile(name: str) -> bool:
        """Return what the caller has read before the informer of Leases sees the deletion, or waits for the caller."""
        monkeypatch.setattr(registry.liveness, "alive", alive)
        was = alive(name)
        other.start()
        other.join(0.5)
        return was

    monkeypatch.setattr(registry.liveness, "alive", changes_meanwhile)
    registry.host_changed(host(), None)
    other.join()
    assert registry.capacity("mac") is None
    assert registry.allocations.hosts() == ()


def test_who_waits_is_told_what_it_lacks_once_other_services_take_or_release_memory() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.registry.host_changed(None, host(status={"allocatable": {"memory": GIB}}))
    _, decision = watched.place()
    assert decision.refusals is not None
    watched.settle()
    small = http_model(gguf=GgufFacts(architecture="llama", weights_bytes=GIB // 4))
    watched.place("other", model=small)
    assert watched.settle() == ["svc later"]
    _, again = watched.place()
    assert str(again.refusals) != str(decision.refusals)
    assert watched.settle() == []
    watched.registry.release(ServiceKey("llmkube", "ns", "other"))
    assert watched.settle() == ["svc later"]
    _, again = watched.place()
    assert str(again.refusals) == str(decision.refusals)
    assert watched.settle() == []


def test_the_deletion_of_a_lost_hosts_lease_wakes_those_who_are_placed_there() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.registry.host_changed(None, host())
    watched.place()
    watched.registry.lease_changed(lease(), lease(fenced="lost"))
    watched.told()
    watched.registry.lease_changed(lease(fenced="lost"), None)
    assert watched.told() == ["svc"]


def test_what_a_host_process_says_keeps_and_corrects_a_reservation() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.registry.host_changed(None, host())
    spec = {"host": "mac", "replica": 1, "memoryBytes": None}
    process = trim_hosts.host_process(
        {"metadata": {"name": "svc-1-abcde"}, "spec": spec, "status": {"memoryBytes": GIB}}
    )
    watched.registry.process_changed(KEY, process, replica=process["spec"]["replica"])
    [(_, _, reserved, placed)] = watched.registry.allocations.hosts()
    assert (reserved, placed) == (GIB, 1)
    watched.registry.process_changed(KEY, None, replica=1)
    [(_, _, reserved, placed)] = watched.registry.allocations.hosts()
    assert (reserved, placed) == (0, 0)


def test_a_service_in_pods_has_no_host_and_gives_back_what_it_had() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.place()
    assert watched.registry.allocations.placed_on("mac") == (KEY,)
    _, decision = watched.place(host_placement=None)
    assert decision is None
    assert watched.registry.allocations.placed_on("mac") == ()


def test_a_host_object_is_read_whatever_is_missing_in_it() -> None:
    assert capacity_of({"metadata": {"name": "new"}}) == HostCapacity("new", awaited=True)
    budget = {"metadata": {"name": "b"}, "spec": {"memoryBudget": "2Gi"}}
    assert capacity_of(budget).memory_bytes == 2 * GIB
    assert capacity_of({**budget, "spec": {"memoryBudget": "much"}}).memory_bytes is None
    told = capacity_of(
        {
            "metadata": {"name": "box", "labels": {LABEL_ACCELERATOR: "metal"}},
            "spec": {"taints": [{"key": "k", "effect": "NoExecute"}], "runtimes": ["llamacpp"], "drain": True},
            "status": {"os": "linux", "accelerators": [{"type": "cuda"}], "capacity": {"memory": 8 * GIB}},
        }
    )
    assert told.accelerators == {"cuda", "metal"}
    assert told.taints == (Taint("k", "NoExecute"),)
    assert (told.draining, told.total_memory_bytes, told.memory_bytes) == (True, 8 * GIB, None)


def test_a_wish_counts_what_the_engine_will_take_there() -> None:
    wish = placement_request(service(host_placement=HostPlacement(), model=http_model(gguf=HEADER), replicas=2))
    assert wish.replicas == 2
    assert GIB < (wish.memory_bytes or 0) < 2 * GIB
    other = service(
        host_placement=HostPlacement(memory_check="warn", group="g", residency="onDemand"),
        engine=Generic(),
        pod=PodSettings(memory_request="3Gi"),
    )
    wish = placement_request(other)
    assert (wish.memory_bytes, wish.memory_enforced) == (3 * GIB, False)
    assert (wish.group, wish.stays_in_memory) == (("ns", "g"), False)
    assert placement_request(service(host_placement=HostPlacement(), suspended=True)).replicas == 0
    assert placement_request(service(host_placement=HostPlacement(host="box", pinned=True))).pinned == "box"


@pytest.mark.parametrize(
    ("ready", "beat", "leased", "serves"),
    [
        (1, "", True, 1),
        (0, "", True, 0),
        (1, "2026-11-21T09:59:00+00:00", False, 1),
        (1, "2026-11-21T09:00:00+00:00", False, 0),
        (1, "soon", False, 0),
        # An old agent of LLMKube, which writes no heartbeats.
        (1, "", False, 1),
        (0, "", False, 0),
    ],
)
def test_a_replica_serves_while_its_host_lives(ready: int, beat: str, leased: bool, serves: int) -> None:
    watched = Watched()
    if leased:
        watched.registry.lease_changed(None, lease())
    slices = {0: {"ready": ready, "heartbeat": beat}}
    _, count = hosted_facts(watched.registry, ("mac",), {}, slices, None, now=NOW)
    assert count == serves


def test_of_several_replicas_the_first_that_does_not_serve_is_told_of() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.registry.lease_changed(None, lease("box"))
    processes = {1: {"status": {"phase": "Downloading", "message": "1 of 2 GB"}}}
    slices = {0: {"ready": 1, "heartbeat": ""}}
    facts, count = hosted_facts(watched.registry, ("mac", "box"), processes, slices, None, now=NOW)
    assert (count, facts.host, facts.phase, facts.lost) == (1, "box", "Downloading", False)
    watched.registry.lease_changed(lease("mac"), lease("mac", fenced="yes"))
    facts, count = hosted_facts(watched.registry, ("mac", "box"), processes, slices, None, now=NOW)
    assert (count, facts.host, facts.lost) == (0, "mac", True)


def test_a_replica_that_serves_by_an_earlier_plan_is_told_of() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.registry.lease_changed(None, lease("box"))
    kept = {"ready": True, "earlier": {"phase": "Ready"}}
    failing = {"phase": "BackingOff", "reason": "NotFound", "message": "404; it goes on", **kept}
    slices = {number: {"ready": 1, "heartbeat": ""} for number in (0, 1)}

    def earlier(*reports: dict[str, Any]) -> tuple[str, bool]:
        processes = {number: {"status": each} for number, each in enumerate(reports)}
        facts, count = hosted_facts(watched.registry, ("mac", "box"), processes, slices, None, now=NOW)
        assert count == 2
        return facts.earlier, facts.earlier_fails

    downloading = {"phase": "Downloading", "message": "it goes on", **kept}
    assert earlier({"phase": "Ready", "ready": True}, {"phase": "Ready", "ready": True}) == ("", False)
    assert earlier(downloading, {"phase": "Ready", "ready": True}) == ("host `mac`: Downloading: it goes on", False)
    assert earlier(downloading, failing) == ("host `box`: BackingOff: NotFound: 404; it goes on", True)


def test_a_model_for_metal_waits_until_a_host_has_said_what_it_has() -> None:
    watched = Watched()
    model = http_model(gguf=HEADER, accelerator="metal")
    watched.registry.lease_changed(None, lease())
    _, decision = watched.place(model=model)
    assert "has not reported its devices yet" in str(decision.refusals)
    watched.registry.host_changed(None, host(status={"os": "darwin", "accelerators": [{"type": "metal"}]}))
    assert watched.place(model=model)[0].host_placement.hosts == ("mac",)


def test_what_takes_an_agent_is_named_on_a_host_over_ssh() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    watched.registry.host_changed(None, host(transport="ssh"))
    desired, _ = watched.place(sleep=Sleep(idle_timeout_s=60), host_placement=HostPlacement(memory_check="warn"))
    fields = [problem.field for problem in without_agent(watched.registry, desired)]
    assert fields == [f"metadata.annotations[herdsman.dev/{name}]" for name in ("idle-timeout", "memory-check")]
    watched.registry.host_changed(host(transport="ssh"), host())
    assert without_agent(watched.registry, desired) == ()


def test_a_cluster_without_host_objects_says_so() -> None:
    watched = Watched()
    watched.registry.lease_changed(None, lease())
    desired, decision = watched.place(pod=PodSettings(node_selector={"zone": "a"}))
    facts, _ = hosted_facts(watched.registry, desired.host_placement.hosts, {}, {}, decision, now=NOW)
    assert facts.refusal == "0/1 hosts fit: 1 lacks the labels"
    watched.registry.hosts_served = lambda: False
    facts, _ = hosted_facts(watched.registry, desired.host_placement.hosts, {}, {}, decision, now=NOW)
    assert "herdsman crds" in facts.refusal


def test_names_of_replicas_are_told_apart() -> None:
    assert naming.host_process_name("a") == naming.endpoint_slice_name("a") == "a"
    assert naming.host_process_name("a", 1).startswith("a-1-")
    assert naming.host_process_name("a-1", 1) != naming.host_process_name("a", 11)
    assert naming.endpoint_slice_name("7b.chat", 2).startswith("s-7b-chat-2-")
    assert naming.host_process_part(0) == "process"
    assert naming.host_process_part(3) == "process-3"
