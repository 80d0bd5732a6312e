"""The controller of ModelPools, decision by decision. The caches are dictionaries; the test runs the timers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from automation.approval.policy_checker import Verdict
from automation.approval.resource_versions import ResourceVersions
from automation.cache import trim
from automation.cache.cluster_cache import ClusterCache
from automation.serving.turns.pools import ModelPools
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService, HostPlacement, Sleep
from tests.support import builders
from tests.support.pod_proxy import PodProxy, Say
from tests.support.pods import remembered

CREATED = "2026-01-01T00:00:00Z"


def key(name: str, namespace: str = "ns") -> ServiceKey:
    return ServiceKey("llmkube", namespace, name)


class Cluster:
    """The part of `ClusterCache` that pools read."""

    def __init__(self) -> None:
        self.pools: dict[str, Json] = {}
        self.services: dict[str, Json] = {}
        self.deployments: dict[str, Json] = {}
        self.pods_by_service: dict[str, list[Json]] = {}
        self.annotations: dict[str, str] = {}
        self.foreign: set[str] = set()
        """Names of objects that another loop manages."""
        self.on_pool_input: Callable[[str], None] = lambda _namespace: None
        self.optional = self.llmkube = self.index = self

    def informer(self, kind: Kind) -> Cluster:
        assert kind is kinds.MODEL_POOLS
        return self

    def list(self, namespace: str | None = None) -> list[Json]:
        return list(self.pools.values()) if namespace in (None, "ns") else []

    def get(self, _kind: Kind, namespace: str, name: str) -> Json | None:
        return self.services.get(name) if namespace == "ns" else None

    def objects(self, _namespace: str, name: str) -> dict[tuple[str, str], Json]:
        found = self.deployments.get(name)
        return {("Deployment", name): found} if found is not None else {}

    def pods(self, _namespace: str, name: str) -> list[Json]:
        return self.pods_by_service.get(name, [])

    def is_ours(self, cr: Json, *, held: bool = False) -> bool:
        return cr["metadata"]["name"] not in self.foreign and not held

    def namespace_annotations(self, _namespace: str) -> dict[str, str]:
        return self.annotations


class World:
    """The cluster, the clock and the timers, and what the controller did."""

    def __init__(self, api: PodProxy) -> None:
        self.cluster = Cluster()
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.requeued: list[str] = []
        self.events: list[str] = []
        self.api = api
        self.verdict: Verdict | None = None
        self.read_annotations: Callable[[str], dict[str, str]] = self.cluster.namespace_annotations
        self.versions = 10
        api.other = self._answer
        for name in ("chat", "code"):
            self.add_service(name)
        self.pools = self.loop()

    def loop(self, address: str = "10.0.0.1") -> ModelPools:
        return ModelPools(
            self.api.client,
            cast(ClusterCache, self.cluster),
            address=address,
            requeue=lambda at, _delay_s: self.requeued.append(at.name),
            record=lambda _obj, **event: self.events.append(event["reason"]),
            versions=ResourceVersions(
                policies=lambda _cr: self.verdict,
                annotations=self.cluster.namespace_annotations,
                annotations_now=lambda namespace: self.read_annotations(namespace),
            ),
            clock=lambda: self.now,
            later=lambda delay_s, call: self.timers.append((self.now + delay_s, call)),
        )

    def add_service(self, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        metadata = {"name": name, "namespace": "ns", "annotations": annotations or {}}
        self.cluster.services[name] = {"kind": "InferenceService", "metadata": metadata, "spec": spec}

    def add_pool(
        self, name: str = "gpu", *members: str, annotations: dict[str, str] | None = None, **spec: Any
    ) -> None:
        named = [{"inferenceServiceRef": {"name": each}} for each in members or ("chat", "code")]
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": CREATED}
        self.cluster.pools[name] = {
            "apiVersion": kinds.MODEL_POOLS.api_version,
            "kind": "ModelPool",
            "metadata": {**metadata, "generation": 1, "resourceVersion": "1", "annotations": annotations or {}},
            "spec": {"members": named, **spec},
            "status": self.cluster.pools.get(name, {}).get("status", {}),
        }

    def deploy(self, name: str, replicas: int, *, running: int | None = None, ready: bool = True) -> None:
        """Set the Deployment of a service, and as many pods; `running` pods may be more, or fewer."""
        count = replicas if running is None else running
        deployment = {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"replicas": replicas},
            "status": {"replicas": count},
        }
        self.cluster.deployments[name] = trim.deployment(deployment)
        self.cluster.pods_by_service[name] = [remembered(f"{name}-{n}", healthy=ready) for n in range(count)]

    def follow(self, *names: str) -> None:
        """Do what passes of these services and their Deployments would do: replicas as the grants say."""
        for name in names:
            grant = self.pools.grant(key(name))
            assert grant is not None
            self.deploy(name, 1 if grant.may_run else 0)

    def look(self) -> None:
        """Run the timers that are due, after a change."""
        self.pools.changed("ns")
        self.run_timers()

    def run_timers(self) -> None:
        for _ in range(10):
            due = [each for each in self.timers if each[0] <= self.now + 0.1]
            self.timers = [each for each in self.timers if each not in due]
            for _at, call in due:
                call()

    def may_run(self) -> list[str]:
        found = {name: self.pools.grant(key(name)) for name in self.cluster.services}
        return [name for name, grant in found.items() if grant is not None and grant.may_run]

    def status(self, name: str = "gpu") -> Json:
        found: Json = self.cluster.pools[name].get("status") or {}
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(each for each in self.status()["conditions"] if each["type"] == kind)
        return found["status"], found["reason"]

    def _answer(self, method: str, path: str, body: Any) -> Say:
        assert method == "PATCH" and path.partition("?")[0].endswith("/status")
        self.versions += 1
        live = self.cluster.pools[path.partition("?")[0].split("/")[-2]]
        live["metadata"]["resourceVersion"] = str(self.versions)
        live["status"] = body["status"]
        return Say(body=live)


@pytest.fixture
def world() -> Iterator[World]:
    with PodProxy() as api:
        yield World(api)


def started(world: World, **spec: Any) -> None:
    """Have a pool whose default member serves."""
    world.add_pool(default="chat", **spec)
    world.pools.start()
    world.run_timers()
    world.follow("chat", "code")
    world.look()
    world.requeued.clear()


def test_members_take_turns_and_never_run_together(world: World) -> None:
    started(world)
    assert world.may_run() == ["chat"]
    assert (world.status()["phase"], world.status()["residentMember"]) == ("Ready", "chat")
    world.pools.request_turn(key("code"))
    world.run_timers()
    assert world.may_run() == ["chat"] and world.condition("SwapDeferred") == ("True", "MinimumTurn")

    for _ in range(13):
        world.now += 5
        world.pools.request_turn(key("code"))
        world.run_timers()
    assert world.may_run() == [] and world.requeued == ["chat"]
    world.deploy("chat", 0, running=1)
    world.look()
    assert world.may_run() == [] and world.condition("SwapDeferred") == ("True", "PodsRemain")
    assert world.status()["pendingMember"] == "code"

    world.deploy("chat", 0)
    world.look()
    assert world.may_run() == ["code"] and world.requeued == ["chat", "code"]
    world.follow("code")
    world.pools.end_wait(key("code"))
    world.look()
    assert world.status()["residentMember"] == "code" and "pendingMember" not in world.status()
    assert world.events == ["TurnStarted", "TurnRequested", "TurnEnded", "TurnStarted"]


def test_time_alone_ends_a_turn(world: World) -> None:
    started(world, minTurn="3s")
    world.pools.request_turn(key("code"))
    world.run_timers()
    assert world.may_run() == ["chat"]
    world.now += 3.2
    world.run_timers()
    assert world.may_run() == []


def test_a_request_that_is_given_up_starts_nothing(world: World) -> None:
    started(world)
    world.now += 100
    world.pools.request_turn(key("code"))
    world.run_timers()
    world.now += 10
    world.deploy("chat", 0)
    world.look()
    assert world.may_run() == ["chat"], "the default member comes back"


def test_a_member_whose_idle_timeout_ended_frees_the_gpus(world: World) -> None:
    world.add_service("chat", annotations={"herdsman.dev/idle-timeout": "1m"})
    world.add_pool(default="chat")
    world.deploy("chat", 1)
    world.pools.start()
    assert world.may_run() == ["chat"]
    world.pools.give_up_turn(key("chat"))
    assert world.may_run() == []
    world.deploy("chat", 0)
    world.pools.request_turn(key("chat"))
    world.run_timers()
    assert world.may_run() == ["chat"]


def test_a_restarted_loop_leaves_the_turn_where_it_is(world: World) -> None:
    started(world)
    world.now += 100
    world.pools.request_turn(key("code"))
    world.run_timers()
    world.follow("chat")
    world.look()
    world.follow("code")
    world.look()
    assert world.may_run() == ["code"]
    world.pools = world.loop()
    world.pools.start()
    assert world.may_run() == ["code"]


def test_of_members_that_run_already_one_keeps_running_in_a_new_pool(world: World) -> None:
    world.deploy("chat", 1)
    world.deploy("code", 1)
    world.pools.start()
    assert world.pools.grant(key("chat")) is None
    world.add_pool()
    grants = [world.pools.grant(key(name)) for name in ("chat", "code")]
    assert [grant is not None and grant.may_run for grant in grants] == [True, False], "before any event of the pool"


def test_without_the_pool_nobody_has_a_grant(world: World) -> None:
    started(world)
    del world.cluster.pools["gpu"]
    world.look()
    assert world.pools.grant(key("chat")) is None and sorted(world.requeued) == ["chat", "code"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"annotations": {"herdsman.dev/mode": "Paused"}}, "Paused"),
        ({"annotations": {"herdsman.dev/mode": "Perhaps"}}, "SpecInvalid"),
        ({"minTurn": "99h"}, "SpecInvalid"),
    ],
)
def test_a_pool_that_is_paused_or_not_valid_leaves_members_as_they_are(
    world: World, change: dict[str, Any], reason: str
) -> None:
    started(world)
    world.add_pool(default="chat", **change)
    world.now += 1000
    world.pools.request_turn(key("code"))
    world.run_timers()
    world.look()
    assert world.may_run() == ["chat"] and world.condition("Ready") == ("False", reason)
    world.add_pool(default="chat")
    world.pools.request_turn(key("code"))
    world.run_timers()
    assert world.may_run() == []


def test_a_pool_that_a_policy_does_not_allow_leaves_members_as_they_are(world: World) -> None:
    started(world)
    world.verdict = Verdict(Problem(reason="PolicyViolated", message="policy `p`: no pools here"))
    world.now += 1000
    world.pools.request_turn(key("code"))
    world.run_timers()
    world.look()
    assert world.may_run() == ["chat"]
    assert world.condition("Ready") == ("False", "PolicyViolated")
    assert world.condition("PolicyCompliant") == ("False", "PolicyViolated")


def test_a_pool_goes_on_with_its_accepted_version_until_a_change_is_approved(world: World) -> None:
    preview = {"herdsman.dev/mode": "Preview"}
    world.add_service("other")
    started(world)
    world.add_pool("gpu", "chat", "other", default="chat", annotations=preview)
    world.look()
    pending = world.status()["pendingChange"]
    assert world.condition("ChangePending") == ("True", "AwaitingApproval")
    assert world.pools.grant(key("other")) is None, "not a member yet"
    world.now += 1000
    world.pools.request_turn(key("code"))
    world.run_timers()
    assert world.may_run() == [], "code, which is still a member, gets the turn"
    world.add_pool(
        "gpu", "chat", "other", default="chat", annotations={**preview, "herdsman.dev/approved": pending["digest"]}
    )
    world.look()
    assert world.pools.grant(key("other")) is not None and world.pools.grant(key("code")) is None
    assert world.condition("ChangePending") == ("False", "NothingPending")


def test_members_get_their_grants_while_the_mode_is_read_from_the_api_server(world: World) -> None:
    started(world)
    answered: list[bool] = []

    def read(namespace: str) -> dict[str, str]:
        passing = threading.Thread(target=world.pools.grant, args=(key("chat"),), daemon=True)
        passing.start()
        passing.join(20.0)
        answered.append(not passing.is_alive())
        return world.cluster.namespace_annotations(namespace)

    world.read_annotations = read
    world.add_pool(default="code")
    world.look()
    assert answered and all(answered)


def test_a_new_pool_in_mode_preview_changes_nothing_before_its_approval(world: World) -> None:
    world.deploy("chat", 1)
    world.deploy("code", 1)
    world.add_pool(default="chat", annotations={"herdsman.dev/mode": "Preview"})
    world.pools.start()
    world.run_timers()
    world.look()
    assert world.may_run() == ["chat", "code"]
    assert world.condition("Ready") == ("False", "AwaitingApproval")


def test_a_paused_member_is_neither_stopped_nor_started(world: World) -> None:
    started(world)
    world.add_service("chat", annotations={"herdsman.dev/mode": "Paused"})
    world.now += 1000
    world.pools.request_turn(key("code"))
    world.run_timers()
    assert world.may_run() == ["chat"] and world.condition("SwapDeferred") == ("True", "MemberFrozen")


def test_a_member_that_never_serves_does_not_take_turns_from_others_again_and_again(world: World) -> None:
    started(world)
    failing = {"type": "Ready", "status": "False", "reason": "ImagePullFailed", "message": "no such image"}
    world.cluster.services["code"]["status"] = {"conditions": [failing]}
    turns = ["chat"]
    for _ in range(450):
        world.now += 4
        for name in ("chat", "code"):
            world.pools.request_turn(key(name))
        world.run_timers()
        for name in ("chat", "code"):
            grant = world.pools.grant(key(name))
            assert grant is not None
            world.deploy(name, int(grant.may_run), ready=name == "chat")
            if grant.may_run and name == "chat":
                world.pools.end_wait(key(name))
        turns += [name for name in world.may_run() if name != turns[-1]]
    assert 3 <= turns.count("code") <= 6, "in half an hour: after 1, 1, 2, 4, 8 and 16 minutes"
    world.cluster.services["code"]["metadata"]["generation"] = 2
    world.now += 100
    world.pools.request_turn(key("code"))
    world.run_timers()
    world.follow("chat")
    world.look()
    assert world.may_run() == ["code"], "an edited spec is tried at once"


def test_a_member_with_a_spec_that_is_not_valid_takes_no_turn_from_others(world: World) -> None:
    started(world)
    world.pools.set_changeable(key("code"), False)
    world.now += 1000
    world.pools.request_turn(key("code"))
    world.run_timers()
    assert world.may_run() == ["chat"] and world.condition("SwapDeferred") == ("False", "NotDeferred")
    waiting = world.status()["members"][1]
    assert waiting["phase"] == "Waiting" and "its status" in waiting["message"]
    world.pools.set_changeable(key("code"), True)
    world.run_timers()
    assert world.may_run() == []


def test_members_that_take_no_turns_stop_nobody(world: World) -> None:
    world.add_service("scaled", autoscaling={"minReplicas": 1, "maxReplicas": 3})
    world.add_service("woken", annotations={"herdsman.dev/scale-by": "requests", "herdsman.dev/idle-timeout": "60s"})
    world.add_service("other")
    world.cluster.foreign.add("other")
    world.add_pool("gpu", "gone", "scaled", "woken", "other", "chat", default="chat")
    world.pools.start()
    world.run_timers()
    assert world.may_run() == ["chat"]
    assert [world.pools.grant(key(name)) for name in ("gone", "scaled", "woken", "other")] == [None] * 4
    assert world.status()["phase"] == "Degraded" and world.condition("Ready") == ("True", "TakingTurns")
    assert [each["phase"] for each in world.status()["members"]] == [*["Refused"] * 4, "Starting"]
    assert world.events.count("MemberRefused") == 4
    world.look()
    assert world.events.count("MemberRefused") == 4


def test_without_an_address_of_the_proxy_a_pool_stops_nobody(world: World) -> None:
    world.pools = world.loop(address="")
    world.add_pool(default="chat")
    world.pools.start()
    world.run_timers()
    assert world.pools.grant(key("code")) is None and world.condition("Ready") == ("False", "ProxyUnavailable")


def test_a_pool_of_another_loop_has_no_status_and_no_effect(world: World) -> None:
    world.cluster.foreign.add("gpu")
    world.add_pool(default="chat")
    world.pools.start()
    world.run_timers()
    assert world.pools.grant(key("code")) is None and world.status() == {}


def test_a_pool_that_goes_to_another_loop_loses_herdsmans_condition(world: World) -> None:
    started(world)
    world.cluster.foreign.add("gpu")
    world.look()
    assert world.pools.grant(key("chat")) is None
    assert "Ready" not in {each["type"] for each in world.status()["conditions"]}


def on_host(name: str, **fields: Any) -> DesiredService:
    return builders.service(key=key(name), host_placement=HostPlacement(host="desk"), **fields)


def test_members_on_hosts_get_the_pool_as_their_model_group(world: World) -> None:
    world.add_pool(default="chat", minTurn="2m", swapBudget="4m")
    world.pools.start()
    for name, residency in (("chat", "preferred"), ("code", "onDemand")):
        found = world.pools.with_group(on_host(name))
        assert found.host_placement is not None and found.sleep is not None
        assert (found.host_placement.group, found.host_placement.residency) == ("modelpool/gpu", residency)
        assert found.host_placement.min_dwell_s == 120 and found.sleep.wake_timeout_s == 240
    world.look()
    assert [each["phase"] for each in world.status()["members"]] == ["OnHost", "OnHost"]
    assert world.condition("MetalSupported") == ("True", "ModelGroup")
    own = Sleep(idle_timeout_s=60)
    assert world.pools.with_group(on_host("chat", sleep=own)).sleep == own
    assert world.pools.with_group(on_host("stranger")) == on_host("stranger")
    in_pods = builders.service(key=key("chat"))
    assert world.pools.with_group(in_pods) is in_pods

    world.requeued.clear()
    world.add_pool(default="code")
    world.look()
    assert sorted(world.requeued) == ["chat", "code"], "their plans change with the pool"
    del world.cluster.pools["gpu"]
    world.look()
    assert world.pools.with_group(on_host("chat")) == on_host("chat")


def test_a_member_with_a_model_group_of_its_own_keeps_it(world: World) -> None:
    world.add_service("chat", annotations={"herdsman.dev/model-group": "desk"})
    world.add_pool()
    world.pools.start()
    placed = HostPlacement(host="desk", group="desk", residency="onDemand")
    desired = builders.service(key=key("chat"), host_placement=placed)
    assert world.pools.with_group(desired) == desired
    world.look()
    assert world.condition("MembersValid") == ("False", "InModelGroup")
    assert naming.ANNOTATION_POOL not in str(world.status())
