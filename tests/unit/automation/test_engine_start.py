"""The record of a pod's engine, and the start of the engine that a check belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from automation.cache import trim
from automation.serving.engine_start import EngineStart, is_foreign, is_healthy, start_of
from components import naming
from kubeapi.json_types import Json


def pod(*, healthy: bool = True, conditions: list[Json] | None = None, **metadata: Any) -> Json:
    engine = {"name": "llama-server", "ports": [{"name": "http", "containerPort": 9000}]}
    mesh = {"name": "istio-proxy", "ports": [{"name": "http-envoy-prom", "containerPort": 15090}]}
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"pod-template-hash": "abc"},
            **metadata,
        },
        "spec": {"containers": [mesh, engine], "readinessGates": [{"conditionType": naming.CONDITION_COMPLETED}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "ContainersReady", "status": str(healthy)}, *(conditions or [])],
            "containerStatuses": [
                {"name": "istio-proxy", "containerID": "containerd://other", "restartCount": 0, "state": {}},
                {"name": "llama-server", "containerID": "containerd://c2", "restartCount": 2, "state": {}},
            ],
        },
    }


def test_a_healthy_engine_is_named_by_its_container_and_port_also_behind_a_mesh() -> None:
    assert start_of(trim.pod(pod())) == EngineStart("ns", "p", "u1", "containerd://c2", 9000, "llama-server")


def test_an_engine_is_asked_before_its_pod_is_ready_since_the_gate_waits_for_the_answer() -> None:
    kept = trim.pod(pod())
    assert not kept["ready"] and kept["engine"]["gate"]
    assert start_of(kept) is not None


def test_a_pod_that_goes_away_is_not_asked() -> None:
    gone = trim.pod(pod(deletionTimestamp="2026-01-01T00:00:01Z"))
    assert start_of(gone) is None and not is_healthy(gone)


def test_health_is_what_the_kubelet_says() -> None:
    assert is_healthy(trim.pod(pod()))
    assert not is_healthy(trim.pod(pod(healthy=False)))


def test_what_was_found_out_before_is_read_from_the_pod() -> None:
    told = {
        "type": naming.CONDITION_COMPLETED,
        "status": "True",
        "reason": "Answered",
        "message": "containerd://c2",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    assert trim.pod(pod(conditions=[told]))["engine"]["completed"] == (True, "Answered", "containerd://c2")


@pytest.mark.parametrize(
    ("owner", "foreign"),
    [
        ({"kind": "ReplicaSet", "name": "chat-5d8f", "controller": True}, False),
        ({"kind": "ReplicaSet", "name": "chat-large-5d8f", "controller": True}, True),
        ({"kind": "ReplicaSet", "name": "chat-5d8f"}, True),
        ({"kind": "Job", "name": "chat-5d8f", "controller": True}, True),
        (None, True),
    ],
)
def test_a_pod_that_only_carries_a_services_label_is_no_replica_of_it(owner: Json | None, foreign: bool) -> None:
    owners = [owner] if owner else []
    assert is_foreign(trim.pod(pod(labels={naming.LABEL_SERVICE: "chat"}, ownerReferences=owners))) is foreign
