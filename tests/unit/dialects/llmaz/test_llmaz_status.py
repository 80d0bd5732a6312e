"""The status of Playgrounds and Services: the peer's conditions and fields, and Herdsman's conditions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.facts import (
    AutoscalerFacts,
    PendingChange,
    PodFacts,
    Problem,
    RolloutFacts,
    ServiceFacts,
    WorkloadFacts,
)
from program.desired.service import DesiredService
from program.dialects.llmaz.dialect import PLAYGROUNDS, SERVICES
from tests.unit.dialects.llmaz.objects import Cluster, open_model, playground, service

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
READY = ServiceFacts(desired_replicas=2, replicas=2, ready_replicas=2, objects_exist=True)
STARTING = ServiceFacts(desired_replicas=2, replicas=2, objects_exist=True)
ONE_LOST = ServiceFacts(desired_replicas=2, replicas=2, ready_replicas=1, objects_exist=True)
NONE_WANTED = ServiceFacts(desired_replicas=0, objects_exist=True)
CLUSTER = Cluster(open_model())


def wanted() -> DesiredService:
    return PLAYGROUNDS.parse(playground(replicas=2), CLUSTER).desired


def status(
    facts: ServiceFacts, previous: Json | None = None, desired: DesiredService | None = None, now: datetime = NOW
) -> Json:
    cr = {**playground(replicas=2), "status": previous or {}}
    if desired is None and (facts.problem is None or not facts.problem.field):
        desired = wanted()
    return PLAYGROUNDS.status(cr, desired, facts, CLUSTER, now=now)


def told(said: Json, *kinds: str) -> list[tuple[str, str]]:
    found = {condition["type"]: condition for condition in said["conditions"]}
    return [(found[kind]["status"], found[kind]["reason"]) if kind in found else ("", "") for kind in kinds]


def message(said: Json, kind: str) -> str:
    return next(str(condition["message"]) for condition in said["conditions"] if condition["type"] == kind)


@pytest.mark.parametrize(
    ("before", "facts", "available", "progressing"),
    [
        (None, STARTING, ("", ""), ("True", "Pending")),
        (None, ServiceFacts(desired_replicas=2, applying=True), ("", ""), ("True", "Pending")),
        (None, READY, ("True", "PlaygroundReady"), ("False", "PlaygroundReady")),
        (READY, ONE_LOST, ("False", "PlaygroundNotReady"), ("True", "PlaygroundInProgress")),
        (ONE_LOST, READY, ("True", "PlaygroundReady"), ("False", "PlaygroundReady")),
        (READY, NONE_WANTED, ("False", "PlaygroundStopped"), ("False", "PlaygroundStopped")),
        (None, NONE_WANTED, ("False", "PlaygroundStopped"), ("False", "PlaygroundStopped")),
        # It accepts requests at the gateway.
        (
            READY,
            NONE_WANTED.model_copy(update={"sleep": "asleep"}),
            ("True", "PlaygroundReady"),
            ("False", "PlaygroundReady"),
        ),
        # All replicas serve, and a change is still being applied.
        (
            READY,
            READY.model_copy(update={"applying": True}),
            ("True", "PlaygroundReady"),
            ("True", "PlaygroundInProgress"),
        ),
    ],
)
def test_a_playground_says_what_the_peer_says(
    before: ServiceFacts | None, facts: ServiceFacts, available: tuple[str, str], progressing: tuple[str, str]
) -> None:
    previous = status(before) if before is not None else None
    assert told(status(facts, previous), "Available", "Progressing") == [available, progressing]


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (
            Problem(reason="ModelNotFound", message="there is no OpenModel `m` yet", field="spec.modelClaim.modelName"),
            "Waiting for model creation: spec.modelClaim.modelName: there is no OpenModel `m` yet",
        ),
        (
            Problem(reason="ForeignObject", message="taken", field="metadata.name"),
            "Playground owns the same name with an existing Service",
        ),
        (
            Problem(
                reason="DependencyMissing", message="no BackendRuntime", field="spec.backendRuntimeConfig.backendName"
            ),
            "spec.backendRuntimeConfig.backendName: no BackendRuntime",
        ),
        (
            Problem(reason="SpecInvalid", message="makes no sense", field="spec.modelClaims", terminal=True),
            "spec.modelClaims: makes no sense",
        ),
    ],
)
def test_what_stops_a_playground_is_said(problem: Problem, words: str) -> None:
    said = status(ServiceFacts(desired_replicas=0, problem=problem))
    assert told(said, "Progressing", "Available") == [("False", "AbortProcessing"), ("", "")]
    assert message(said, "Progressing") == words
    ready, reconciling, stalled = told(said, "Ready", "Reconciling", "Stalled")
    assert ready == ("False", problem.reason)
    assert (reconciling[0], stalled[0]) == (("False", "True") if problem.terminal else ("True", "False"))
    # The service continues without an edit when the cause is gone.
    assert told(status(STARTING, said), "Progressing", "Stalled") == [
        ("True", "Pending"),
        ("False", "ReplicasStarting"),
    ]


def test_what_serves_goes_on_serving_while_its_model_is_away() -> None:
    problem = Problem(reason="ModelNotFound", message="gone", field="spec.modelClaim.modelName")
    said = status(READY.model_copy(update={"problem": problem}), status(READY))
    assert told(said, "Available", "Progressing") == [("True", "PlaygroundReady"), ("False", "AbortProcessing")]
    assert said["replicas"] == 2
    assert said["selector"] == "herdsman.dev/playground=chat"


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        (
            PodFacts(name="p", container="model-runner", waiting_reason="ImagePullBackOff", image="x/y:1"),
            "ImagePullFailed",
            "x/y:1 cannot be pulled",
        ),
        (
            PodFacts(name="p", container="model-runner", waiting_reason="CrashLoopBackOff", restarts=4, exit_code=1),
            "CrashLooping",
            "exits",
        ),
        (
            PodFacts(
                name="p",
                container="model-loader",
                init=True,
                waiting_reason="CrashLoopBackOff",
                waiting_message="ValueError: unknown source type",
            ),
            "ModelTransferFailed",
            "cannot fetch the model: ValueError: unknown source type",
        ),
        (PodFacts(name="p", container="model-loader-1", init=True), "ModelDownloading", "pod p fetches the model"),
        (
            PodFacts(name="p", unschedulable="0/3 nodes are available: 3 node(s) didn't match Pod's node affinity."),
            "Unschedulable",
            "didn't match Pod's node affinity",
        ),
    ],
)
def test_causes_of_pods_reach_the_conditions(pod: PodFacts, reason: str, words: str) -> None:
    said = status(STARTING.model_copy(update={"pods": (pod,)}))
    assert told(said, "Ready", "Reconciling") == [("False", reason), ("True", reason)]
    assert words in message(said, "Ready")
    assert told(said, "Progressing") == [("True", "Pending")]


def test_the_same_facts_write_nothing_and_times_change_with_the_truth_only() -> None:
    first = status(READY)
    assert status(READY, first, now=LATER) is first
    second = status(ONE_LOST, first, now=LATER)
    times = {condition["type"]: condition["lastTransitionTime"] for condition in second["conditions"]}
    assert times["Available"] == times["Ready"] == "2026-01-01T00:05:00Z"
    assert times["Stalled"] == times["SpecHonoured"] == "2026-01-01T00:00:00Z"


def test_conditions_of_others_count_for_nothing_and_a_changed_message_is_written() -> None:
    first = status(READY)
    theirs = {**first, "conditions": [*first["conditions"], {"type": "Theirs", "status": "True"}]}
    assert status(READY, theirs) is theirs
    assert status(READY.model_copy(update={"replicas": 3, "ready_replicas": 2}), first) is not first


def test_nothing_but_the_peers_fields_is_written() -> None:
    pending = PendingChange(digest="abc", summary="1 object changes", changes=("updates Deployment chat",))
    said = status(
        READY.model_copy(
            update={
                "pending": pending,
                "drift": (Problem(reason="FieldsChanged", message="a user changed it"),),
                "advice": (Problem(reason="PolicyAdvice", message="better not"),),
                "autoscaler": AutoscalerFacts(problem="no metrics"),
                "rollout": RolloutFacts(kept=Problem(reason="Adopted", message="as it came")),
                "unsupported": (Problem(reason="NotHonoured", message="has no effect", field="spec.elasticConfig"),),
            }
        )
    )
    assert set(said) == {"conditions", "replicas", "selector"}
    kinds = ("ChangePending", "Drifted", "PolicyCompliant", "AutoscalerReady", "TemplateKept", "SpecHonoured")
    assert told(said, *kinds) == [
        ("True", "AwaitingApproval"),
        ("True", "FieldsChanged"),
        ("False", "PolicyAdvice"),
        ("False", "ScalingFailed"),
        ("True", "Adopted"),
        ("False", "NotHonoured"),
    ]
    assert "herdsman approve llmaz/chat -n default --digest abc" in message(said, "ChangePending")
    assert told(status(READY, said), *kinds) == [("", "")] * 5 + [("True", "AllFieldsHonoured")]


def test_the_selector_is_that_of_the_pods() -> None:
    group = playground({"herdsman.dev/workload": "LeaderWorkerSet"})
    desired = PLAYGROUNDS.parse(group, CLUSTER).desired
    known = "leaderworkerset.sigs.k8s.io/name=chat,leaderworkerset.sigs.k8s.io/worker-index=0"
    assert status(STARTING, desired=desired)["selector"] == known
    facts = WorkloadFacts(part="main", kind="LeaderWorkerSet", name="chat", selector="as=its,controller=says")
    assert status(STARTING.model_copy(update={"workloads": (facts,)}), desired=desired)["selector"] == facts.selector


def test_a_service_on_hosts_has_no_selector() -> None:
    cr = playground({"herdsman.dev/host": "mac"})
    desired = PLAYGROUNDS.parse(
        cr, Cluster(open_model(modelHub={"modelID": "a/tiny-GGUF", "filename": "t.gguf"}))
    ).desired
    assert "selector" not in status(STARTING, desired=desired)


@pytest.mark.parametrize(
    ("before", "facts", "available", "progressing"),
    [
        (None, STARTING, ("", ""), ("True", "ServiceInProgress")),
        (None, READY, ("True", "ServiceReady"), ("False", "ServiceReady")),
        (READY, ONE_LOST, ("False", "ServiceNotReady"), ("True", "ServiceInProgress")),
    ],
)
def test_a_service_says_what_the_peer_says(
    before: ServiceFacts | None, facts: ServiceFacts, available: tuple[str, str], progressing: tuple[str, str]
) -> None:
    cr: dict[str, Any] = service()
    desired = SERVICES.parse(cr, CLUSTER).desired
    if before is not None:
        cr["status"] = SERVICES.status(cr, desired, before, CLUSTER, now=NOW)
    said = SERVICES.status(cr, desired, facts, CLUSTER, now=NOW)
    assert told(said, "Available", "Progressing") == [available, progressing]
    assert said["selector"] == "herdsman.dev/llmaz-service=wide"
