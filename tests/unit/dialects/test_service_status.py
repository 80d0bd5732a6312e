"""The status of an InferenceService, computed from facts."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.facts import HostedFacts, PodFacts, Problem, QueuePosition
from program.desired.model import ModelGpu
from program.dialects.llmkube.status.service import service_status
from tests.support.statuses import LATER, NOW, conditions, facts, message, protocol, service, status_of

REFUSED_IMAGE = PodFacts(name="svc-1", container="llama-server", waiting_reason="InvalidImageName", image="UPPER")


def test_a_service_with_all_replicas_ready_is_ready() -> None:
    status = status_of(facts(ready=2, desired=2))
    assert status["phase"] == "Ready"
    assert (status["readyReplicas"], status["replicas"], status["desiredReplicas"]) == (2, 2, 2)
    assert status["endpoint"] == "http://svc.ns.svc.cluster.local:8080/v1/chat/completions"
    assert (status["effectivePriority"], status["modelReady"], status["observedGeneration"]) == (10000, True, 1)
    assert protocol(status) == ("True", "False", "False", "Serving")
    assert conditions(status)["Available"] == ("True", "InferenceReady")
    assert not {"Progressing", "Degraded", "GPUAvailable"} & set(conditions(status))


def test_an_autoscalers_choice_is_the_measure() -> None:
    status = status_of(facts(ready=3, desired=3), service(replicas=1, autoscaling={"maxReplicas": 5}))
    assert (status["phase"], status["desiredReplicas"]) == ("Ready", 3)


def test_a_new_service_is_created_and_says_how_far_it_is() -> None:
    status = status_of(facts(desired=2))
    assert status["phase"] == "Creating"
    assert protocol(status) == ("False", "True", "False", "ReplicasStarting")
    assert conditions(status)["Progressing"] == ("True", "Creating")
    assert "Available" not in conditions(status)
    assert message(status, "Ready") == "0 of 2 replicas ready"


def test_some_ready_replicas_serve_while_others_start() -> None:
    status = status_of(facts(ready=1, desired=2))
    assert status["phase"] == "Progressing"
    assert conditions(status)["Available"][0] == "True"
    assert protocol(status)[:2] == ("False", "True")


def test_a_rollout_is_not_ready_before_the_old_pods_are_gone() -> None:
    status = status_of(facts(ready=1, desired=1, replicas=2))
    assert status["phase"] == "Ready"
    assert protocol(status) == ("False", "True", "False", "ReplicasStopping")


@pytest.mark.parametrize("values", [{"applying": True}, {"objects_exist": False}])
def test_a_service_is_not_ready_while_its_objects_are_being_applied(values: Json) -> None:
    status = status_of(facts(ready=1, **values))
    assert status["phase"] == "Ready"
    assert protocol(status) == ("False", "True", "False", "Applying")
    assert conditions(status)["Available"][0] == "True"


@pytest.mark.parametrize("pods", [(), (REFUSED_IMAGE,)])
def test_a_change_that_is_being_applied_is_told_whatever_the_pods_before_it_lack(pods: tuple[PodFacts, ...]) -> None:
    status = status_of(facts(ready=1, desired=2, applying=True, objects_exist=False, pods=pods))
    assert status["phase"] == "Progressing"
    assert protocol(status) == ("False", "True", "False", "Applying")
    assert message(status, "Ready").startswith("1 of 2 replicas ready")
    assert message(status, "Ready").endswith("; the service's objects are being applied")
    applied = status_of(facts(ready=1, desired=2, applying=True, pods=pods))
    assert protocol(applied)[3] == ("ImagePullFailed" if pods else "ReplicasStarting")


def test_zero_replicas_stop_the_service_and_nothing_is_wrong() -> None:
    status = status_of(facts(desired=0), service(replicas=0))
    assert status["phase"] == "Stopped"
    assert protocol(status) == ("False", "False", "False", "Stopped")
    assert conditions(status)["Available"] == ("False", "ManuallyScaledToZero")


def test_a_missing_model_fails_the_service_and_is_named() -> None:
    cr = service(modelRef="nowhere")
    status = service_status(cr, None, facts(model_found=False, model_ready=False, objects_exist=False), now=NOW)
    assert status["phase"] == "Failed"
    assert protocol(status) == ("False", "False", "True", "ModelNotFound")
    assert conditions(status)["Degraded"] == ("True", "Failed")
    assert "spec.modelRef" in message(status, "Stalled")
    assert "`nowhere`" in message(status, "Stalled")
    assert "endpoint" not in status
    assert status["desiredReplicas"] == 0


def test_a_model_that_is_not_ready_keeps_the_service_pending() -> None:
    status = service_status(service(), None, facts(model_ready=False, objects_exist=False), now=NOW)
    assert status["phase"] == "Pending"
    assert protocol(status) == ("False", "True", "False", "ModelNotReady")
    assert conditions(status)["Progressing"] == ("True", "Pending")


def test_a_service_goes_on_serving_while_its_model_is_not_ready() -> None:
    before = status_of(facts(ready=1))
    status = service_status(service(before), None, facts(ready=1, model_ready=False, objects_exist=False), now=LATER)
    assert (status["phase"], status["endpoint"]) == ("Ready", before["endpoint"])
    assert protocol(status) == ("False", "True", "False", "ModelNotReady")
    assert conditions(status)["Available"][0] == "True"


def test_an_invalid_spec_stalls_with_its_field_and_an_edit_heals() -> None:
    problem = Problem(
        reason="SpecInvalid", message="`two` is not a quantity", field="spec.resources.cpu", terminal=True
    )
    failed = service_status(service(), None, facts(problem=problem, objects_exist=False), now=NOW)
    assert failed["phase"] == "Failed"
    assert protocol(failed) == ("False", "False", "True", "SpecInvalid")
    assert message(failed, "Stalled") == "spec.resources.cpu: `two` is not a quantity"
    healed = status_of(facts(ready=1), service(failed, generation=2), now=LATER)
    assert protocol(healed) == ("True", "False", "False", "Serving")
    assert "Degraded" not in conditions(healed)


def test_an_invalid_edit_does_not_hide_that_the_old_pods_serve() -> None:
    problem = Problem(reason="SpecInvalid", message="m", field="spec.x", terminal=True)
    before = status_of(facts(ready=1))
    status = service_status(service(before), None, facts(ready=1, problem=problem), now=LATER)
    assert (status["phase"], status["endpoint"]) == ("Failed", before["endpoint"])
    assert conditions(status)["Available"][0] == "True"


def test_a_failed_engine_run_is_told_and_tried_again() -> None:
    status = status_of(facts(problem=Problem(reason="Forbidden", message="no right to create Deployments")))
    assert status["phase"] == "Failed"
    assert protocol(status) == ("False", "True", "False", "ApplyFailed")
    assert message(status, "Degraded") == "Forbidden: no right to create Deployments"


def test_a_failed_engine_run_leaves_a_serving_service_its_phase() -> None:
    status = status_of(facts(ready=1, problem=Problem(reason="Timeout", message="m")))
    assert status["phase"] == "Ready"
    assert conditions(status)["Degraded"] == ("True", "Failed")
    assert protocol(status)[:3] == ("False", "True", "False")


def test_something_that_is_still_missing_keeps_the_service_pending() -> None:
    problem = Problem(reason="DependencyMissing", message="draft Model `d` does not exist", field="spec.x")
    status = service_status(service(), None, facts(problem=problem, objects_exist=False), now=NOW)
    assert status["phase"] == "Pending"
    assert protocol(status) == ("False", "True", "False", "DependencyMissing")
    assert "Degraded" not in conditions(status)


def test_every_reason_that_is_not_on_the_list_is_mapped_into_it() -> None:
    taken = Problem(reason="NameTaken", message="m", field="metadata.name", terminal=True)
    status = service_status(service(), None, facts(problem=taken), now=NOW)
    assert protocol(status)[3] == "SpecInvalid"
    assert message(status, "Ready") == "metadata.name: NameTaken: m"


@pytest.mark.parametrize(
    ("vendor", "resource"),
    [("nvidia", "nvidia.com/gpu"), ("amd", "amd.com/gpu"), ("intel", "gpu.intel.com/i915")],
)
def test_a_missing_gpu_is_named_with_what_the_pod_really_asks_for(vendor: Any, resource: str) -> None:
    told = f"0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient {resource}. preemption: none."
    pod = PodFacts(name="svc-1", unschedulable=told, requests={resource: "2"})
    status = status_of(facts(pods=(pod,)), service(resources={"gpu": 0}), gpu=ModelGpu(count=2, vendor=vendor))
    assert status["phase"] == "WaitingForGPU"
    assert (status["schedulingStatus"], status["waitingFor"]) == ("InsufficientGPU", f"{resource}: 2")
    assert status["schedulingMessage"] == told
    assert conditions(status)["GPUAvailable"] == ("False", "InsufficientGPU")
    assert conditions(status)["Progressing"] == ("True", "WaitingForGPU")
    assert protocol(status) == ("False", "True", "False", "WaitingForGPU")


def test_a_place_in_the_queue_is_told_while_waiting_only() -> None:
    pod = PodFacts(name="svc-1", unschedulable="0/1 nodes: 1 Insufficient nvidia.com/gpu.")
    waiting = status_of(facts(pods=(pod,), queue=QueuePosition(position=3, length=5)), gpu=ModelGpu(count=1))
    assert (waiting["queuePosition"], waiting["waitingFor"]) == (3, "nvidia.com/gpu: 1")
    assert "queuePosition" not in status_of(
        facts(ready=1, queue=QueuePosition(position=3, length=5)), gpu=ModelGpu(count=1)
    )


@pytest.mark.parametrize(
    ("told", "scheduling", "reason"),
    [
        ("0/3 nodes are available: 3 Insufficient memory.", "InsufficientResources", "Unschedulable"),
        (
            "0/3 nodes are available: 3 node(s) had volume node affinity conflict.",
            "UnbindableModelCache",
            "UnbindableModelCache",
        ),
        (
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "UnbindableModelCache",
            "UnbindableModelCache",
        ),
        ('persistentvolumeclaim "llmkube-model-cache" not found', "UnbindableModelCache", "UnbindableModelCache"),
        ("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity.", "Unschedulable", "Unschedulable"),
    ],
)
def test_other_reasons_of_the_scheduler_are_told(told: str, scheduling: str, reason: str) -> None:
    status = status_of(facts(pods=(PodFacts(name="svc-1", unschedulable=told),)))
    assert (status["phase"], status["schedulingStatus"]) == ("Creating", scheduling)
    assert told in message(status, "Ready")
    assert protocol(status)[3] == reason


@pytest.mark.parametrize(
    ("hosted", "scheduling", "reason", "told"),
    [
        (HostedFacts(), "WaitingForMetalAgent", "WaitingForHost", "herdsman agent run"),
        (HostedFacts(host="mac"), "WaitingForMetalAgent", "WaitingForHost", "`mac`"),
        (
            HostedFacts(host="mac", phase="Downloading", message="3 of 8 GB", heartbeat_age_s=5),
            "WaitingForMetalAgent",
            "WaitingForHost",
            "Downloading: 3 of 8 GB",
        ),
        (
            HostedFacts(host="mac", phase="Failed", reason="DiskFull", message="no space", heartbeat_age_s=5),
            "WaitingForMetalAgent",
            "HostProcessFailing",
            "DiskFull: no space",
        ),
        (HostedFacts(host="mac", phase="Ready", heartbeat_age_s=181), "AgentHeartbeatStale", "HostLost", "`mac`"),
        (HostedFacts(host="mac", heartbeat_age_s=float("inf")), "AgentHeartbeatStale", "HostLost", "`mac`"),
        (
            HostedFacts(host="mac", phase="Ready", lost=True, stuck="replica 0 stays: the service may not move"),
            "AgentHeartbeatStale",
            "HostLost",
            "may not move",
        ),
        (HostedFacts(refusal="0/2 hosts fit: 2 are lost"), "NoHostFits", "NoHostFits", "0/2 hosts fit"),
        (
            HostedFacts(host="mac", phase="Pending", reason="MemoryUnknown", message="no size"),
            "MemoryCheckFailed",
            "MemoryInsufficient",
            "no size",
        ),
        (HostedFacts(host="mac", phase="Pending", reason="Evicted", message="short"), "Evicted", "Evicted", "short"),
        (
            HostedFacts(host="mac", phase="BackingOff", reason="SecretUnavailable", message="env[A].valueFrom: grant"),
            "SecretUnavailable",
            "SecretUnavailable",
            "env[A].valueFrom: grant",
        ),
    ],
)
def test_a_service_on_a_host_says_what_it_waits_for(
    hosted: HostedFacts, scheduling: str, reason: str, told: str
) -> None:
    status = status_of(facts(hosted=hosted), accelerator="metal")
    assert (status["phase"], status["schedulingStatus"]) == ("Creating", scheduling)
    assert protocol(status) == ("False", "True", "False", reason)
    assert told in status["schedulingMessage"]


def test_a_service_whose_memory_another_of_its_group_has_is_pending() -> None:
    hosted = HostedFacts(host="mac", phase="Pending", reason="SwappedOut", message="`other` runs")
    status = status_of(facts(hosted=hosted), accelerator="metal")
    assert (status["phase"], protocol(status)[3]) == ("Pending", "SwappedOut")


def test_a_service_that_serves_where_it_should_not_stay_says_so() -> None:
    hosted = HostedFacts(host="mac", phase="Ready", stuck="replica 0 stays on host `mac`, which is being drained")
    status = status_of(facts(ready=1, hosted=hosted), accelerator="metal")
    assert protocol(status)[0] == "True"
    assert "which is being drained" in message(status, "Ready")


def test_the_message_of_a_silent_host_does_not_change_every_second() -> None:
    cr = service(annotations={"herdsman.dev/host": "box"})
    first = status_of(facts(hosted=HostedFacts(host="box", heartbeat_age_s=200)), cr)
    again = status_of(facts(hosted=HostedFacts(host="box", heartbeat_age_s=201)), {**cr, "status": first}, now=LATER)
    assert again is first


@pytest.mark.parametrize(
    ("priority", "value"),
    [("critical", 1000000), ("high", 100000), ("normal", 10000), ("low", 1000), ("batch", 100)],
)
def test_priorities_have_the_values_of_their_classes(priority: str, value: int) -> None:
    assert status_of(facts(), service(priority=priority))["effectivePriority"] == value


def test_a_class_that_was_looked_up_gives_the_priority() -> None:
    assert status_of(facts(priority_value=42), service(priorityClassName="gold"))["effectivePriority"] == 42


@pytest.mark.parametrize(
    ("name", "endpoint", "url"),
    [
        ("a.b", None, "http://a-b.ns.svc.cluster.local:8080/v1/chat/completions"),
        ("3b", {"port": 80, "path": "/api"}, "http://s-3b.ns.svc.cluster.local:80/api"),
        ("svc", {"path": "v1"}, "http://svc.ns.svc.cluster.local:8080/v1"),
    ],
)
def test_the_endpoint_follows_name_port_and_path(name: str, endpoint: Json | None, url: str) -> None:
    cr = service(endpoint=endpoint)
    cr["metadata"]["name"] = name
    assert status_of(facts(), cr)["endpoint"] == url


def test_fields_that_are_not_honoured_are_named() -> None:
    problems = (
        Problem(reason="NotHonoured", message="has no effect", field="spec.a"),
        Problem(reason="NotHonoured", message="is not known", field="spec.b"),
    )
    status = status_of(facts(unsupported=problems))
    assert conditions(status)["SpecHonoured"] == ("False", "FieldsNotHonoured")
    assert message(status, "SpecHonoured") == "spec.a has no effect; spec.b is not known"
    assert conditions(status_of(facts()))["SpecHonoured"][0] == "True"


def test_advice_on_vllm_is_given_and_taken_back() -> None:
    cr = service(runtime="vllm", vllmConfig={"cpuOffloadGB": 4})
    advised = status_of(facts(), cr, gpu=ModelGpu(count=1))
    assert conditions(advised)["VLLMSpecValid"] == ("False", "CPUOffloadUnverified")
    taken_back = status_of(facts(), service(advised, runtime="vllm"), gpu=ModelGpu(count=1))
    assert conditions(taken_back)["VLLMSpecValid"] == ("True", "ConfigValid")
    assert "VLLMSpecValid" not in conditions(status_of(facts(), service(runtime="vllm")))


def test_a_status_that_says_nothing_new_is_returned_as_it_is() -> None:
    seen = facts(ready=1)
    first = status_of(seen)
    assert first["lastUpdated"] == "2026-11-21T10:00:00Z"
    assert status_of(seen, service(first), now=LATER) is first


def test_what_others_wrote_into_the_status_does_not_count_as_a_change() -> None:
    first = status_of(facts(ready=1))
    foreign = {"type": "MemoryPressure", "status": "False", "reason": "Ok", "message": ""}
    shared = {**first, "spare": {"device": "CUDA"}, "conditions": [foreign, *reversed(first["conditions"])]}
    assert status_of(facts(ready=1), service(shared), now=LATER) is shared
    changed = status_of(facts(ready=0), service(shared), now=LATER)
    assert "MemoryPressure" not in conditions(changed)


def test_only_what_changes_gets_a_new_time() -> None:
    creating = status_of(facts())
    ready = status_of(facts(ready=1), service(creating), now=LATER)
    times = {c["type"]: c["lastTransitionTime"] for c in ready["conditions"]}
    assert times["Ready"] == "2026-11-21T10:01:00Z"
    assert times["Stalled"] == times["Suspended"] == "2026-11-21T10:00:00Z"
    assert ready["lastUpdated"] == "2026-11-21T10:01:00Z"


def test_a_service_that_lost_its_replicas_is_not_available_any_more() -> None:
    ready = status_of(facts(ready=1))
    lost = status_of(facts(ready=0), service(ready), now=LATER)
    assert lost["phase"] == "Creating"
    assert conditions(lost)["Available"] == ("False", "NoReadyReplicas")


def test_a_new_generation_is_judged_by_every_condition() -> None:
    first = status_of(facts(ready=1))
    second = status_of(facts(ready=1), service(first, generation=2), now=LATER)
    assert second["observedGeneration"] == 2
    assert {c["observedGeneration"] for c in second["conditions"]} == {2}
    assert {c["lastTransitionTime"] for c in second["conditions"]} == {"2026-11-21T10:00:00Z"}
