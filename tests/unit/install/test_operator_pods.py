"""The doctor's findings about the operator's pods: which of them ended, the cause, and what to do."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automation.console.check import Check
from automation.install.objects import documents
from automation.install.operator_pods import doubled, judge_engine_memory, judge_pods
from automation.install.options import InstallOptions
from kubeapi.json_types import Json

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(*, ready: bool = True, phase: str = "Running", restarts: int = 0, **container: Json) -> Json:
    spec = copy.deepcopy(documents(InstallOptions(memory="512Mi"))[-1]["spec"]["template"]["spec"])
    entry = {"name": "loop", "image": "herdsman:1", "ready": ready, "restartCount": restarts, **container}
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "containerStatuses": [entry],
    }
    return {"metadata": {"name": "herdsman-a", "namespace": "herdsman-system"}, "spec": spec, "status": status}


def ended(reason: str, code: int, *, minutes_ago: float = 5) -> Json:
    at = (NOW - timedelta(minutes=minutes_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"terminated": {"reason": reason, "exitCode": code, "finishedAt": at}}


def judged(found: Json, **more: Any) -> list[Check]:
    return judge_pods([found], now=NOW, **more)


def test_a_pod_that_runs_is_not_spoken_of() -> None:
    assert judged(pod(state={"running": {}})) == []
    assert judged(pod(ready=False, state={"waiting": {"reason": "ContainerCreating"}})) == []


@pytest.mark.parametrize(
    ("ready", "state"), [(True, "warning"), (False, "missing")], ids=["runs again", "waits for its next start"]
)
def test_a_pod_without_memory_says_so_and_what_to_set(ready: bool, state: str) -> None:
    waiting = {"running": {}} if ready else {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    [found] = judged(pod(ready=ready, restarts=3, state=waiting, lastState=ended("OOMKilled", 137)))
    assert found.state == state
    assert "OOMKilled" in found.detail and "3 restarts, the last time 5 minutes ago" in found.detail
    assert "its limit is 512Mi" in found.detail
    assert "--memory 1Gi" in found.hint and "docs/how-to/install.md" in found.hint


def test_an_end_of_long_ago_is_told_while_the_pod_is_not_ready_alone() -> None:
    long_ago = ended("OOMKilled", 137, minutes_ago=60 * 25)
    assert judged(pod(restarts=1, state={"running": {}}, lastState=long_ago)) == []
    [found] = judged(pod(ready=False, restarts=1, state={"running": {}}, lastState=long_ago))
    assert "1 restart, the last time 25 h ago" in found.detail


def test_a_crash_names_the_exit_code_and_where_its_words_are() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    [found] = judged(pod(ready=False, restarts=2, state=waiting, lastState=ended("Error", 3)))
    assert found.state == "missing" and "exited with code 3 (Error), 2 restarts" in found.detail
    assert "logs herdsman-a -c loop --previous" in found.hint


def test_an_orderly_end_is_no_fault() -> None:
    assert judged(pod(restarts=1, state={"running": {}}, lastState=ended("Completed", 0))) == []


def test_an_image_that_cannot_be_pulled_is_told() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    [found] = judged(pod(ready=False, state=waiting))
    assert found.state == "missing" and "herdsman:1 cannot be pulled: not found" in found.detail
    [found] = judged(pod(ready=False, state={"waiting": {"reason": "CreateContainerConfigError", "message": "no s"}}))
    assert found.detail == "CreateContainerConfigError: no s"


def test_a_pod_without_its_claim_and_one_without_a_node_say_so() -> None:
    waits = pod(ready=False)
    waits["status"]["conditions"].append({"type": "PodScheduled", "status": "False", "message": "0/1 nodes"})
    [found] = judged(waits)
    assert found.state == "missing" and found.detail == "has no node: 0/1 nodes"
    [found] = judged(waits, claim_is_there=False)
    assert "herdsman-state, which does not exist" in found.detail and "`herdsman install`" in found.hint
    assert judged(pod(state={"running": {}}), claim_is_there=False) == []


def test_a_pod_that_was_evicted_is_told_until_it_is_deleted() -> None:
    evicted = pod(ready=False, phase="Failed")
    evicted["status"].update(reason="Evicted", message="The node was low on resource: memory.")
    [found] = judged(evicted)
    assert found.state == "warning" and found.detail.startswith("Evicted: The node was low")
    evicted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert judged(evicted) == []


def test_engines_without_memory_are_told_with_the_services_that_wait() -> None:
    [deployment] = [d for d in documents(InstallOptions(memory="512Mi")) if d["kind"] == "Deployment"]
    events = [
        {"involvedObject": {"namespace": "team", "name": name}, "lastTimestamp": "2025-12-31T23:50:00Z"}
        for name in ("b", "a", "a")
    ]
    assert judge_engine_memory([], deployment, now=NOW) == []
    [found] = judge_engine_memory(events, deployment, now=NOW)
    assert found.state == "warning" and "EngineOutOfMemory), the last time 10 minutes ago" in found.detail
    assert "the limit is 512Mi; changes of team/a and 1 other service failed" in found.detail
    assert "--memory 1Gi" in found.hint


@pytest.mark.parametrize(
    ("one", "two"),
    [("512Mi", "1Gi"), ("1Gi", "2Gi"), ("1.5Gi", "3Gi"), ("400M", "800M"), ("300Mi", "600Mi"), ("much", "")],
)
def test_an_amount_is_doubled_in_words_that_the_option_takes(one: str, two: str) -> None:
    assert doubled(one) == two
    if two:
        InstallOptions(memory=two)
