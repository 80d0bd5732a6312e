"""Pods: placement, devices, the user's volumes, the operator's images, rollouts and termination."""

from __future__ import annotations

from typing import Any

import pytest

from components.options import RenderOptions
from program.desired.engines import Generic, LlamaCpp, SecretKey, Vllm
from program.desired.errors import SpecInvalid
from program.desired.model import Gpu, GpuVendor
from program.desired.service import Autoscaling, Disruption, ModelStorage, PodSettings, RolloutPolicy
from tests.support.builders import service
from tests.unit.components.views import container, deployment_spec, pod, template

SHARED_POOL = RenderOptions(shared_gpu_selector={"gpu": "shared", "zone": "a"})


def test_what_the_user_says_about_placement_is_passed_on() -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    spec = pod(service(pod=PodSettings(affinity=affinity, topology_spread=(spread,))))
    assert spec["affinity"] == affinity
    assert spec["topologySpreadConstraints"] == [spread]


def test_volumes_of_the_users_come_after_the_weights() -> None:
    extra = {"name": "scratch", "emptyDir": {}}
    mount = {"name": "scratch", "mountPath": "/scratch"}
    desired = service(pod=PodSettings(extra_volumes=(extra,), extra_volume_mounts=(mount,)))
    assert [one["name"] for one in pod(desired)["volumes"]] == ["model-cache", "scratch"]
    assert container(desired)["volumeMounts"][-1] == mount


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (PodSettings(extra_volumes=({"name": "model-cache", "emptyDir": {}},)), "spec.extraVolumes[0].name"),
        (
            PodSettings(extra_volume_mounts=({"name": "x", "mountPath": "/models"},)),
            "spec.extraVolumeMounts[0].mountPath",
        ),
    ],
)
def test_a_volume_in_the_place_of_the_weights_is_refused_by_name(settings: PodSettings, field: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        pod(service(pod=settings))
    assert refused.value.field == field


def test_ephemeral_storage_is_asked_for_and_limited() -> None:
    desired = service(pod=PodSettings(ephemeral_storage="20Gi", memory_request="1Gi"), gpu=Gpu(count=1))
    assert container(desired)["resources"] == {
        "requests": {"memory": "1Gi", "ephemeral-storage": "20Gi"},
        "limits": {"ephemeral-storage": "20Gi", "nvidia.com/gpu": "1"},
    }


def test_the_engine_listens_where_it_is_told_to() -> None:
    args = container(service(bind_address="127.0.0.1"))["args"]
    assert args[args.index("--host") + 1] == "127.0.0.1"
    args = container(service())["args"]
    assert args[args.index("--host") + 1] == "::"


# --- Devices ----------------------------------------------------------------------------------------------------------


def test_a_resource_of_its_own_name_is_counted_and_its_taint_tolerated() -> None:
    desired = service(gpu=Gpu(count=1, resource="nvidia.com/mig-1g.5gb", toleration_key="nvidia.com/gpu"))
    assert container(desired)["resources"]["limits"] == {"nvidia.com/mig-1g.5gb": "1"}
    assert pod(desired)["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    ]
    assert pod(service(gpu=Gpu(count=1, resource="acme.io/npu")))["tolerations"][0]["key"] == "acme.io/npu"


def test_a_toleration_that_the_user_repeats_is_written_once() -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    without_operator = {key: value for key, value in taint.items() if key != "operator"}
    spot = {"key": "spot", "operator": "Exists"}
    for_a_while = {**spot, "tolerationSeconds": 60}
    own = (taint, without_operator, spot, for_a_while, spot)
    assert pod(service(gpu=Gpu(count=1), pod=PodSettings(tolerations=own)))["tolerations"] == [taint, spot, for_a_while]


def test_claimed_devices_are_named_and_not_counted() -> None:
    claims = ({"name": "gpu", "resourceClaimTemplateName": "big"}, {"name": "nic", "resourceClaimName": "nic-1"})
    desired = service(gpu=Gpu(count=1, claims=claims))
    assert pod(desired)["resourceClaims"] == list(claims)
    assert container(desired)["resources"] == {"claims": [{"name": "gpu"}, {"name": "nic"}]}
    assert deployment_spec(desired)["strategy"] == {"type": "Recreate"}


def test_shared_gpus_are_on_the_nodes_that_the_operator_set_aside() -> None:
    desired = service(gpu=Gpu(count=1, shared=True), pod=PodSettings(node_selector={"zone": "b"}))
    assert pod(desired, SHARED_POOL)["nodeSelector"] == {"gpu": "shared", "zone": "b"}
    assert "strategy" not in deployment_spec(desired, SHARED_POOL), "a second pod can share it, too"
    assert "nodeSelector" not in pod(service(gpu=Gpu(count=1)), SHARED_POOL)


def test_without_such_nodes_sharing_is_refused_by_name() -> None:
    with pytest.raises(SpecInvalid) as refused:
        pod(service(gpu=Gpu(count=1, shared=True)))
    assert refused.value.field == "spec.resources.gpuSharing.mode"
    assert "nodeSelector" not in pod(service(gpu=Gpu(count=1, vendor=GpuVendor.AMD, shared=True)))


def test_render_nodes_belong_to_a_group_of_the_node() -> None:
    options = RenderOptions(render_group=109)
    amd = service(gpu=Gpu(count=1, vendor=GpuVendor.AMD, resource="devic.es/dri-render"))
    assert pod(amd, options)["securityContext"]["supplementalGroups"] == [109]
    assert "supplementalGroups" not in pod(amd)["securityContext"]
    assert "supplementalGroups" not in pod(service(gpu=Gpu(count=1)), options)["securityContext"]
    own = amd.model_copy(update={"pod": PodSettings(pod_security_context={"runAsUser": 5})})
    assert pod(own, options)["securityContext"] == {"runAsUser": 5}


def test_the_operators_image_stands_in_for_the_built_in_one() -> None:
    options = RenderOptions(runtime_images={"llamacpp": "mirror/cpu", "llamacpp-amd": "mirror/amd"})

    def image(**fields: Any) -> str:
        return str(container(service(**fields), options)["image"])

    assert image() == "mirror/cpu"
    assert image(gpu=Gpu(count=1, vendor=GpuVendor.AMD)) == "mirror/amd"
    assert image(gpu=Gpu(count=1)) == "mirror/cpu"
    assert image(image="my/own") == "my/own"
    assert image(engine=Vllm()).startswith("vllm/")


# --- Rollouts and ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "away", "strategy"),
    [
        (None, "", None),
        (None, "1", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}),
        (None, "0", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}}),
        (Gpu(count=1), "", {"type": "Recreate"}),
        (Gpu(count=1), "25%", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 0}}),
        (Gpu(count=1), "0", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}}),
    ],
)
def test_pods_are_replaced_as_their_hardware_and_the_user_allow(
    gpu: Gpu | None, away: str, strategy: dict[str, Any] | None
) -> None:
    spec = deployment_spec(service(gpu=gpu, disruption=Disruption(max_unavailable=away)))
    assert spec.get("strategy") == strategy


