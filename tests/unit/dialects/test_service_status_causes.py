"""The status names why a service waits or fails, and the message disappears with its cause."""

from __future__ import annotations

import pytest

from kubeapi.json_types import Json
from program.desired.engines import Sglang
from program.desired.facts import (
    AccelerationFacts,
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
from program.desired.service import Autoscaling, DesiredService, Exposure
from program.dialects.llmkube.status.service import service_status
from tests.support.statuses import LATER, NOW, conditions, facts, message, parsed, protocol, service, status_of

GIB = 1 << 30
ONE_GPU = ModelGpu(count=1)
CRASHING = PodFacts(name="svc-1", container="llama-server", waiting_reason="CrashLoopBackOff", exit_code=1, restarts=3)


def waits_for(resource: str, count: str = "1") -> PodFacts:
    told = f"0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient {resource}."
    return PodFacts(name="svc-1", unschedulable=told, requests={resource: count})


def status_with(seen: ServiceFacts, changes: Json, status: Json | None = None) -> Json:
    """Return the status of a service with these changes of its desired state."""
    cr = service(status)
    return service_status(cr, parsed(cr).model_copy(update=changes), seen, now=LATER if status else NOW)


# --- phases that need no action ---------------------------------------------------------------------------------------


def test_a_suspended_service_is_idle_and_nothing_is_wrong() -> None:
    status = status_with(facts(desired=0), {"suspended": True})
    assert status["phase"] == "Suspended"
    assert protocol(status) == ("False", "False", "False", "Suspended")
    assert conditions(status)["Available"] == ("False", "Suspended")
    assert conditions(status)["Suspended"] == ("True", "Suspended")
    assert not {"Progressing", "Degraded", "GPUAvailable"} & set(conditions(status))


def test_a_service_is_suspended_also_while_its_model_is_not_ready() -> None:
    cr = service(suspend=True)
    status = service_status(cr, None, facts(desired=0, model_ready=False, objects_exist=False), now=NOW)
    assert (status["phase"], protocol(status)[3]) == ("Suspended", "Suspended")


def test_replicas_of_a_suspended_service_are_stopping_until_they_are_gone() -> None:
    status = status_with(facts(ready=1, desired=0), {"suspended": True})
    assert (status["phase"], protocol(status)) == ("Suspended", ("False", "True", "False", "ReplicasStopping"))
    assert conditions(status)["Available"][0] == "True"


def test_a_resumed_service_starts_as_any_other() -> None:
    suspended = status_with(facts(desired=0), {"suspended": True})
    resumed = status_with(facts(), {}, suspended)
    assert resumed["phase"] == "Creating"
    assert conditions(resumed)["Suspended"] == ("False", "NotSuspended")
    assert conditions(resumed)["Available"] == ("False", "NoReadyReplicas")


def test_an_autoscaler_may_want_no_replica() -> None:
    status = status_with(facts(desired=0), {"autoscaling": Autoscaling(min_replicas=0, max_replicas=3)})
    assert (status["phase"], message(status, "Ready")) == ("Stopped", "The autoscaler has set zero replicas")


# --- the queue for GPUs -----------------------------------------------------------------------------------------------


def test_the_queue_says_how_long_it_is_and_who_comes_before() -> None:
    place = QueuePosition(position=3, length=5, ahead="prod/big")
    status = status_of(facts(pods=(waits_for("nvidia.com/gpu"),), queue=place), gpu=ONE_GPU)
    assert (status["queuePosition"], status["queueLength"]) == (3, 5)
    assert "waiting for nvidia.com/gpu: 1, number 3 of 5 in the queue, behind prod/big" in message(status, "Ready")
    assert status["schedulingMessage"].startswith("0/2 nodes are available")


def test_room_that_the_scheduler_makes_is_told() -> None:
    pod = waits_for("nvidia.com/gpu").model_copy(update={"nominated_node": "gpu-7"})
    status = status_of(facts(pods=(pod,)), gpu=ONE_GPU)
    assert "makes room on node gpu-7" in message(status, "Ready")


def test_some_replicas_may_serve_while_another_waits_in_the_queue() -> None:
    place = QueuePosition(position=1, length=1)
    status = status_of(facts(ready=1, desired=2, pods=(waits_for("nvidia.com/gpu"),), queue=place), gpu=ONE_GPU)
    assert (status["phase"], status["queuePosition"]) == ("Progressing", 1)
    assert conditions(status)["GPUAvailable"] == ("False", "InsufficientGPU")
    assert conditions(status)["Available"][0] == "True"


def test_a_gpu_that_no_node_has_is_waited_for_without_a_place_in_the_queue() -> None:
    why = "it asks for nvidia.com/gpu: 8 and the largest node has 4"
    status = status_of(facts(pods=(waits_for("nvidia.com/gpu", "8"),), never_fits=why), gpu=ModelGpu(count=8))
    # LLMKube's CLI lists the services in this phase.
    assert (status["phase"], status["schedulingStatus"]) == ("WaitingForGPU", "NoNodeFits")
    assert protocol(status) == ("False", "True", "False", "NoNodeFits")
    assert status["schedulingMessage"] == why
    assert status["waitingFor"] == "nvidia.com/gpu: 8"
    assert not {"queuePosition", "queueLength"} & set(status)
    assert conditions(status)["GPUAvailable"] == ("False", "InsufficientGPU")


def test_memory_that_no_node_has_is_no_wait_for_a_gpu() -> None:
    pod = PodFacts(name="svc-1", phase="Pending", unschedulable="0/2 nodes are available: 2 Insufficient memory.")
    status = status_of(facts(pods=(pod,), never_fits="512Gi of memory asked, and the largest node has 64Gi"))
    assert (status["phase"], status["schedulingStatus"]) == ("Creating", "NoNodeFits")
    assert not {"waitingFor", "queuePosition"} & set(status)


# --- a Model that failed ----------------------------------------------------------------------------------------------


def test_a_service_names_why_its_model_failed() -> None:
    why = "IntegrityCheckFailed: the file has another SHA-256"
    cr = service()
    status = service_status(cr, None, facts(model_ready=False, model_failed=why, objects_exist=False), now=NOW)
    assert status["phase"] == "Pending"
    assert protocol(status) == ("False", "False", "True", "ModelNotReady")
    assert message(status, "Ready") == f"spec.modelRef: Model `base` failed: {why}"
    waiting = service_status(cr, None, facts(model_ready=False, objects_exist=False), now=NOW)
    assert protocol(waiting) == ("False", "True", "False", "ModelNotReady")


def test_a_service_that_serves_names_the_failure_of_its_edited_model() -> None:
    status = service_status(service(), None, facts(ready=1, model_ready=False, model_failed="NotGguf: no"), now=NOW)
    assert protocol(status) == ("False", "False", "True", "ModelNotReady")
    assert conditions(status)["Available"][0] == "True"


def test_a_draft_model_that_failed_holds_the_service_as_its_main_model_does() -> None:
    problem = Problem(reason="ModelNotReady", message="draft Model `d` failed: NotGguf: no", terminal=True)
    status = service_status(service(), None, facts(model_ready=True, problem=problem), now=NOW)
    assert (status["phase"], protocol(status)) == ("Pending", ("False", "False", "True", "ModelNotReady"))


def test_who_lost_its_place_says_to_whom() -> None:
    taken = Problem(reason="Preempted", message="gave its place on node gpu-7 to prod/big (priority 100000 over 100)")
    waiting = status_of(facts(pods=(waits_for("nvidia.com/gpu"),), preemption=(taken,)), gpu=ONE_GPU)
    assert (waiting["phase"], protocol(waiting)[3]) == ("WaitingForGPU", "Preempted")
    assert "to prod/big (priority 100000 over 100); waiting for nvidia.com/gpu: 1" in message(waiting, "Ready")
    moment = status_of(facts(preemption=(taken,)))
    assert (moment["phase"], protocol(moment)[3]) == ("Creating", "Preempted")
    unnamed = status_of(facts(pods=(PodFacts(name="svc-1", node="gpu-7", preempted=True),)))
    assert protocol(unnamed)[3] == "Preempted"
    beside = facts(ready=1, desired=2, pods=(PodFacts(name="svc-0", node="gpu-1", ready=True),), preemption=(taken,))
    assert protocol(status_of(beside))[3] == "Preempted"
    starting = status_of(facts(pods=(PodFacts(name="svc-2", node="gpu-8"),), preemption=(taken,)))
    assert protocol(starting)[3] == "ReplicasStarting"
    assert status_of(facts(ready=1, preemption=(taken,)))["phase"] == "Ready"


def test_who_takes_a_place_says_whose() -> None:
    took = Problem(reason="PreemptedOthers", message="took the place of dev/small on node gpu-7 (priority 100 over 10)")
    status = status_of(facts(pods=(waits_for("nvidia.com/gpu"),), preemption=(took,)), gpu=ONE_GPU)
    assert protocol(status)[3] == "WaitingForGPU"
    assert "took the place of dev/small" in message(status, "Ready")


# --- what holds a service back ----------------------------------------------------------------------------------------


def test_a_quota_without_room_keeps_a_service_pending() -> None:
    quota = Problem(reason="QuotaExceeded", message="GPUQuota `team` allows 4 GPUs, 4 are used, this one asks for 2")
    status = status_of(facts(quota=quota, objects_exist=False))
    assert (status["phase"], protocol(status)) == ("Pending", ("False", "True", "False", "QuotaExceeded"))
    assert "GPUQuota `team` allows 4 GPUs" in message(status, "Progressing")
    assert "Degraded" not in conditions(status)


def test_a_quota_does_not_hide_that_replicas_serve() -> None:
    quota = Problem(reason="QuotaExceeded", message="no room")
    status = status_of(facts(ready=1, desired=3, quota=quota))
    assert (status["phase"], protocol(status)[3]) == ("Progressing", "QuotaExceeded")
    assert conditions(status)["Available"][0] == "True"


@pytest.mark.parametrize(
    "said",
    [
        'pods "svc-1" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=1, used: 4, limited: 4',
        'pods "svc-1" is forbidden: no PriorityClass with name gold was found',
        'pods "svc-1" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
    ],
)
def test_pods_that_the_api_refuses_are_told_in_its_words(said: str) -> None:
    status = status_of(facts(replica_failure=said))
    assert (status["phase"], protocol(status)) == ("Creating", ("False", "True", "False", "PodsRefused"))
    assert said in message(status, "Ready")


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        (ClaimFacts(name="c", found=True, phase="Lost"), "claim c with the model is Lost"),
        (ClaimFacts(name="c", found=False), "claim c with the model is missing"),
    ],
)
def test_a_cache_that_cannot_be_mounted_is_named(claim: ClaimFacts, told: str) -> None:
    pod = PodFacts(name="svc-1", unschedulable="0/1 nodes: pod has unbound immediate PersistentVolumeClaims.")
    status = status_of(facts(pods=(pod,), cache_claim=claim))
    assert (status["schedulingStatus"], protocol(status)[3]) == ("UnbindableModelCache", "UnbindableModelCache")
    assert told in message(status, "Ready")


