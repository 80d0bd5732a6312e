"""Known defects of LLMKube's statuses that Herdsman does not have: C6, C7, C11 and C14."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.facts import (
    AutoscalerFacts,
    GatewayFacts,
    HostedFacts,
    MemoryFacts,
    PodFacts,
    Problem,
    QueuePosition,
    RolloutFacts,
    ServiceFacts,
)
from program.desired.model import Gpu, ModelGpu
from program.dialects.llmkube.status.service import service_status
from tests.support.statuses import LATER, NOW, conditions, facts, parsed, protocol, service, status_of

GIB = 1 << 30
ONE_GPU = ModelGpu(count=1)
CRASHING = PodFacts(name="svc-1", container="llama-server", waiting_reason="CrashLoopBackOff", exit_code=1, restarts=3)


def waits_for(resource: str, count: str = "1") -> PodFacts:
    told = f"0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient {resource}."
    return PodFacts(name="svc-1", unschedulable=told, requests={resource: count})


@pytest.mark.parametrize(
    ("model", "resource", "count"),
    [
        (ModelGpu(count=1), "nvidia.com/gpu", "1"),
        (ModelGpu(count=2, vendor="amd"), "amd.com/gpu", "2"),
        (ModelGpu(count=1, vendor="intel"), "gpu.intel.com/i915", "1"),
        (ONE_GPU, "nvidia.com/mig-1g.10gb", "1"),
        (ONE_GPU, "devic.es/dri-render", "1"),
        (ONE_GPU, "example.com/own-gpu", "4"),
    ],
)
def test_c7_any_gpu_resource_is_waited_for_by_what_the_pod_asks(model: Any, resource: str, count: str) -> None:
    status = status_of(facts(pods=(waits_for(resource, count),)), service(resources={"gpu": 0}), gpu=model)
    assert (status["phase"], status["waitingFor"]) == ("WaitingForGPU", f"{resource}: {count}")
    assert (status["schedulingStatus"], protocol(status)[3]) == ("InsufficientGPU", "WaitingForGPU")


def test_c7_devices_asked_for_by_claims_are_waited_for_too() -> None:
    gpu = Gpu(count=1, claims=({"name": "gpu", "resourceClaimTemplateName": "one"},))
    cr = service()
    pod = PodFacts(name="svc-1", unschedulable="0/1 nodes are available: 1 cannot allocate all claims.")
    status = service_status(cr, parsed(cr).model_copy(update={"gpu": gpu}), facts(pods=(pod,)), now=NOW)
    assert (status["phase"], status["waitingFor"]) == ("WaitingForGPU", "resourceclaims.resource.k8s.io: 1")


def test_c6_replicas_are_those_that_exist_and_the_target_is_the_autoscalers() -> None:
    cr = service(replicas=1, autoscaling={"minReplicas": 1, "maxReplicas": 5})
    scaling = status_of(facts(ready=2, desired=4, replicas=3), cr)
    assert (scaling["phase"], scaling["desiredReplicas"], scaling["replicas"]) == ("Progressing", 4, 3)
    scaled = status_of(facts(ready=4, desired=4, replicas=4), cr)
    assert (scaled["phase"], scaled["replicas"], scaled["readyReplicas"]) == ("Ready", 4, 4)


def test_c11_what_a_host_says_of_its_memory_is_not_overwritten() -> None:
    said = HostedFacts(
        host="mac",
        phase="Failed",
        reason="InsufficientMemory",
        message="needs 12 GiB, 8 GiB are free",
        heartbeat_age_s=5,
    )
    first = status_of(facts(hosted=said), accelerator="metal")
    assert (first["schedulingStatus"], protocol(first)[3]) == ("InsufficientMemory", "MemoryInsufficient")
    assert "needs 12 GiB, 8 GiB are free" in first["schedulingMessage"]
    again = status_of(facts(hosted=said), service(first), now=LATER, accelerator="metal")
    assert again is first


def _everything() -> ServiceFacts:
    downloader: Json = {"name": "svc-2", "container": "model-downloader", "init": True, "waiting_reason": "Error"}
    late = Problem(reason="ProgressDeadlineExceeded", message="late")
    return facts(
        pods=(
            PodFacts(**downloader, exit_code=1, waiting_message="ModelSourceNotFound: x"),
            waits_for("nvidia.com/gpu"),
        ),
        queue=QueuePosition(position=1, length=1),
        memory=MemoryFacts(weights_bytes=GIB, cache_bytes=0, compute_bytes=0, asked_bytes=1),
        autoscaler=AutoscalerFacts(problem="no metrics"),
        rollout=RolloutFacts(deferred=Problem(reason="PodsBusy", message="busy"), failed=late, rolled_back=late),
        gateway=GatewayFacts(accepted=False),
    )


def test_c14_no_condition_outlives_its_cause() -> None:
    troubled = status_of(_everything(), gpu=ONE_GPU)
    assert {"Degraded", "ModelTransferHealthy", "MemoryFits", "RolledBack"} <= set(conditions(troubled))
    well = status_of(facts(ready=1), service(troubled), now=LATER, gpu=ONE_GPU)
    assert protocol(well) == ("True", "False", "False", "Serving")
    false = {kind for kind, (value, _) in conditions(well).items() if value == "False"}
    assert false == {"Reconciling", "Stalled", "Suspended"}
    assert not {"Progressing", "Degraded", "GPUAvailable", "RolledBack", "RolloutDeferred"} & set(conditions(well))


def test_c14_a_pass_that_sees_the_same_writes_nothing() -> None:
    troubled = status_of(_everything(), gpu=ONE_GPU)
    assert status_of(_everything(), service(troubled), now=LATER, gpu=ONE_GPU) is troubled


def test_c14_every_condition_names_the_generation_and_keeps_its_time() -> None:
    first = status_of(_everything(), gpu=ONE_GPU)
    second = status_of(_everything(), service(first, generation=2), now=LATER, gpu=ONE_GPU)
    assert {c["observedGeneration"] for c in second["conditions"]} == {2}
    assert {c["lastTransitionTime"] for c in second["conditions"]} == {"2026-11-21T10:00:00Z"}


def test_c14_transition_times_change_only_with_the_status() -> None:
    crashing = status_of(facts(pods=(CRASHING,)))
    other = status_of(facts(pods=(CRASHING.model_copy(update={"restarts": 4}),)), service(crashing), now=LATER)
    assert other is not crashing
    assert {c["lastTransitionTime"] for c in other["conditions"]} == {"2026-11-21T10:00:00Z"}
