"""When a changed pod template waits for replicas to be idle, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automation.serving.engine_start import EngineStart
from automation.serving.idleness import IdleCheck, Idleness, judge
from automation.serving.rollout import (
    OPEN,
    crash_loops,
    deferred,
    gate,
    has_timed_out,
    may_serve,
    replaces_pods,
)
from components import naming
from components.render import RenderOptions, render
from kubeapi.exchange import Exchange
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.service import RolloutPolicy
from program.runtimes.base import IdleProbe
from tests.support.builders import service
from tests.support.loop import eventually
from tests.support.pod_proxy import PodProxy, Say, api_status
from tests.support.pods import remembered as pod

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAIT = RolloutPolicy(wait_for_idle=True, idle_timeout_s=300)
BUSY, IDLE, UNKNOWN = Idleness("busy", "1 of 1 slots"), Idleness("idle"), Idleness("unknown", "GET /slots: 500")
START = EngineStart("ns", "p", "u1", "c1", 8080, "llama-server")


def waiting(seconds: float, reason: str = "PodsBusy") -> tuple[datetime, Problem]:
    return NOW - timedelta(seconds=seconds), Problem(reason=reason, message="as before")


def why(idleness: dict[str, Idleness | None] | None, *pods: Json, policy: RolloutPolicy = WAIT, **said: Any) -> str:
    """The reason of a closed gate; `open` or `timeout` for an open one."""
    found = gate(policy, pods or (pod("a"), pod("b")), idleness, before=said.get("before"), now=NOW)
    if found.open:
        return "timeout" if found.facts.timed_out else "open"
    return found.facts.deferred.reason if found.facts.deferred else "asking"


def test_a_change_goes_out_when_all_are_idle_and_waits_while_one_is_not() -> None:
    assert why({"a": IDLE, "b": IDLE}) == "open"
    assert why({"a": IDLE, "b": BUSY}) == "PodsBusy"
    assert why({"a": UNKNOWN, "b": BUSY}) == "PodsBusy"
    assert why({"a": IDLE, "b": UNKNOWN}) == "IdleCheckFailed"
    assert why(None) == "IdleCheckUnsupported"


def test_while_answers_are_awaited_nothing_goes_out_and_the_status_stays_as_it_is() -> None:
    assert why({"a": IDLE, "b": None}) == "asking"
    assert why({}) == "asking"
    found = gate(WAIT, (pod("a"),), {"a": None}, before=waiting(10, "IdleCheckFailed"), now=NOW)
    assert found.facts.deferred == Problem(reason="IdleCheckFailed", message="as before")


@pytest.mark.parametrize("idleness", [{"a": BUSY}, {"a": UNKNOWN}, {"a": None}, None])
def test_the_timeout_ends_every_waiting(idleness: dict[str, Idleness | None] | None) -> None:
    assert why(idleness, pod("a"), before=waiting(299)) != "timeout"
    assert why(idleness, pod("a"), before=waiting(300)) == "timeout"


def test_force_and_services_that_did_not_ask_for_it_do_not_wait() -> None:
    assert why({"a": BUSY}, policy=WAIT.model_copy(update={"force": True})) == "open"
    assert gate(RolloutPolicy(), (pod("a"),), {"a": BUSY}, before=None, now=NOW) == OPEN


def test_pods_that_serve_nobody_hold_nothing_back() -> None:
    looping = pod("a", healthy=False, waiting="CrashLoopBackOff")
    starting = pod("b", healthy=False)
    assert crash_loops(looping) and crash_loops(pod(healthy=False, restarts=3)) and not crash_loops(pod(restarts=9))
    assert why({}, looping) == why({}, starting) == why({}, looping, starting) == "open"
    assert why({"c": BUSY}, looping, pod("c")) == "PodsBusy"


def test_a_replica_that_is_too_busy_for_its_health_check_still_counts() -> None:
    loaded = pod("a", healthy=False, completed=("True", "Answered", "c1"))
    assert may_serve(loaded)
    assert why({"a": BUSY}, loaded) == "PodsBusy"
    assert not may_serve(pod("a", healthy=False, run="c2", completed=("True", "Answered", "c1")))


def test_the_status_remembers_the_waiting_for_the_next_loop() -> None:
    condition = {"type": "RolloutDeferred", "status": "True", "reason": "PodsBusy", "message": "m"}
    condition["lastTransitionTime"] = "2026-01-01T11:59:00Z"
    cr: Json = {"metadata": {"generation": 2}, "status": {"conditions": [condition]}}
    assert deferred(cr) == (NOW - timedelta(seconds=60), Problem(reason="PodsBusy", message="m"))
    assert not has_timed_out(cr)
    condition.update(status="False", observedGeneration=2)  # type: ignore[call-arg]
    assert deferred(cr) is None and has_timed_out(cr)
    assert not has_timed_out({**cr, "metadata": {"generation": 3}})
    assert deferred({"metadata": {}}) is None


def test_only_a_change_of_the_template_replaces_pods() -> None:
    rendered = render(service(), RenderOptions())
    live = next(o.manifest for o in rendered.objects if o.kind == "Deployment")
    assert not replaces_pods(render(service(replicas=5), RenderOptions()), live)
    assert replaces_pods(render(service(image="other"), RenderOptions()), live)
    assert not replaces_pods(rendered, None)
    assert not replaces_pods(rendered, {"metadata": {"annotations": {}}}), "its template is unknown"
    assert naming.ANNOTATION_TEMPLATE_HASH in live["metadata"]["annotations"]


SLOTS = IdleProbe(path="/slots", kind="slots")
GAUGE = IdleProbe(path="/metrics", kind="gauge", gauge="vllm:num_requests_running")
STATUS = IdleProbe(path="/idle", kind="status")


@pytest.mark.parametrize(
    ("probe", "status", "body", "state"),
    [
        (SLOTS, 200, b'[{"is_processing": false}, {"is_processing": false}]', "idle"),
        (SLOTS, 200, b'[{"is_processing": false}, {"is_processing": true}]', "busy"),
        (SLOTS, 200, b"[]", "unknown"),
        (SLOTS, 200, b'[{"id": 1}]', "unknown"),
        (SLOTS, 200, b'[{"is_processing": false}, 7]', "unknown"),
        (SLOTS, 200, b"not json", "unknown"),
        (SLOTS, 501, b"", "unknown"),
        (GAUGE, 200, b'vllm:num_requests_running{e="0"} 0.0\nvllm:num_requests_running{e="1"} 0\n', "idle"),
        (GAUGE, 200, b'vllm:num_requests_running{e="0"} 0.0\nvllm:num_requests_running{e="1"} 2\n', "busy"),
        (GAUGE, 200, b"vllm:num_requests_waiting 0\n", "unknown"),
        (GAUGE, 404, b"", "unknown"),
        (STATUS, 204, b"", "idle"),
        (STATUS, 503, b"", "busy"),
        (STATUS, 404, b"", "busy"),
    ],
)
def test_only_what_says_so_in_so_many_words_is_idle(probe: IdleProbe, status: int, body: bytes, state: str) -> None:
    assert judge(probe, Exchange(status, {}, body)).state == state


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def proxy() -> Iterator[PodProxy]:
    with PodProxy() as running:
        yield running


def test_an_old_answer_counts_for_nothing(proxy: PodProxy) -> None:
    clock = Clock()
    check = IdleCheck(proxy.client, clock=clock)
    proxy.engines["p"] = lambda *_: Say(body=[{"is_processing": False}])
    assert check.latest(START, SLOTS, changed=lambda: None) is None
    eventually(check.idle, what="an answer", timeout_s=60)
    found = check.latest(START, SLOTS, changed=lambda: None)
    assert found is not None and found.state == "idle"
    proxy.engines["p"] = lambda *_: Say(body=[{"is_processing": True}])
    clock.now += 5
    assert check.latest(START, SLOTS, changed=lambda: None) is None
    eventually(check.idle, what="an answer", timeout_s=60)
    found = check.latest(START, SLOTS, changed=lambda: None)
    assert found is not None and found.state == "busy"
    check.close()


def test_what_cannot_be_asked_is_unknown(proxy: PodProxy) -> None:
    check = IdleCheck(proxy.client)
    proxy.engines["p"] = lambda *_: api_status(503, "ServiceUnavailable", "error trying to reach service")
    assert check.check(START, SLOTS).state == "unknown"
    assert check.check(START, IdleProbe(path="/../../secrets", kind="status")).state == "unknown"
