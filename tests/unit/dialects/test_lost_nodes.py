"""A node that stops reporting: its replicas, the message of the condition, and pod statuses that may be outdated."""

from __future__ import annotations

from typing import Any

import pytest

from automation.cache import trim
from kubeapi.json_types import Json
from program.desired.facts import PodFacts
from program.dialects.status.pod_causes import worst_cause
from tests.support.statuses import facts, message, protocol, status_of

SILENT = "NodeStatusUnknown: Kubelet stopped posting node status."
ON_LOST: Json = {"name": "svc-1", "node": "gpu-1", "node_lost": SILENT, "phase": "Running"}


def test_a_silent_node_is_named_with_the_pod_that_it_had() -> None:
    status = status_of(facts(pods=(PodFacts(**ON_LOST),)))
    assert protocol(status) == ("False", "True", "False", "NodeLost")
    assert message(status, "Ready") == f"0 of 1 replicas ready; pod svc-1: its node gpu-1 is lost: {SILENT}"


def test_what_the_kubelet_said_before_is_not_the_cause() -> None:
    crashed = PodFacts(**ON_LOST, waiting_reason="CrashLoopBackOff", exit_code=1, restarts=4)
    other = PodFacts(name="svc-0", container="c", waiting_reason="ErrImagePull")
    for pods in ((crashed, other), (other, crashed)):
        cause = worst_cause(pods, None)
        assert cause is not None and cause.reason == "NodeLost"


def test_a_service_that_serves_elsewhere_stays_available() -> None:
    status = status_of(facts(ready=1, desired=2, pods=(PodFacts(**ON_LOST), PodFacts(name="svc-2", ready=True))))
    assert status["phase"] == "Progressing"
    assert protocol(status)[3] == "NodeLost" and "1 of 2" in message(status, "Ready")


@pytest.mark.parametrize(
    ("other", "reason", "told"),
    [
        ({"name": "svc-2"}, "NodeLost", "pod svc-1 is replaced, and cannot end because its node gpu-1 is lost"),
        ({"name": "svc-2", "unschedulable": "0/1 nodes are available"}, "Unschedulable", "svc-2 is not scheduled"),
        ({"name": "svc-2", "container": "c", "waiting_reason": "ErrImagePull"}, "ImagePullFailed", "svc-2"),
    ],
)
def test_a_pod_that_cannot_end_explains_only_what_nothing_else_does(other: Json, reason: str, told: str) -> None:
    status = status_of(facts(pods=(PodFacts(**ON_LOST, leaving=True), PodFacts(**other))))
    assert protocol(status)[3] == reason
    assert told in message(status, "Ready")


@pytest.mark.parametrize(
    ("condition", "trouble"),
    [
        ({"status": "True", "reason": "KubeletReady", "message": "posting"}, ""),
        (
            {"status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."},
            SILENT,
        ),
        ({"status": "False", "reason": "KubeletNotReady", "message": "no CNI"}, "KubeletNotReady: no CNI"),
        (None, ""),
    ],
)
def test_a_heartbeat_is_no_change_of_a_node_and_its_silence_is(condition: Any, trouble: str) -> None:
    def node(beat: str) -> Json:
        conditions = [{"type": "Ready", "lastHeartbeatTime": beat, **condition}] if condition else []
        return trim.node({"metadata": {"name": "gpu-1"}, "status": {"conditions": conditions}})

    assert node("2026-01-01T00:00:00Z") == node("2026-01-01T00:05:00Z")
    assert node("")["trouble"] == trouble
