"""The Events in a service's life: each transition once, and none for unimportant changes."""

from __future__ import annotations

from typing import Any

import pytest

from automation.status.event_log import Entry, advice, phase_events
from kubeapi.json_types import Json
from program.desired.facts import (
    AutoscalerFacts,
    HostedFacts,
    MemoryFacts,
    PodFacts,
    Problem,
    QueuePosition,
    RolloutFacts,
    ServiceFacts,
)
from program.desired.model import ModelGpu
from program.dialects.llmkube.status.service import service_status
from tests.support.statuses import LATER, NOW, facts, parsed, service, status_of

WAITS = PodFacts(
    name="svc-1", unschedulable="0/1 nodes: 1 Insufficient nvidia.com/gpu.", requests={"nvidia.com/gpu": "1"}
)
CRASHES = PodFacts(name="svc-1", node="n", container="llama-server", waiting_reason="CrashLoopBackOff", exit_code=1)


def told(*passes: ServiceFacts, **spec: Any) -> list[list[Entry]]:
    """The Events of each pass, the first included."""
    status: Json | None = None
    entries = []
    for seen in passes:
        after = status_of(seen, service(status, **spec), gpu=ModelGpu(count=1), now=LATER if status else NOW)
        entries.append(phase_events(status, after, seen))
        status = after
    return entries


def reasons(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.type, entry.reason) for entry in entries]


def test_an_ordinary_start_is_told_in_two_sentences() -> None:
    fetching = PodFacts(name="svc-1", node="n", container="model-downloader", init=True)
    first, second, third, last = told(facts(), facts(pods=(fetching,)), facts(), facts(ready=1))
    assert (first, third) == ([], [])
    assert second == [
        (
            "Normal",
            "ModelDownloading",
            "Started the download of the model: 0 of 1 replicas ready; pod svc-1 fetches the model",
        )
    ]
    assert last == [("Normal", "Ready", "Became ready: 1 of 1 replicas ready")]


def test_the_queue_is_told_on_entering_and_on_leaving_and_never_between() -> None:
    def waiting(position: int) -> ServiceFacts:
        return facts(pods=(WAITS,), queue=QueuePosition(position=position, length=5, ahead="prod/big"))

    _, joined, moved, left = told(facts(), waiting(3), waiting(2), facts())
    assert joined == [("Normal", "Queued", "Joined the queue for nvidia.com/gpu: 1 as number 3 of 5, behind prod/big")]
    assert moved == []
    assert left == [("Normal", "Dequeued", "Got nvidia.com/gpu: 1 and left the queue")]


def test_leaving_the_queue_for_another_reason_is_no_success() -> None:
    _, left = told(facts(pods=(WAITS,)), facts(never_fits="no node has a GPU"))
    assert reasons(left) == [("Normal", "Dequeued"), ("Warning", "NoNodeFits")]
    assert "Got" not in left[0].message
    _, left = told(facts(pods=(WAITS,)), facts(pods=(WAITS,), never_fits="no node has a GPU"))
    assert reasons(left) == [("Normal", "Dequeued"), ("Warning", "NoNodeFits")]


def test_preemption_is_told_once_on_both_sides() -> None:
    lost = Problem(reason="Preempted", message="was preempted on node n by prod/big (priority 10 over 1)")
    took = Problem(reason="PreemptedOthers", message="preempted dev/small on node n (priority 10 over 1)")
    victim = facts(pods=(WAITS,), preemption=(lost,), queue=QueuePosition(position=1, length=1))
    _, first, again = told(facts(ready=1), victim, victim.model_copy(update={"replicas": 2}))
    assert reasons(first) == [("Warning", "Preempted"), ("Normal", "Queued"), ("Warning", "Unavailable")]
    assert first[0].message == "Was preempted on node n by prod/big (priority 10 over 1)"
    assert again == []
    _, taker = told(facts(pods=(WAITS,)), facts(pods=(WAITS,), preemption=(took,)))
    assert reasons(taker) == [("Normal", "PreemptedOthers")]


