"""Facts and Events of services that describe their pods themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from automation.cache.trim import autoscaler_with_conditions as with_conditions
from automation.cache.trim import owned_in_full, workload, workload_pod
from automation.hosts.registry import HostRegistry
from automation.reconcile.desire import Desired, Desirer
from automation.reconcile.facts import service_facts
from automation.reconcile.observe import Observed
from automation.reconcile.plan import ObjectName
from automation.reconcile.services import Services
from automation.status.event_log import status_events
from kubeapi.json_types import Json
from program.desired.facts import Problem, ServiceFacts
from program.desired.workloads import PodSet, Workloads
from program.dialects.registry import KINDS
from program.dialects.status.service_conditions import decide_service_phase
from tests.support.workloads import described

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def deployment(name: str, *, replicas: int = 1, generation: int = 3, **status: Any) -> Json:
    return workload(
        {
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": "ns", "uid": f"of-{name}", "generation": generation},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"b": "2", "a": "1"}}},
            "status": status,
        }
    )


def facts(*pods: PodSet, live: tuple[Json, ...] = (), problem: Problem | None = None) -> ServiceFacts:
    service = described(Workloads(pods=pods))
    sets = {ObjectName("Deployment", each["metadata"]["name"]): each for each in live}
    observed = Observed(live=(), claim_exists=True, deployment=None, pods=(), sets=sets)
    wanted = Desired(service=service if problem is None else None)
    return service_facts(
        observed,
        wanted,
        {"spec": {}},
        registry=HostRegistry(),
        applying=False,
        objects_exist=True,
        problem=problem,
        quota=None,
        now=NOW,
    )


def pods(part: str, **more: Any) -> PodSet:
    return PodSet(part=part, name=part, template={"metadata": {}, "spec": {"containers": []}}, **more)


def test_each_set_of_pods_is_told_in_its_order() -> None:
    ready = {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "ok"}
    live = (
        deployment("prefill", observedGeneration=2),
        deployment("main", replicas=2, observedGeneration=3, readyReplicas=1, conditions=[ready]),
    )
    found = facts(pods("main"), pods("prefill"), live=live)
    main, prefill = found.workloads
    assert (main.part, main.found, main.seen, main.wanted_replicas, main.ready_replicas) == ("main", True, True, 2, 1)
    assert main.available is not None and main.available.reason == "MinimumReplicasAvailable"
    assert main.selector == "a=1,b=2"
    assert (prefill.part, prefill.seen) == ("prefill", False), "its controller has not looked at generation 3"
    assert (found.desired_replicas, found.ready_replicas) == (2, 1)


@pytest.mark.parametrize(("kind", "observed", "behind"), [("Deployment", 2, True), ("Deployment", 3, False)])
def test_ready_pods_of_an_earlier_spec_are_not_the_services(kind: str, observed: int, behind: bool) -> None:
    """This concerns llmaz, whose Ready is the common condition. KServe's conditions follow each set of pods."""
    live = (deployment("main", observedGeneration=observed, readyReplicas=1),)
    found = facts(pods("main", replicas=1), live=live)
    assert (found.workloads[0].behind, found.behind) == (behind, f"{kind} main" if behind else "")
    verdict = decide_service_phase(
        {"metadata": {}, "spec": {}}, described(Workloads(pods=(pods("main", replicas=1),))), found
    )
    assert verdict.outcome == ("reconciling" if behind else "ready")


def test_the_spec_counts_before_the_object_follows_and_an_autoscalers_choice_where_the_spec_is_silent() -> None:
    assert facts(pods("main", replicas=5), live=(deployment("main", replicas=2),)).desired_replicas == 5
    assert facts(pods("main"), live=(deployment("main", replicas=4),)).desired_replicas == 4
    assert facts(pods("main", replicas=3)).workloads[0].wanted_replicas == 3


def test_what_runs_of_a_service_that_cannot_be_parsed_is_told_all_the_same() -> None:
    live = (deployment("main", replicas=2, observedGeneration=3, readyReplicas=2),)
    found = facts(live=live, problem=Problem(reason="SpecInvalid", message="no", terminal=True))
    assert (found.workloads[0].part, found.ready_replicas) == ("", 2)


def cr(*conditions: Json) -> Json:
    return {"kind": "LLMInferenceService", "metadata": {"name": "a"}, "status": {"conditions": list(conditions)}}


