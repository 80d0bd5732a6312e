"""The fields that caches keep of objects: all that decisions need, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from automation.cache import trim
from components import naming
from kubeapi.json_types import Json


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
    ended = {"name": "llama-server", "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [ended]}
    kept = trim.pod({"metadata": meta(), "spec": {"nodeName": "n1"}, "status": status})
    assert kept["ready"]
    assert kept["problems"] == ()
    assert kept["node"] == "n1"
    assert kept["metadata"]["labels"] == {naming.LABEL_SERVICE: "chat"}


def crashing(container: dict[str, Any], *, init: bool = False) -> dict[str, Any]:
    field, spec = ("initContainerStatuses", "initContainers") if init else ("containerStatuses", "containers")
    declared = {"name": container["name"], "image": "registry/engine:1"}
    return {"metadata": meta(), "spec": {spec: [declared]}, "status": {"phase": "Running", field: [container]}}


def test_a_crashing_pod_keeps_the_last_words_of_its_container() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    last = {"terminated": {"exitCode": 1, "reason": "Error", "message": "unknown argument: --fast"}}
    container = {"name": "llama-server", "state": waiting, "lastState": last, "restartCount": 4}
    (problem,) = trim.pod(crashing(container))["problems"]
    assert problem == {
        "container": "llama-server",
        "reason": "CrashLoopBackOff",
        "message": "unknown argument: --fast",
        "init": False,
        "image": "registry/engine:1",
        "exit_code": 1,
        "oom_killed": False,
        "restarts": 4,
    }


def test_of_long_last_words_the_end_is_kept() -> None:
    last = {"terminated": {"exitCode": 1, "message": "x" * 5000 + "out of memory"}}
    (problem,) = trim.pod(crashing({"name": "e", "state": {"running": {}}, "lastState": last}))["problems"]
    assert problem["message"].endswith("out of memory")
    assert len(problem["message"]) == trim.MESSAGE_LENGTH


def test_an_engine_that_was_killed_for_memory_says_so_while_it_starts_again() -> None:
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    container = {"name": "llama-server", "state": {"running": {}}, "lastState": last, "restartCount": 1}
    (problem,) = trim.pod(crashing(container))["problems"]
    assert (problem["reason"], problem["oom_killed"], problem["exit_code"]) == ("", True, 137)


def test_a_failing_download_is_told_from_a_failing_engine() -> None:
    ended = {"terminated": {"reason": "Error", "exitCode": 22, "message": "404"}}
    (problem,) = trim.pod(crashing({"name": "model-downloader", "state": ended}, init=True))["problems"]
    assert (problem["init"], problem["message"]) == (True, "404")
    running = {"name": "model-downloader", "state": {"running": {}}}
    kept = trim.pod(crashing(running, init=True))
    assert kept["init_running"] == "model-downloader"
    assert kept["problems"] == ()


def test_an_evicted_pod_says_why() -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    (problem,) = trim.pod({"metadata": meta(), "status": status})["problems"]
    assert problem == {"container": "", "reason": "Evicted", "message": "The node was low on resource: memory."}


def test_a_pod_that_waits_for_a_gpu_keeps_what_it_asks_for() -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    resources = {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2", "memory": "8Gi"}}
    beside = {"requests": {"memory": "1Gi"}}
    obj = {
        "metadata": meta(),
        "spec": {
            "containers": [{"name": "llama-server", "resources": resources}, {"name": "log", "resources": beside}],
            "nodeSelector": {"gpu": "h100"},
            "priority": 1000,
        },
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "message": message}],
            "nominatedNodeName": "n7",
        },
    }
    kept = trim.pod(obj)
    assert kept["unschedulable"] == message
    assert kept["requests"] == {"nvidia.com/gpu": "2"}
    assert kept["needs"] == {"nvidia.com/gpu": "2", "memory": str(9 * 2**30)}
    assert (kept["node_selector"], kept["priority"], kept["nominated_node"]) == ({"gpu": "h100"}, 1000, "n7")


def test_a_preempted_pod_is_known_by_its_condition() -> None:
    def status(reason: str) -> dict[str, Any]:
        return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}

    assert trim.pod({"metadata": meta(), "status": status("PreemptionByScheduler")})["preempted"]
    assert not trim.pod({"metadata": meta(), "status": status("EvictionByEvictionAPI")})["preempted"]


def hpa(version: str, condition: dict[str, str], **spec: Any) -> dict[str, Any]:
    status = {"currentReplicas": int(version), "conditions": [condition]}
    return {"metadata": meta(resourceVersion=version), "spec": spec, "status": status}


def test_an_autoscalers_status_is_no_change() -> None:
    well = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "message": "3"}
    assert trim.autoscaler(hpa("1", well, maxReplicas=3)) == trim.autoscaler(
        hpa("2", {**well, "message": "4"}, maxReplicas=3)
    )


def test_an_autoscaler_that_cannot_scale_is_a_change_and_says_why() -> None:
    well = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}
    ill = {**well, "status": "False", "reason": "FailedGetPodsMetric", "message": "no custom metrics API (try 1)"}
    before, after = trim.autoscaler(hpa("1", well, maxReplicas=3)), trim.autoscaler(hpa("2", ill, maxReplicas=3))
    assert before["problem"] == ""
    assert after["problem"] == "FailedGetPodsMetric: no custom metrics API (try 1)"
    assert before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]
    again = trim.autoscaler(hpa("3", {**ill, "message": "no custom metrics API (try 2)"}, maxReplicas=3))
    assert again["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    edited = trim.autoscaler(hpa("3", ill, maxReplicas=9))
    assert edited["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]
    assert edited["max_replicas"] == 9


def test_a_deployment_keeps_who_scaled_it_what_it_mounts_and_what_it_complains_of() -> None:
    scaled = {"manager": "kubectl", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    pod_spec = {
        "containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}, "requests": {"memory": "1Gi"}}}],
        "volumes": [{"persistentVolumeClaim": {"claimName": "weights"}}, {"emptyDir": {}}],
    }
    conditions = [
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
    ]
    obj = {
        "metadata": meta(managedFields=[scaled], annotations={naming.ANNOTATION_TEMPLATE_HASH: "abc"}),
        "spec": {"replicas": 3, "template": {"spec": pod_spec}},
        "status": {"readyReplicas": 1, "conditions": conditions},
    }
    kept = trim.deployment(obj)
    assert kept["spec"] == {
        "replicas": 3,
        "scaled_by": "kubectl",
        "claims": ("weights",),
        "requests": {"nvidia.com/gpu": "2", "memory": "1Gi"},
    }
    assert kept["replica_failure"] == "exceeded quota"
    assert kept["progress_deadline_exceeded"]
    assert kept["metadata"]["annotations"] == {naming.ANNOTATION_TEMPLATE_HASH: "abc"}
    assert trim.deployment({"metadata": meta(managedFields=[{**scaled, "subresource": ""}])})["spec"]["scaled_by"] == ""


def test_a_route_says_what_its_gateways_said() -> None:
    def route(*conditions: dict[str, str]) -> dict[str, Any]:
        parents = [{"conditions": list(conditions)}] if conditions else []
        return trim.route({"metadata": meta(), "spec": {"hostnames": ["chat.example"]}, "status": {"parents": parents}})

    accepted = {"type": "Accepted", "status": "True"}
    missing = {"type": "ResolvedRefs", "status": "False", "reason": "BackendNotFound", "message": "no Service chat"}
    assert route()["accepted"] is None
    assert route(accepted)["accepted"] is True
    assert (route(accepted, missing)["accepted"], route(accepted, missing)["message"]) == (
        False,
        "BackendNotFound: no Service chat",
    )


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


@pytest.mark.parametrize(
    ("one", "two", "total"),
    [("1Ei", "1Ei", str(2**61)), ("1E", "1E", str(2 * 10**18)), ("9E", "9E", str(18 * 10**18)), ("1e3", "1", "1001")],
)
def test_containers_of_any_size_add_up(one: str, two: str, total: str) -> None:
    containers = [{"name": "a", "resources": {"limits": {"memory": one}}}]
    containers.append({"name": "b", "resources": {"limits": {"memory": two}}})
    kept = trim.pod({"metadata": meta(), "spec": {"containers": containers}})
    assert kept["requests"]["memory"] == total


def test_custom_resources_share_keys_and_repeated_texts() -> None:
    def read(name: str) -> Json:
        condition = {"type": "Available", "message": "All replicas are ready."}
        document = {"metadata": meta(name=name), "spec": {"a": 1}, "status": {"conditions": [condition]}}
        return trim.custom_resource(json.loads(json.dumps(document)))

    one, other = read("one")["status"]["conditions"][0], read("other")["status"]["conditions"][0]
    assert one == other == {"type": "Available", "message": "All replicas are ready."}
    assert [id(text) for item in one.items() for text in item] == [id(text) for item in other.items() for text in item]


def test_a_custom_resource_of_any_depth_is_kept() -> None:
    nested: Json = {}
    for _ in range(600):
        nested = {"in": nested}
    kept = trim.custom_resource({"metadata": meta(), "spec": nested})["spec"]
    for _ in range(600):
        kept = kept["in"]
    assert kept == {}