def test_a_cause_is_told_when_it_appears_and_not_at_each_restart() -> None:
    crashing = [facts(pods=(CRASHES.model_copy(update={"restarts": count}),)) for count in (1, 2, 3)]
    _, first, second, third = told(facts(), *crashing)
    assert reasons(first) == [("Warning", "CrashLooping")]
    assert "exit code 1" in first[0].message
    assert (second, third) == ([], [])


def test_the_loss_of_all_replicas_is_an_alarm() -> None:
    lost, well = told(facts(ready=1), facts(pods=(CRASHES,)), facts(ready=1))[1:]
    assert reasons(lost) == [("Warning", "Unavailable"), ("Warning", "CrashLooping")]
    assert reasons(well) == [("Normal", "Ready")]


def test_an_eviction_on_a_host_and_its_end_are_told() -> None:
    evicted = HostedFacts(host="mac", phase="Pending", reason="Evicted", message="5 % were available")
    _, gone, back = told(facts(ready=1), facts(hosted=evicted), facts(ready=1))
    assert any(entry.type == "Warning" and "5 % were available" in entry.message for entry in gone)
    assert reasons(back) == [("Normal", "Ready")]


def test_an_endpoint_that_is_taken_out_of_a_ready_process_is_told_as_that() -> None:
    withdrawn = HostedFacts(host="mac", phase="Ready")
    _, gone = told(facts(ready=1), facts(hosted=withdrawn))
    entry = next(entry for entry in gone if entry.reason == "Unavailable")
    assert not entry.message.endswith("Ready")
    assert "Host `mac`: the process runs, but its EndpointSlice is not ready" in entry.message


def test_replicas_that_come_and_go_beside_others_are_no_news() -> None:
    two, one_of_two, three = facts(ready=2, desired=2), facts(ready=1, desired=2), facts(ready=3, desired=3)
    assert told(two, one_of_two, two, facts(ready=2, desired=3), three)[1:] == [[], [], [], []]


def test_the_end_of_trouble_is_news_also_where_others_served() -> None:
    crashing = facts(ready=1, desired=2, pods=(CRASHES,))
    assert reasons(told(facts(ready=2, desired=2), crashing, facts(ready=2, desired=2))[2]) == [("Normal", "Ready")]


def test_the_end_of_a_rollout_is_told() -> None:
    rolling = facts(ready=1, replicas=2)
    _, _, done = told(facts(ready=1, template_hash="a"), rolling, facts(ready=1, template_hash="b"))
    assert done == [("Normal", "RolledOut", "Replaced all replicas with the new pod template: 1 of 1 replicas ready")]


def test_rollouts_are_told_when_held_back_forced_released_and_rolled_back() -> None:
    held = facts(ready=1, rollout=RolloutFacts(deferred=Problem(reason="PodsBusy", message="1 replica is busy")))
    forced = facts(ready=1, rollout=RolloutFacts(timed_out=True))
    back = facts(ready=1, rollout=RolloutFacts(rolled_back=Problem(reason="CrashLooping", message="pods crash")))
    assert reasons(told(facts(ready=1), held)[1]) == [("Normal", "RolloutDeferred")]
    assert reasons(told(held, facts(ready=1))[1]) == [("Normal", "RolloutReleased")]
    assert reasons(told(held, forced)[1])[0] == ("Warning", "RolloutForced")
    assert reasons(told(facts(ready=1), back)[1]) == [("Warning", "RolledBack")]


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (facts(ready=1, autoscaler=AutoscalerFacts(problem="no metrics API")), "AutoscalerNotReady"),
        (
            facts(ready=1, memory=MemoryFacts(weights_bytes=9, cache_bytes=0, compute_bytes=0, asked_bytes=1)),
            "MemoryInsufficient",
        ),
        (
            facts(ready=1, unsupported=(Problem(reason="R", message="has no effect", field="spec.x"),)),
            "FieldsNotHonoured",
        ),
    ],
)
def test_a_condition_that_turns_is_told_once(seen: ServiceFacts, reason: str) -> None:
    _, first, second = told(facts(ready=1), seen, seen)
    assert reasons(first) == [("Warning", reason)]
    assert second == []


