"""Properties that the status has for any facts."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from automation.status.event_log import phase_events
from kubeapi.json_types import Json
from program.desired.facts import (
    AutoscalerFacts,
    ClaimFacts,
    GatewayFacts,
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
from program.dialects.status.conditions import MODEL_TRANSFER_REASONS, Reason
from tests.support.statuses import LATER, NOW, conditions, facts, parsed, service

WORDS = st.sampled_from(
    [
        "",
        "boom",
        "CUDA driver version is insufficient",
        "curl: (22) The requested URL returned error: 404",
        *(f"{reason}: why" for reason in sorted(MODEL_TRANSFER_REASONS)),
        "\x00\n\u2028",
    ]
) | st.text(max_size=40)
UNSCHEDULABLE = st.sampled_from(
    [
        "",
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        "0/1 nodes are available: 1 Insufficient memory.",
        "0/1 nodes are available: 1 cannot allocate all claims.",
        "pod has unbound immediate PersistentVolumeClaims",
    ]
)
WAITING = st.sampled_from(
    ["", "CrashLoopBackOff", "ImagePullBackOff", "InvalidImageName", "OOMKilled", "Error", "Unhealthy", "Whatever"]
)
COUNTS = st.integers(min_value=0, max_value=3)
PROBLEMS = st.none() | st.builds(
    Problem,
    reason=st.sampled_from(["SpecInvalid", "Forbidden", "CompletionFailed", "NamespaceTerminating", "PodsBusy"]),
    message=st.just("what was asked, what is wrong"),
    field=st.sampled_from(["", "spec.x"]),
    terminal=st.booleans(),
)
PODS = st.builds(
    PodFacts,
    name=st.sampled_from(["svc-1", "svc-2"]),
    node=st.sampled_from(["", "n"]),
    phase=st.sampled_from(["Pending", "Running", "Failed", "Unknown"]),
    ready=st.booleans(),
    proof=st.sampled_from(["", "proved", "failed", "unknown"]),
    unschedulable=UNSCHEDULABLE,
    waiting_reason=WAITING,
    waiting_message=WORDS,
    container=st.sampled_from(["", "llama-server", "model-downloader"]),
    init=st.booleans(),
    oom_killed=st.booleans(),
    exit_code=st.none() | st.sampled_from([0, 1, 137, 143]),
    restarts=COUNTS,
    preempted=st.booleans(),
    requests=st.sampled_from([{}, {"nvidia.com/gpu": "1"}]),
)
SEEN = st.builds(
    ServiceFacts,
    desired_replicas=COUNTS,
    replicas=COUNTS,
    ready_replicas=COUNTS,
    model_found=st.booleans(),
    model_ready=st.booleans(),
    objects_exist=st.booleans(),
    applying=st.booleans(),
    problem=PROBLEMS,
    quota=PROBLEMS,
    queue=st.none() | st.builds(QueuePosition, position=st.just(1), length=st.just(2), ahead=st.just("a/b")),
    never_fits=st.sampled_from(["", "too big"]),
    replica_failure=st.sampled_from(["", "exceeded quota"]),
    cache_claim=st.none() | st.builds(ClaimFacts, name=st.just("c"), found=st.booleans()),
    preemption=st.sampled_from([(), (Problem(reason="Preempted", message="gave its place to a/b"),)]),
    rollout=st.builds(RolloutFacts, deferred=PROBLEMS, timed_out=st.booleans(), failed=PROBLEMS, rolled_back=PROBLEMS),
    memory=st.none()
    | st.builds(
        MemoryFacts, weights_bytes=COUNTS, cache_bytes=COUNTS, compute_bytes=COUNTS, asked_bytes=st.none() | COUNTS
    ),
    autoscaler=st.none() | st.builds(AutoscalerFacts, problem=st.sampled_from(["", "no metrics"])),
    unproved_replicas=COUNTS,
    template_hash=st.sampled_from(["", "a"]),
    gateway=st.none() | st.builds(GatewayFacts, accepted=st.booleans()),
    pods=st.lists(PODS, max_size=2).map(tuple),
    hosted=st.none()
    | st.builds(HostedFacts, host=st.none() | st.just("mac"), reason=st.sampled_from(["", "InsufficientMemory"])),
)


def status_of(seen: ServiceFacts, *, suspended: bool, parses: bool, status: Json | None = None, now: Any = NOW) -> Json:
    cr = service(status, suspend=suspended)
    desired = parsed(service(), gpu=ModelGpu(count=1)).model_copy(update={"suspended": suspended})
    return service_status(cr, desired if parses else None, seen, now=now)


@settings(max_examples=100, deadline=None)
@given(seen=SEEN, suspended=st.booleans(), parses=st.booleans())
def test_every_status_is_whole_and_says_one_thing(seen: ServiceFacts, suspended: bool, parses: bool) -> None:
    status = status_of(seen, suspended=suspended, parses=parses)
    found = conditions(status)
    protocol = [found[kind] for kind in ("Ready", "Reconciling", "Stalled")]
    assert [value for value, _ in protocol].count("True") <= 1
    assert {reason for _, reason in protocol} <= set(Reason)
    for condition in status["conditions"]:
        assert condition["message"]
        assert re.fullmatch(r"[A-Z][A-Za-z]*", condition["reason"])
    assert (found.get("Available", ("", ""))[0] == "True") == (seen.ready_replicas > 0)
    if protocol[0][0] == "True":
        assert (
            seen.ready_replicas == seen.desired_replicas == seen.replicas > 0 or seen.replicas < seen.desired_replicas
        )
        assert seen.problem is None and seen.quota is None and not suspended
        assert seen.objects_exist and seen.model_ready and not seen.applying
        assert seen.rollout.rolled_back is None and seen.rollout.failed is None and seen.rollout.deferred is None
    if "queuePosition" in status:
        assert found["GPUAvailable"][0] == "False"
    assert (found.get("GPUAvailable") is not None) == ("waitingFor" in status)
    if status["phase"] == "WaitingForGPU":
        assert seen.ready_replicas == 0 and not seen.never_fits


@settings(max_examples=60, deadline=None)
@given(seen=SEEN, suspended=st.booleans(), parses=st.booleans())
def test_the_same_facts_are_written_once(seen: ServiceFacts, suspended: bool, parses: bool) -> None:
    first = status_of(seen, suspended=suspended, parses=parses)
    again = status_of(seen, suspended=suspended, parses=parses, status=first, now=LATER)
    assert again is first


@settings(max_examples=60, deadline=None)
@given(before=SEEN, after=SEEN)
def test_no_trouble_leaves_a_trace_and_every_turn_can_be_told(before: ServiceFacts, after: ServiceFacts) -> None:
    first = status_of(before, suspended=False, parses=True)
    second = status_of(after, suspended=False, parses=True, status=first, now=LATER)
    for entry in phase_events(first, second, after):
        assert re.fullmatch(r"[A-Z][A-Za-z]*", entry.reason)
        assert entry.message
    well = status_of(facts(ready=1), suspended=False, parses=True, status=second, now=LATER)
    false = {kind for kind, (value, _) in conditions(well).items() if value == "False"}
    assert false == {"Reconciling", "Stalled", "Suspended"}
    assert conditions(well)["Ready"] == ("True", "Serving")
