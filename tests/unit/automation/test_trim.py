"""What is remembered of objects: enough to judge, and no more."""

from __future__ import annotations

from typing import Any

from automation import trim
from components import naming


def meta(**more: Any) -> dict[str, Any]:
    owner = {"kind": "InferenceService", "uid": "u-owner", "controller": True}
    return {
        "name": "chat-1",
        "namespace": "prod",
        "uid": "u1",
        "labels": {naming.LABEL_SERVICE: "chat", "other": "x"},
        "ownerReferences": [owner],
        "managedFields": [{"manager": "herdsman"}],
        **more,
    }


def test_only_a_controlling_service_counts_as_owner() -> None:
    theirs = [{"kind": "Deployment", "uid": "u2", "controller": True}, {"kind": "InferenceService", "uid": "u3"}]
    assert trim.owned({"metadata": meta()})["metadata"]["owner"] == "u-owner"
    assert trim.owned({"metadata": meta(ownerReferences=theirs)})["metadata"]["owner"] == ""


def test_a_ready_pod_keeps_no_reasons() -> None:
    obj = {"metadata": meta(), "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    kept = trim.pod(obj)
    assert kept["ready"]
    assert kept["problems"] == []
    assert kept["metadata"]["labels"] == {naming.LABEL_SERVICE: "chat"}


def test_a_crashing_pod_keeps_the_last_words_of_its_container() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    last = {"terminated": {"message": "unknown argument: --fast"}}
    container = {"name": "llama-server", "state": waiting, "lastState": last}
    obj = {"metadata": meta(), "status": {"phase": "Running", "containerStatuses": [container]}}
    (problem,) = trim.pod(obj)["problems"]
    assert problem == {
        "container": "llama-server",
        "reason": "CrashLoopBackOff",
        "message": "unknown argument: --fast",
    }


def test_a_pod_that_waits_for_a_gpu_keeps_what_it_asks_for() -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    obj = {
        "metadata": meta(),
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]},
    }
    kept = trim.pod(obj)
    assert kept["unschedulable"] == message
    assert kept["requests"] == {"nvidia.com/gpu": "2"}


def test_an_autoscalers_status_is_no_change() -> None:
    before = {"metadata": meta(resourceVersion="1"), "spec": {"maxReplicas": 3}, "status": {"currentReplicas": 1}}
    after = {"metadata": meta(resourceVersion="2"), "spec": {"maxReplicas": 3}, "status": {"currentReplicas": 2}}
    assert trim.autoscaler(before) == trim.autoscaler(after)


def test_a_claim_keeps_its_phase() -> None:
    kept = trim.claim({"metadata": meta(), "status": {"phase": "Bound"}})
    assert kept["status"] == {"phase": "Bound"}


def test_a_custom_resource_loses_only_what_nobody_reads() -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "herdsman.dev/host": "mac"}
    kept = trim.custom_resource({"metadata": meta(annotations=applied), "spec": {"a": 1}, "status": {"b": 2}})
    assert kept["metadata"]["annotations"] == {"herdsman.dev/host": "mac"}
    assert "managedFields" not in kept["metadata"]
    assert kept["spec"] == {"a": 1}
    assert kept["status"] == {"b": 2}