def test_the_revision_history_is_as_long_as_asked_for() -> None:
    assert deployment_spec(service(revision_history_limit=0))["revisionHistoryLimit"] == 0
    assert "revisionHistoryLimit" not in deployment_spec(service())


def test_a_suspended_service_has_no_replica_and_no_autoscaler_and_keeps_its_template() -> None:
    scaled = service(replicas=3, autoscaling=Autoscaling(max_replicas=5), suspended=True)
    assert deployment_spec(scaled)["replicas"] == 0
    assert template(scaled) == template(service())


@pytest.mark.parametrize(
    ("disruption", "kept"),
    [
        (Disruption(), True),
        (Disruption(protect_startup=False), False),
        (Disruption(protect_startup=False, protect_always=True), True),
    ],
)
def test_node_autoscalers_are_kept_off_as_asked_for(disruption: Disruption, kept: bool) -> None:
    annotations = template(service(disruption=disruption))["metadata"].get("annotations", {})
    assert ("karpenter.sh/do-not-disrupt" in annotations) is kept


def test_a_readiness_gate_waits_for_the_completion() -> None:
    assert pod(service(readiness_gate=True))["readinessGates"] == [{"conditionType": "herdsman.dev/completed"}]
    assert "readinessGates" not in pod(service())


def test_a_pod_that_may_finish_its_requests_gets_the_time_for_it() -> None:
    patient = service(rollout=RolloutPolicy(wait_for_idle=True, idle_timeout_s=120), endpoint={"port": 9000})
    assert pod(patient)["terminationGracePeriodSeconds"] == 150
    command = container(patient)["lifecycle"]["preStop"]["exec"]["command"]
    assert command[3:] == ["drain", "http://127.0.0.1:9000/slots", "120", "9000", "slots"]
    bound = patient.model_copy(update={"bind_address": "fd00::1"})
    assert "http://[fd00::1]:9000/slots" in container(bound)["lifecycle"]["preStop"]["exec"]["command"]
    other = service(engine=Generic(), image="x", rollout=RolloutPolicy(wait_for_idle=True))
    assert container(other)["lifecycle"] == {"preStop": {"sleep": {"seconds": 15}}}
    assert pod(other)["terminationGracePeriodSeconds"] == 330


def test_force_is_about_the_rollout_and_changes_no_pod() -> None:
    waits = RolloutPolicy(wait_for_idle=True)
    assert template(service(rollout=waits)) == template(service(rollout=waits.model_copy(update={"force": True})))


def test_an_api_key_is_taken_from_its_secret() -> None:
    desired = service(engine=LlamaCpp(), api_key=SecretKey(name="keys", key="api-key"))
    entry = next(one for one in container(desired)["env"] if one["name"] == "LLAMA_API_KEY")
    assert entry["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "api-key"}}
    assert "api-key" not in str(container(desired)["args"])


def test_where_the_weights_lie_on_a_claim_of_the_services_own() -> None:
    desired = service(storage=ModelStorage(claim_name="mine"))
    assert pod(desired)["volumes"][0]["persistentVolumeClaim"] == {"claimName": "mine"}
