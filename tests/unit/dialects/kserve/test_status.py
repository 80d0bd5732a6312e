"""The status of LLMInferenceServices equals the recorded one, except where the peer is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.desired.facts import ConditionFact, HostedFacts, PodFacts, Problem, ServiceFacts
from program.desired.replicas import with_replicas
from program.dialects.kserve.parse.accounts import BINDING
from program.dialects.kserve.parse.service import parse_service
from program.dialects.kserve.status.service import FIELDS, service_status
from tests.conformance.environment import FileLookup, objects
from tests.conformance.families import as_text, compare_status, status_corrections_of
from tests.conformance.vectors import Vector, all_vectors
from tests.unit.dialects.kserve.replaying import facts_of, made_for, said_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VECTORS = {vector.number: vector for vector in all_vectors("kserve")}


def _statuses(vector: Vector, number: int) -> dict[str, Json]:
    """Make the status of each service of a case after a step. All objects are ready from `simulate-ready` on."""
    ready = any(step["action"] == "simulate-ready" for step in vector.steps[:number])
    stage = vector.stages()[number]
    services = [cr for cr in stage.inputs if cr["kind"] == "LLMInferenceService"]
    world = [said_of(thing, ready=ready) for thing in stage.inputs if thing not in services]
    with_status = [
        {**cr, "status": stage.statuses.get(f"LLMInferenceService/{cr['metadata']['name']}", {})} for cr in services
    ]
    look = FileLookup([*objects(vector), *world, *with_status], vector.namespace)
    made: list[Json] = []
    desired: dict[str, Any] = {}
    for cr in services:
        name = cr["metadata"]["name"]
        placed = {**cr, "metadata": {**cr["metadata"], "namespace": vector.namespace}}
        try:
            parsed = parse_service(placed, look)
        except DesiredError as error:
            problem = Problem(reason=error.reason, message=error.why, field=error.field, terminal=True)
            desired[name] = placed, None, facts_of(None, ready=False, problem=problem)
            continue
        made += made_for(parsed.desired, ready=ready)
        desired[name] = placed, parsed.desired, facts_of(parsed.desired, ready=ready, unsupported=parsed.unsupported)
    look = FileLookup([*objects(vector), *world, *with_status, *made], vector.namespace)
    return {
        f"LLMInferenceService/{name}": service_status(cr, wanted, facts, look, now=NOW)
        for name, (cr, wanted, facts) in desired.items()
    }


STAGES = [
    (number, stage)
    for number, vector in sorted(VECTORS.items())
    if vector.objects or vector.status
    for stage in range(len(vector.stages()))
]


def _ready(service: str, *kinds: str, already: tuple[str, ...] = (), **replicas: int) -> Json:
    """Return the values of a status in which these conditions are True, and the ready replicas of its workloads.

    Conditions in `already` are True in the recording too, which has no reason for them.
    """
    root = f"LLMInferenceService/{service}/status"
    told: Json = {}
    for kind in (*kinds, *already):
        told[f"{root}/conditions/{kind}/status"] = "True"
    for kind in kinds:
        told[f"{root}/conditions/{kind}/reason"] = "Serving" if kind == "Ready" else kind
    return {**told, **{f"{root}/workloads/{part}/readyReplicas": count for part, count in replicas.items()}}


_ROUTED = ("HTTPRoutesReady", "Ready", "RouterReady")
_RUNS = ("MainWorkloadReady", "Ready", "WorkloadsReady")
_PICKS = ("RouterReady", "SchedulerWorkloadReady")
PLAYED = {
    "015-2": _ready("lab", *_RUNS),
    "034-2": {**_ready("canary", *_ROUTED), **_ready("stable", *_ROUTED)},
    "034-4": _ready("stable", *_ROUTED),
    "130-4": _ready("seq", already=_RUNS, primary=0),
    "132-2": _ready("pdr", *_RUNS, already=_PICKS, primary=1),
    "132-4": _ready("pdr", already=(*_RUNS, *_PICKS, "PrefillWorkloadReady"), primary=1, prefill=1),
    "134-3": _ready("stp", *_ROUTED, *_RUNS, "InferencePoolReady", "SchedulerWorkloadReady", primary=1, scheduler=1),
}
"""By case and stage: values that differ from the recorded and corrected status. In this test, objects that a step
changes or makes are ready at once. The corrected status is that of a cluster in which they are not ready yet.
"""


@pytest.mark.parametrize("case", [f"{number}-{stage}" for number, stage in STAGES])
def test_statuses_are_as_recorded(case: str) -> None:
    number, _, stage = case.partition("-")
    vector = VECTORS[number]
    recorded = vector.stages()[int(stage)]
    actual = _statuses(vector, int(stage))
    expected = {name: status for name, status in recorded.statuses.items() if name.startswith("LLMInferenceService/")}
    assert expected, "nothing is compared"
    right, played = status_corrections_of(vector, recorded.prefix), PLAYED.get(case, {})
    different = compare_status("kserve", vector, expected, actual, right, recorded.prefix, played=played)
    assert not different, as_text(different)


# --- cases that the recording does not have ---------------------------------------------------------------------------

ROUTED = {"router": {"route": {}, "gateway": {}, "scheduler": {}}}


def _service(spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": "a", "namespace": "ns", "generation": 1, **metadata},
        "spec": {"model": {"uri": "hf://acme/tiny"}, **(spec or {})},
    }


def _look(*things: Json) -> FileLookup:
    return FileLookup([*objects(VECTORS["001"]), *things], "ns")


def _status(cr: Json, *, ready: bool = True, workloads: Json | None = None, **facts: Any) -> Json:
    """Make the status of a service; `workloads` are changes of the facts of its first workload."""
    desired = parse_service(cr, _look()).desired
    found = facts_of(desired, ready=ready, **facts)
    if workloads is not None:
        first = found.workloads[0].model_copy(update=workloads)
        counts = {"replicas": first.replicas, "ready_replicas": first.ready_replicas}
        found = found.model_copy(
            update={"workloads": (first, *found.workloads[1:]), "desired_replicas": first.wanted_replicas, **counts}
        )
    return service_status(cr, desired, found, _look(*made_for(desired, ready=ready)), now=NOW)


def _conditions(status: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c.get("reason", "")) for c in status["conditions"]}


def _message(status: Json, kind: str) -> str:
    return next(str(c["message"]) for c in status["conditions"] if c["type"] == kind)


NOT_AVAILABLE = {
    "ready_replicas": 0,
    "available": ConditionFact(status="False", reason="MinimumReplicasUnavailable"),
}
PULLS = PodFacts(
    name="a-1", component="llminferenceservice-workload", waiting_reason="ImagePullBackOff", container="main", image="i"
)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (PULLS, "ImagePullFailed"),
        (
            PULLS.model_copy(update={"waiting_reason": "CrashLoopBackOff", "restarts": 3, "exit_code": 1}),
            "CrashLooping",
        ),
        (
            PULLS.model_copy(
                update={"waiting_reason": "CrashLoopBackOff", "container": "storage-initializer", "init": True}
            ),
            "ModelTransferFailed",
        ),
        (PULLS.model_copy(update={"waiting_reason": "OOMKilled", "oom_killed": True}), "OutOfMemory"),
    ],
)
def test_why_pods_fail_reaches_the_conditions(pod: PodFacts, reason: str) -> None:
    status = _status(_service(), workloads=NOT_AVAILABLE, pods=(pod,))
    found = _conditions(status)
    assert found["MainWorkloadReady"] == found["WorkloadsReady"] == found["Ready"] == ("False", reason)
    assert pod.container in _message(status, "Ready")
    assert found["Reconciling"][0] == "True"


def test_pods_of_one_part_are_no_reason_of_another() -> None:
    picker = PULLS.model_copy(update={"component": "llminferenceservice-router-scheduler"})
    cr = _service(ROUTED)
    desired = parse_service(cr, _look()).desired
    facts = facts_of(desired, ready=True, pods=(picker,))
    main, scheduler = facts.workloads
    facts = facts.model_copy(update={"workloads": (main, scheduler.model_copy(update=NOT_AVAILABLE))})
    status = service_status(cr, desired, facts, _look(*made_for(desired, ready=True)), now=NOW)
    found = _conditions(status)
    assert found["MainWorkloadReady"][0] == "True"
    assert found["SchedulerWorkloadReady"] == found["RouterReady"] == found["Ready"] == ("False", "ImagePullFailed")
    assert found["Reconciling"] == ("True", "ImagePullFailed")


@pytest.mark.parametrize(
    "rollout",
    [
        {"seen": False},
        {"wanted_replicas": 3},
        {"replicas": 2, "updated_replicas": 1},
        {"replicas": 1, "updated_replicas": 0},
    ],
)
def test_a_rollout_is_not_ready(rollout: Json) -> None:
    found = _conditions(_status(_service(), workloads=rollout))
    assert found["Ready"] == found["MainWorkloadReady"] == ("False", "Progressing")


def test_a_rollout_that_makes_no_progress_says_so() -> None:
    failed = ConditionFact(status="False", reason="ProgressDeadlineExceeded", message="too slow")
    status = _status(_service(), workloads={"replicas": 2, "updated_replicas": 1, "progressing": failed})
    assert _conditions(status)["Ready"] == ("False", "ProgressDeadlineExceeded")


def test_an_autoscaler_that_asks_for_more_takes_nothing_away() -> None:
    scaling = {"scaling": {"maxReplicas": 4, "wva": {"hpa": {}}}}
    more = {"wanted_replicas": 3, "replicas": 3, "updated_replicas": 3, "ready_replicas": 1}
    for seen in (True, False):
        found = _conditions(_status(_service(scaling), workloads={**more, "seen": seen}))
        assert (found["Ready"][0], found["ScalingReady"][0], found["Reconciling"][0]) == ("True", "True", "False")


def test_an_autoscaled_service_is_not_ready_before_its_controller_has_seen_a_change() -> None:
    scaling = {"scaling": {"maxReplicas": 4, "wva": {"hpa": {}}}}
    before = {"wanted_replicas": 2, "replicas": 2, "updated_replicas": 2, "ready_replicas": 2, "seen": False}
    found = _conditions(_status(_service(scaling), workloads={**before, "behind": True}))
    assert found["Ready"] == found["MainWorkloadReady"] == ("False", "Progressing")
    found = _conditions(_status(_service(scaling), workloads={**before, "wanted_replicas": 3, "behind": True}))
    assert found["Ready"][0] == "True"


def test_zero_replicas_are_ready_when_zero_are_wanted() -> None:
    found = _conditions(_status(_service({"replicas": 0})))
    assert (found["Ready"][0], found["Reconciling"][0], found["Stalled"][0]) == ("True", "False", "False")


@pytest.mark.parametrize(("sleep", "reason"), [("asleep", "Asleep"), ("waking", "Waking")])
def test_a_service_that_sleeps_or_wakes_is_ready(sleep: Any, reason: str) -> None:
    cr = _service()
    desired = with_replicas(parse_service(cr, _look()).desired, 0 if sleep == "asleep" else 1)
    facts = facts_of(desired, ready=False).model_copy(update={"sleep": sleep, "applying": False})
    found = _conditions(service_status(cr, desired, facts, _look(*made_for(desired, ready=False)), now=NOW))
    assert found["Ready"] == ("True", reason)
    assert (found["Reconciling"][0], found["Stalled"][0]) == ("False", "False")


def test_a_stopped_service_has_no_url() -> None:
    annotations = {"serving.kserve.io/stop": "true"}
    before = {"url": "http://203.0.113.10/ns/a", "addresses": [{"url": "http://203.0.113.10/ns/a"}]}
    status = _status({**_service(ROUTED, annotations=annotations), "status": before})
    assert not {"url", "addresses", "workloads", "router"} & set(status)
    found = _conditions(status)
    assert found["Ready"] == found["RouterReady"] == ("False", "Stopped")
    assert (found["Reconciling"][0], found["Stalled"][0]) == ("False", "False")


def test_what_says_the_same_is_the_same_dict_and_times_stay() -> None:
    first = _status(_service(ROUTED), ready=False)
    assert _status({**_service(ROUTED), "status": first}, ready=False) is first
    cr = {**_service(ROUTED), "status": first}
    desired = parse_service(cr, _look()).desired
    facts = facts_of(desired, ready=True)
    later = service_status(cr, desired, facts, _look(*made_for(desired, ready=True)), now=NOW + timedelta(minutes=1))
    times = {c["type"]: c["lastTransitionTime"] for c in later["conditions"]}
    assert times["Ready"] == times["MainWorkloadReady"] == "2026-01-01T00:01:00Z"
    assert times["PresetsCombined"] == "2026-01-01T00:00:00Z"


def test_conditions_and_fields_are_those_that_the_peers_schema_has() -> None:
    status = _status(_service(ROUTED))
    assert set(status) <= set(FIELDS)
    keys = {key for condition in status["conditions"] for key in condition}
    assert keys == {"type", "status", "reason", "message", "severity", "lastTransitionTime"}
    assert {c["type"] for c in status["conditions"] if c.get("severity")} == {
        "HTTPRoutesReady",
        "InferencePoolReady",
        "MainWorkloadReady",
        "SchedulerWorkloadReady",
    }


def test_a_status_that_somebody_left_incomplete_does_no_harm() -> None:
    left = {
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Unheard", "status": "True"}],
        "annotations": 3,
    }
    status = _status({**_service(ROUTED), "status": left})
    assert "Unheard" not in _conditions(status)
    assert all(c["lastTransitionTime"] for c in status["conditions"])


@pytest.mark.parametrize(
    ("problem", "condition"),
    [
        (Problem(reason="SpecInvalid", field="spec.model.uri", message="no"), "MainWorkloadReady"),
        (Problem(reason="SpecInvalid", field="spec.scaling", message="no"), "ScalingReady"),
        (Problem(reason="SpecInvalid", field="spec.prefill.scaling", message="no"), "PrefillScalingReady"),
        (Problem(reason="SpecInvalid", field="spec.router.route.group", message="no"), "HTTPRoutesReady"),
        (Problem(reason="SpecInvalid", field="spec.router.scheduler.config", message="no"), "SchedulerWorkloadReady"),
        (Problem(reason="ApplyFailed", message="the API says no"), "MainWorkloadReady"),
    ],
)
def test_a_service_that_cannot_be_read_says_which_part_is_wrong(problem: Problem, condition: str) -> None:
    stalled = problem.model_copy(update={"terminal": True})
    cr = _service(ROUTED)
    facts = ServiceFacts(desired_replicas=0, problem=stalled)
    status = service_status(cr, None, facts, _look(), now=NOW)
    found = _conditions(status)
    assert found[condition][0] == found["Ready"][0] == "False"
    assert problem.message in _message(status, "Ready")
    assert (found["PresetsCombined"][0], found["Stalled"][0], found["Reconciling"][0]) == ("True", "True", "False")
    assert problem.field in _message(status, "Stalled")


def test_a_binding_of_an_unusual_name_is_noted_and_stays_noted() -> None:
    cr = _service(ROUTED)
    cr["metadata"] = {**cr["metadata"], "namespace": "a-b", "name": "c"}
    other = {**cr, "metadata": {**cr["metadata"], "namespace": "a", "name": "b-c"}}
    desired = parse_service(cr, _look(other)).desired
    assert desired.workloads is not None
    [apart] = [access.cluster_binding for access in desired.workloads.access if access.cluster_binding]
    assert apart != "a-b-c-epp-auth-rb"
    noted = service_status(cr, desired, facts_of(desired, ready=True), _look(other), now=NOW)
    assert noted["annotations"][BINDING] == apart
    alone = parse_service({**cr, "status": noted}, _look()).desired
    again = service_status({**cr, "status": noted}, alone, facts_of(alone, ready=True), _look(), now=NOW)
    assert again["annotations"] == noted["annotations"]


def test_a_missing_config_says_so_and_nothing_more_is_known() -> None:
    cr = _service({"baseRefs": [{"name": "absent"}]})
    with pytest.raises(DesiredError) as error:
        parse_service(cr, _look())
    problem = Problem(reason=error.value.reason, field=error.value.field, message=error.value.why, terminal=True)
    status = service_status(cr, None, ServiceFacts(desired_replicas=0, problem=problem), _look(), now=NOW)
    found = _conditions(status)
    assert found["PresetsCombined"] == found["Ready"] == ("False", "ConfigNotFound")
    assert found["WorkloadsReady"][0] == found["RouterReady"][0] == "Unknown"
    assert "annotations" not in status, "what was never combined keeps no preset"
    kept = {"serving.kserve.io/config-llm-template": "v1-config-llm-template"}
    cr = {**cr, "status": {"annotations": kept}}
    again = service_status(cr, None, ServiceFacts(desired_replicas=0, problem=problem), _look(), now=NOW)
    assert again["annotations"] == kept


def test_a_service_on_a_host_has_the_address_of_its_service() -> None:
    cr = _service({"model": {"uri": "hf://acme/tiny/q.gguf"}}, annotations={"herdsman.dev/host": "mac"})
    desired = parse_service(cr, _look()).desired
    facts = ServiceFacts(
        desired_replicas=1, replicas=1, ready_replicas=1, objects_exist=True, hosted=HostedFacts(host="mac")
    )
    status = service_status(cr, desired, facts, _look(), now=NOW)
    assert status["addresses"] == [{"url": "http://a-kserve-workload-svc.ns.svc.cluster.local:8000"}]
    assert _conditions(status)["Ready"][0] == "True"
    assert status["workloads"]["primary"]["readyReplicas"] == 1


def test_a_group_whose_members_serve_other_models_is_degraded() -> None:
    route = {"router": {"route": {"group": "g", "weight": 1}, "gateway": {}}}
    other = _service({**route, "model": {"uri": "hf://acme/tiny", "name": "other"}})
    other["metadata"] = {**other["metadata"], "name": "b"}
    cr = _service(route)
    desired = parse_service(cr, _look(other)).desired
    facts = facts_of(desired, ready=True)
    status = service_status(cr, desired, facts, _look(other, *made_for(desired, ready=True)), now=NOW)
    found = _conditions(status)
    assert (found["GroupReady"][0], found["GroupDegraded"]) == ("True", ("True", "MemberDivergence"))
    assert found["Ready"][0] == "True"