def test_a_claim_that_waits_for_its_first_pod_is_no_cause() -> None:
    status = status_of(facts(cache_claim=ClaimFacts(name="c", found=True, phase="Pending")))
    assert protocol(status)[3] == "ReplicasStarting"


@pytest.mark.parametrize(
    ("memory", "fits", "reason"),
    [
        ({"asked_bytes": 2 * GIB}, ("False", "EstimateExceedsRequest"), "MemoryInsufficient"),
        ({"available_bytes": 3 * GIB}, ("False", "EstimateExceedsNodes"), "MemoryInsufficient"),
        ({"asked_bytes": 6 * GIB, "available_bytes": 8 * GIB}, ("True", "EstimateFits"), "ReplicasStarting"),
        ({"asked_bytes": 2 * GIB, "host_bytes": 3 * GIB}, ("True", "EstimateFits"), "ReplicasStarting"),
    ],
)
def test_want_of_memory_is_told_before_anything_is_downloaded(memory: Json, fits: tuple[str, str], reason: str) -> None:
    needed = MemoryFacts(weights_bytes=4 * GIB, cache_bytes=GIB // 2, compute_bytes=GIB // 2, **memory)
    status = status_of(facts(memory=needed, objects_exist=False))
    assert conditions(status)["MemoryFits"] == fits
    assert protocol(status)[3] == reason
    if reason == "MemoryInsufficient":
        assert "estimated to need 5.0 GiB" in message(status, "Ready")


def test_an_estimate_without_a_measure_says_nothing_of_fitting() -> None:
    status = status_of(facts(memory=MemoryFacts(weights_bytes=GIB, cache_bytes=0, compute_bytes=0)))
    assert "MemoryFits" not in conditions(status)
    assert status["memory"] == {"weights": "1024Mi", "kvCache": "0Ki", "compute": "0Ki", "total": "1024Mi"}


def test_a_model_on_its_way_is_told() -> None:
    pod = PodFacts(name="svc-1", container="model-downloader", init=True)
    status = status_of(facts(pods=(pod,)))
    assert (status["phase"], protocol(status)[3]) == ("Creating", "ModelDownloading")
    assert "pod svc-1 fetches the model" in message(status, "Ready")


def test_replicas_that_have_not_answered_yet_do_not_count() -> None:
    status = status_of(facts(desired=2, unproved_replicas=2))
    assert (status["phase"], status["unprovedReplicas"]) == ("Creating", 2)
    assert "2 healthy, but not yet checked by a completion" in message(status, "Ready")


# --- pods that fail ---------------------------------------------------------------------------------------------------


def test_a_failing_pod_gives_the_service_its_reason() -> None:
    status = status_of(facts(pods=(CRASHING,)))
    assert (status["phase"], protocol(status)) == ("Creating", ("False", "True", "False", "CrashLooping"))
    assert message(status, "Progressing") == (
        "0 of 1 replicas ready; pod svc-1: container llama-server exits (3 restarts) with exit code 1"
    )


def test_what_only_an_edit_can_mend_is_stalled() -> None:
    pod = PodFacts(name="svc-1", container="c", waiting_reason="InvalidImageName", image="UPPER")
    assert protocol(status_of(facts(pods=(pod,)))) == ("False", "False", "True", "ImagePullFailed")


def test_a_rollout_that_is_stuck_says_why_although_the_old_pods_serve() -> None:
    status = status_of(facts(ready=1, replicas=2, pods=(CRASHING,)))
    assert (status["phase"], protocol(status)) == ("Ready", ("False", "True", "False", "CrashLooping"))
    assert "the rollout is stuck: pod svc-1" in message(status, "Ready")


def test_a_failed_transfer_is_unhealthy_until_the_engine_starts() -> None:
    downloader: Json = {"name": "svc-1", "container": "model-downloader", "init": True}
    pod = PodFacts(**downloader, waiting_reason="Error", exit_code=66, waiting_message="ModelSourceNotFound: h: gone")
    failed = status_of(facts(pods=(pod,)))
    assert conditions(failed)["ModelTransferHealthy"] == ("False", "ModelSourceNotFound")
    assert protocol(failed)[3] == "ModelSourceNotFound"
    trying = status_of(facts(pods=(PodFacts(**downloader),)), service(failed))
    assert conditions(trying)["ModelTransferHealthy"] == ("False", "ModelSourceNotFound")
    running = PodFacts(name="svc-1", phase="Running")
    fetched = status_of(facts(pods=(running,)), service(failed))
    assert conditions(fetched)["ModelTransferHealthy"] == ("True", "ModelTransferSucceeded")
    edited = status_of(facts(), service(failed, generation=2))
    assert "ModelTransferHealthy" not in conditions(edited)
    assert "ModelTransferHealthy" not in conditions(status_of(facts(ready=1)))


def test_a_driver_that_is_too_old_is_incompatible_until_the_engine_serves() -> None:
    old = CRASHING.model_copy(update={"waiting_message": "CUDA driver version is insufficient"})
    failed = status_of(facts(pods=(old,)))
    assert conditions(failed)["DriverCompatible"] == ("False", "CUDADriverInsufficient")
    served = status_of(facts(ready=1), service(failed))
    assert conditions(served)["DriverCompatible"] == ("True", "RuntimeStarted")


# --- rollouts ---------------------------------------------------------------------------------------------------------


def test_a_change_that_waits_for_busy_replicas_is_told() -> None:
    deferred = Problem(reason="PodsBusy", message="2 replicas work on requests")
    status = status_of(facts(ready=2, desired=2, rollout=RolloutFacts(deferred=deferred)))
    assert (status["phase"], protocol(status)) == ("Ready", ("False", "True", "False", "RolloutDeferred"))
    assert conditions(status)["RolloutDeferred"] == ("True", "PodsBusy")
    forced = status_of(facts(ready=2, desired=2, rollout=RolloutFacts(timed_out=True)), service(status))
    assert conditions(forced)["RolloutDeferred"] == ("False", "IdleTimeoutExceeded")
    assert "RolloutDeferred" not in conditions(status_of(facts(ready=2, desired=2), service(forced)))


def test_a_rollout_past_its_deadline_is_degraded() -> None:
    late = Problem(reason="ProgressDeadlineExceeded", message="no progress for 600 s")
    status = status_of(facts(ready=1, desired=2, rollout=RolloutFacts(failed=late)))
    assert (status["phase"], protocol(status)[3]) == ("Progressing", "ProgressDeadlineExceeded")
    assert conditions(status)["Degraded"] == ("True", "Failed")
    with_cause = status_of(facts(pods=(CRASHING,), rollout=RolloutFacts(failed=late)))
    assert protocol(with_cause)[3] == "CrashLooping"


def test_a_service_that_was_rolled_back_serves_and_is_stalled() -> None:
    back = Problem(reason="CrashLooping", message="pods of the new template crash")
    status = status_of(facts(ready=1, rollout=RolloutFacts(rolled_back=back)))
    assert (status["phase"], protocol(status)) == ("Ready", ("False", "False", "True", "RolledBack"))
    assert conditions(status)["RolledBack"] == ("True", "CrashLooping")
    assert conditions(status)["Available"][0] == "True"
    assert "RolledBack" not in conditions(status_of(facts(ready=1), service(status, generation=2)))


def test_the_template_that_served_last_is_remembered() -> None:
    ready = status_of(facts(ready=1, template_hash="aaaa"))
    assert ready["servedTemplateHash"] == "aaaa"
    rolling = status_of(facts(ready=1, replicas=2, template_hash="bbbb"), service(ready))
    assert rolling["servedTemplateHash"] == "aaaa"
    assert status_of(facts(ready=1, template_hash="bbbb"), service(rolling))["servedTemplateHash"] == "bbbb"
    assert "servedTemplateHash" not in status_of(facts(template_hash="aaaa"))


def test_a_namespace_that_is_deleted_stalls_the_service() -> None:
    over = Problem(reason="NamespaceTerminating", message="namespace `ns` is being deleted", terminal=True)
    status = status_of(facts(problem=over))
    assert (status["phase"], protocol(status)) == ("Failed", ("False", "False", "True", "NamespaceTerminating"))


# --- what others do ---------------------------------------------------------------------------------------------------


def test_an_autoscaler_that_cannot_scale_is_named_in_its_words() -> None:
    why = "the HPA was unable to compute the replica count: no metrics returned from custom metrics API"
    status = status_of(facts(ready=1, autoscaler=AutoscalerFacts(problem=why)))
    assert conditions(status)["AutoscalerReady"] == ("False", "ScalingFailed")
    assert why in message(status, "AutoscalerReady")
    assert protocol(status)[0] == "True"
    well = status_of(facts(ready=1, autoscaler=AutoscalerFacts(kind="ScaledObject")), service(status))
    assert conditions(well)["AutoscalerReady"] == ("True", "ScalingActive")
    assert "AutoscalerReady" not in conditions(status_of(facts(ready=1), service(well)))


@pytest.mark.parametrize(
    ("gateway", "condition"),
    [
        (GatewayFacts(accepted=True, endpoint="https://ai.example"), ("True", "RouteAccepted")),
        (GatewayFacts(accepted=False, message="no listener"), ("False", "RouteNotAccepted")),
    ],
)
def test_a_route_from_outside_is_told(gateway: GatewayFacts, condition: tuple[str, str]) -> None:
    expose = Exposure(by="gateway", gateway="edge", model_name="m")
    status = status_with(facts(ready=1, gateway=gateway), {"expose": expose})
    assert conditions(status)["GatewayReady"] == condition
    told = {"routeReady": gateway.accepted, "authEnabled": False, "modelName": "m"}
    assert status["gateway"] == told | ({"endpoint": gateway.endpoint} if gateway.endpoint else {})


def test_the_hardware_that_computes_is_told() -> None:
    seen = AccelerationFacts(device="CUDA", layers_offloaded=33, layers_total=33)
    told = {"device": "CUDA", "layersOffloaded": 33, "layersTotal": 33}
    assert status_of(facts(ready=1, acceleration=seen))["acceleration"] == told


def test_pods_can_be_counted_by_the_selector_of_the_scale_subresource() -> None:
    assert status_of(facts())["selector"] == "app=svc,inference.llmkube.dev/service=svc"
    assert "selector" not in status_of(facts(hosted=HostedFacts(host="mac")), accelerator="metal")


@pytest.mark.parametrize(("fails", "reason"), [(True, "HostProcessFailing"), (False, "ModelDownloading")])
def test_a_process_that_goes_on_by_an_earlier_plan_is_told_of(fails: bool, reason: str) -> None:
    hosted = HostedFacts(host="mac", phase="BackingOff", earlier="host `mac`: it goes on", earlier_fails=fails)
    status = status_of(facts(ready=1, hosted=hosted), accelerator="metal")
    assert status["phase"] == "Ready"
    assert conditions(status)["Reconciling"] == ("True", reason)
    assert "1 of 1 replicas ready; host `mac`: it goes on" in str(status["conditions"])


def test_advice_on_sglang_is_given_and_taken_back() -> None:
    def judged(config: Json, status: Json | None = None) -> Json:
        cr = service(status, runtime="sglang", sglangConfig={"speculative": config})
        return service_status(cr, _sglang(), facts(), now=NOW)

    missing = judged({"enabled": True})
    assert conditions(missing)["SGLangSpecValid"] == ("False", "SpeculativeMissingConfig")
    unused = judged({"acceptThresholdAcc": 0.5})
    assert conditions(unused)["SGLangSpecValid"] == ("False", "SpeculativeAcceptThresholdUnused")
    assert conditions(judged({}, missing))["SGLangSpecValid"] == ("True", "ConfigValid")
    assert "SGLangSpecValid" not in conditions(judged({}))


def _sglang() -> DesiredService:
    return parsed(service()).model_copy(update={"engine": Sglang()})