def test_want_of_memory_is_told_once_whichever_condition_says_it() -> None:
    seen = facts(memory=MemoryFacts(weights_bytes=9, cache_bytes=0, compute_bytes=0, asked_bytes=1))
    assert reasons(told(facts(), seen)[1]) == [("Warning", "MemoryInsufficient")]


def test_suspending_stopping_and_resuming_are_no_alarms() -> None:
    cr = service()
    running = status_of(facts(ready=1), cr)
    suspended = parsed(cr).model_copy(update={"suspended": True})
    paused = service_status(service(running), suspended, facts(desired=0), now=LATER)
    assert reasons(phase_events(running, paused, facts(desired=0))) == [("Normal", "Suspended")]
    resumed = status_of(facts(), service(paused))
    assert reasons(phase_events(paused, resumed, facts())) == [("Normal", "Resumed")]
    stopped = status_of(facts(desired=0), service(running))
    assert reasons(phase_events(running, stopped, facts(desired=0))) == [("Normal", "Stopped")]


def test_what_the_engine_tells_itself_is_not_told_again() -> None:
    failed = facts(problem=Problem(reason="Forbidden", message="m"))
    assert told(failed)[0] == []


def test_an_invalid_spec_is_told_with_its_field() -> None:
    problem = Problem(reason="SpecInvalid", message="`two` is no quantity", field="spec.resources.cpu", terminal=True)
    assert told(facts(problem=problem))[0] == [("Warning", "SpecInvalid", "spec.resources.cpu: `two` is no quantity")]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"moeCPUOffload": True}, ["MissingMemoryRequest"]),
        ({"noKvOffload": True, "resources": {"cpu": "2"}}, ["MissingMemoryRequest"]),
        ({"moeCPULayers": 8, "resources": {"hostMemory": "64Gi"}}, []),
        ({"moeCPULayers": 0}, []),
        ({}, []),
    ],
)
def test_a_spec_that_keeps_weights_in_ram_should_ask_for_some(spec: Json, expected: list[str]) -> None:
    assert [entry.reason for entry in advice(service(**spec))] == expected


def with_policy(reason: str, message: str) -> dict[str, Any]:
    condition = {"type": "PolicyCompliant", "status": "False", "reason": reason, "message": message}
    ready = {"type": "Ready", "status": "False", "reason": "PolicyViolated", "message": message}
    return {"conditions": [condition, *([ready] if reason == "PolicyViolated" else [])]}


def test_what_policies_say_is_told_when_they_begin_to_say_it() -> None:
    facts = ServiceFacts(desired_replicas=1)
    violated, advised = with_policy("PolicyViolated", "no"), with_policy("PolicyAdvice", "better not")
    assert phase_events(None, violated, facts) == [("Warning", "PolicyViolated", "no")]
    assert phase_events(violated, violated, facts) == []
    assert phase_events(violated, advised, facts) == [("Warning", "PolicyAdvice", "better not")]
    assert phase_events(advised, with_policy("PolicyAdvice", "better not, still"), facts) == []


def test_each_change_that_waits_is_told_once() -> None:
    facts = ServiceFacts(desired_replicas=1)
    condition = {"type": "ChangePending", "status": "True", "reason": "AwaitingApproval", "message": "approve d1"}
    first = {"pendingChange": {"digest": "d1"}, "conditions": [condition]}
    assert phase_events({}, first, facts) == [("Normal", "ChangePending", "Deferred a change: approve d1")]
    assert phase_events(first, first, facts) == []
    assert [entry.reason for entry in phase_events(first, {**first, "pendingChange": {"digest": "d2"}}, facts)] == [
        "ChangePending"
    ]