def condition(type_: str, status: str, reason: str = "", message: str = "") -> Json:
    return {"type": type_, "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((), (condition("Ready", "True", "Serving"),), [("Normal", "LLMInferenceServiceReady")]),
        ((condition("Ready", "True"),), (condition("Ready", "True"),), []),
        ((), (condition("Ready", "False", "ReplicasStarting"),), []),
        (
            (condition("Ready", "False", "ReplicasStarting"),),
            (condition("Ready", "False", "ImagePullFailed", "no such image"),),
            [("Warning", "LLMInferenceServiceNotReady")],
        ),
        (
            (condition("Ready", "True"),),
            (condition("Ready", "False", "ReplicasStarting"),),
            [("Warning", "LLMInferenceServiceNotReady")],
        ),
        ((), (condition("ChangePending", "True", "AwaitingApproval", "abc"),), [("Normal", "ChangePending")]),
        ((), (condition("SpecHonoured", "False", "NotHonoured", "x"),), [("Warning", "NotHonoured")]),
        (
            (condition("SpecHonoured", "False", "NotHonoured", "x"),),
            (condition("SpecHonoured", "False", "NotHonoured", "x"),),
            [],
        ),
    ],
)
def test_only_what_turned_is_told(before: tuple[Json, ...], after: tuple[Json, ...], told: list[object]) -> None:
    entries = status_events(cr(*before), cr(*after)["status"], ServiceFacts(desired_replicas=1))
    assert [(entry.type, entry.reason) for entry in entries] == told


def test_the_engine_of_a_pod_is_known_by_its_containers_name() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"app.kubernetes.io/component": "c"}},
        "spec": {"containers": [{"name": "istio-proxy"}, {"name": "main", "ports": [{"containerPort": 8000}]}]},
        "status": {"phase": "Running"},
    }
    kept = workload_pod(pod)
    assert (kept["engine"]["port"], "foreign" in kept["engine"]) == (8000, False)
    assert kept["metadata"]["labels"] == {"app.kubernetes.io/component": "c"}


def test_a_measurement_of_an_autoscaler_is_no_change() -> None:
    def measured(version: str, message: str, active: str) -> Json:
        return {
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": version},
            "spec": {"maxReplicas": 3},
            "status": {"conditions": [condition("ScalingActive", active, "ValidMetricFound", message)]},
        }

    first, second = (
        with_conditions(measured("1", "cpu at 10%", "True")),
        with_conditions(measured("2", "cpu at 12%", "True")),
    )
    assert first == second
    assert with_conditions(measured("3", "cpu at 12%", "False")) != first


def test_an_object_that_is_looked_up_keeps_its_own_fields_and_whose_it_is() -> None:
    kept = owned_in_full(
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {
                "name": "r",
                "namespace": "ns",
                "uid": "u",
                "labels": {"any": "label"},
                "managedFields": [],
                "ownerReferences": [{"kind": "LLMInferenceService", "controller": True, "uid": "of-it"}],
            },
            "spec": {"hostnames": ["a"]},
            "status": {"parents": []},
        }
    )
    assert (kept["metadata"]["owner"], kept["metadata"]["labels"]) == ("of-it", {"any": "label"})
    assert (kept["spec"], kept["status"]) == ({"hostnames": ["a"]}, {"parents": []})
    assert "managedFields" not in kept["metadata"]


@pytest.mark.parametrize(
    ("dialect", "metadata", "taken"),
    [
        ("kserve", {}, True),
        ("kserve", {"finalizers": ["serving.kserve.io/llmisvc-finalizer"]}, False),
        ("kserve", {"ownerReferences": [{"kind": "ChatApp", "name": "app", "controller": True}]}, True),
        ("llmaz-service", {"ownerReferences": [{"kind": "Playground", "name": "chat", "controller": True}]}, False),
    ],
    ids=("new", "held by the peer", "made by a platform of the user's", "made by llmaz for a Playground"),
)
def test_what_the_peer_holds_or_made_is_left_to_it(dialect: str, metadata: Json, taken: bool) -> None:
    world: Any = SimpleNamespace(is_ours=lambda _, held: not held)
    caches: Any = SimpleNamespace(name=dialect, kind=KINDS[dialect])
    sleep: Any = None
    services = Services(world, caches, Desirer(world, caches, sleep, sleep))
    assert services.is_ours({"metadata": {"name": "a", "namespace": "ns", **metadata}}) is taken
