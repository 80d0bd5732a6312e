"""Services that are scaled by the requests at the gateways: their settings, and those that contradict them."""

from __future__ import annotations

from typing import Any

import pytest

from automation.serving.sleep_rule import unsupported_reason
from program.desired.errors import SpecInvalid
from program.desired.keys import ANNOTATION_SCALE_BY
from program.desired.replicas import with_replicas
from program.desired.service import Autoscaling, DesiredService, RequestScaling, ScalingMetric
from program.desired.workloads import PodSet, Workloads
from program.dialects.annotations import read_annotations
from program.dialects.dialect import Parsed
from program.dialects.llmaz.parse.playground import parse_playground
from program.dialects.llmkube.unsupported.service import unsupported_fields
from program.dialects.request_scaling import IDLE_TIMEOUT_S, OwnScaler, request_scaling
from tests.support.builders import service
from tests.unit.dialects.kserve.combining import service as llm_service
from tests.unit.dialects.kserve.parsing import parsed
from tests.unit.dialects.llmaz.objects import Cluster, open_model, playground
from tests.unit.dialects.services import parse
from tests.unit.dialects.services import service as inference_service

BY = {ANNOTATION_SCALE_BY: "requests"}
IDLE = {"herdsman.dev/idle-timeout": "15m"}
TARGET = {"herdsman.dev/target-requests": "8"}
LARGEST = {"herdsman.dev/max-replicas": "5"}


def read(annotations: dict[str, str], *, replicas: int = 1, **more: Any) -> RequestScaling | None:
    return request_scaling(annotations, read_annotations(annotations), replicas=replicas, **more)


@pytest.mark.parametrize(
    ("annotations", "autoscaling", "found"),
    [
        ({}, Autoscaling(max_replicas=3), None),
        (IDLE, None, None),
        (BY | IDLE, None, RequestScaling(min_replicas=2, max_replicas=2, idle_timeout_s=900.0)),
        (
            BY | TARGET,
            Autoscaling(min_replicas=2, max_replicas=5),
            RequestScaling(min_replicas=2, max_replicas=5, target=8),
        ),
        (
            BY | TARGET | IDLE,
            Autoscaling(min_replicas=2, max_replicas=5),
            RequestScaling(min_replicas=2, max_replicas=5, target=8, idle_timeout_s=900.0),
        ),
        (
            BY | TARGET,
            Autoscaling(min_replicas=0, max_replicas=5),
            RequestScaling(min_replicas=1, max_replicas=5, target=8, idle_timeout_s=IDLE_TIMEOUT_S),
        ),
        (BY | TARGET | LARGEST, None, RequestScaling(min_replicas=2, max_replicas=5, target=8)),
        (
            BY | {"herdsman.dev/wake-timeout": "9m"},
            Autoscaling(min_replicas=0, max_replicas=2),
            RequestScaling(min_replicas=2, max_replicas=2, idle_timeout_s=IDLE_TIMEOUT_S),
        ),
    ],
)
def test_the_settings(
    annotations: dict[str, str], autoscaling: Autoscaling | None, found: RequestScaling | None
) -> None:
    assert read(annotations, replicas=2, autoscaling=autoscaling) == found


@pytest.mark.parametrize(
    ("annotations", "more", "field"),
    [
        ({ANNOTATION_SCALE_BY: "cpu"}, {}, "metadata.annotations[herdsman.dev/scale-by]"),
        (BY, {}, "metadata.annotations[herdsman.dev/scale-by]"),
        (BY, {"autoscaling": Autoscaling(max_replicas=2)}, "metadata.annotations[herdsman.dev/scale-by]"),
        (TARGET, {}, "metadata.annotations[herdsman.dev/target-requests]"),
        (
            BY | {"herdsman.dev/target-requests": "0"},
            {"autoscaling": Autoscaling(max_replicas=2)},
            "metadata.annotations[herdsman.dev/target-requests]",
        ),
        (BY | TARGET | IDLE, {}, "metadata.annotations[herdsman.dev/target-requests]"),
        (
            BY | TARGET,
            {"autoscaling": Autoscaling(max_replicas=2), "pinned": True},
            "metadata.annotations[herdsman.dev/target-requests]",
        ),
        (LARGEST, {}, "metadata.annotations[herdsman.dev/max-replicas]"),
        (BY | IDLE | LARGEST, {}, "metadata.annotations[herdsman.dev/max-replicas]"),
        (
            BY | TARGET | LARGEST,
            {"autoscaling": Autoscaling(max_replicas=2)},
            "metadata.annotations[herdsman.dev/max-replicas]",
        ),
        (BY | TARGET | LARGEST, {"replicas": 6}, "metadata.annotations[herdsman.dev/max-replicas]"),
        (
            BY | TARGET | {"herdsman.dev/max-replicas": "many"},
            {},
            "metadata.annotations[herdsman.dev/max-replicas]",
        ),
        (
            BY | IDLE,
            {"own": OwnScaler("spec.elasticConfig", 1, 2, metrics_field="spec.elasticConfig.metrics")},
            "spec.elasticConfig.metrics",
        ),
        (BY, {"own": OwnScaler("spec.elasticConfig", 1, 2)}, "metadata.annotations[herdsman.dev/scale-by]"),
        (
            BY | TARGET | LARGEST,
            {"own": OwnScaler("spec.elasticConfig", 1, 2)},
            "metadata.annotations[herdsman.dev/max-replicas]",
        ),
        (
            BY | TARGET,
            {
                "own": OwnScaler(
                    "spec.scaling",
                    1,
                    2,
                    behavior={"scaleDown": {"stabilizationWindowSeconds": "1m"}},
                    behavior_field="spec.scaling.wva.hpa.behavior",
                )
            },
            "spec.scaling.wva.hpa.behavior.scaleDown.stabilizationWindowSeconds",
        ),
        (
            BY | TARGET,
            {"autoscaling": Autoscaling(max_replicas=2, metrics=(ScalingMetric(type="Resource", name="cpu"),))},
            "spec.autoscaling.metrics",
        ),
        (
            BY | IDLE | {"herdsman.dev/scale-query": "up"},
            {},
            "metadata.annotations[herdsman.dev/scale-query]",
        ),
    ],
)
def test_contradictions_name_the_field(annotations: dict[str, str], more: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        read(annotations, **more)
    assert refused.value.field == field


def test_no_engine_of_a_sleeping_service_runs_and_its_scheduler_stays() -> None:
    parts = (("main", 2), ("prefill", 3), ("scheduler", 1))
    pods = tuple(PodSet(part=part, name=f"svc-{part}", template={}, replicas=number) for part, number in parts)
    described = service(workloads=Workloads(pods=pods, services=()))

    def replicas(number: int) -> list[int | None]:
        changed = with_replicas(described, number)
        assert changed.workloads is not None and changed.replicas == number
        return [each.replicas for each in changed.workloads.pods]

    assert replicas(0) == [0, 0, 1]
    assert replicas(4) == [4, 3, 1]


def test_an_inference_service_has_bounds_and_no_autoscaler() -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 3}
    found = parse(inference_service(annotations=BY | TARGET, replicas=0, autoscaling=scaling))
    assert (found.autoscaling, found.replicas) == (None, 1)
    assert found.by_requests == RequestScaling(max_replicas=3, target=8, idle_timeout_s=IDLE_TIMEOUT_S)
    stopped = parse(inference_service(annotations=BY | IDLE, replicas=0))
    assert stopped.replicas == 0, "zero replicas stop a service without an autoscaler"


def test_a_service_on_hosts_follows_the_requests_unless_it_names_its_host() -> None:
    on_hosts = {"herdsman.dev/host-selector": "room=1"}
    scaling = {"minReplicas": 2, "maxReplicas": 3}
    described = inference_service(annotations=BY | TARGET | on_hosts, autoscaling=scaling)
    found = parse(described)
    assert found.by_requests == RequestScaling(min_replicas=2, max_replicas=3, target=8)
    assert [each.field for each in unsupported_fields(described, found)] == []
    fixed = inference_service(annotations=on_hosts, autoscaling=scaling)
    assert "spec.autoscaling" in [each.field for each in unsupported_fields(fixed, parse(fixed))]
    with pytest.raises(SpecInvalid) as refused:
        parse(inference_service(annotations=BY | TARGET | {"herdsman.dev/host": "mac"}, autoscaling=scaling))
    assert refused.value.field == "metadata.annotations[herdsman.dev/target-requests]"


def test_a_key_of_llama_cpp_is_no_hindrance() -> None:
    annotations = {**BY, **IDLE, "herdsman.dev/api-key-secret": "keys"}
    with_gateway = parse(inference_service(annotations=annotations))
    assert unsupported_reason(with_gateway, address="") is None
    del annotations[ANNOTATION_SCALE_BY]
    alone = unsupported_reason(parse(inference_service(annotations=annotations)), address="10.0.0.1")
    assert alone is not None and ANNOTATION_SCALE_BY in alone.message


def read_playground(annotations: dict[str, str], **spec: Any) -> Parsed:
    return parse_playground(playground(annotations, **spec), Cluster(open_model()))


def unused(found: Parsed) -> list[str]:
    return [each.field for each in found.unsupported]


def test_a_playground_sleeps_and_scales_by_requests() -> None:
    found = read_playground(BY | IDLE)
    assert found.desired.by_requests == RequestScaling(idle_timeout_s=900.0)
    assert [each.field for each in found.unsupported] == []
    scaled = read_playground(BY | TARGET | LARGEST, replicas=2)
    assert scaled.desired.by_requests == RequestScaling(min_replicas=2, max_replicas=5, target=8)
    assert [each.field for each in scaled.unsupported] == []
    ignored = read_playground(IDLE)
    assert [each.field for each in ignored.unsupported] == ["metadata.annotations[herdsman.dev/idle-timeout]"]


def test_the_requests_scale_a_playground_in_the_bounds_of_its_elastic_config() -> None:
    bounds = {"minReplicas": 2, "maxReplicas": 4}
    scaled = read_playground(BY | TARGET, elasticConfig=bounds)
    assert scaled.desired.by_requests == RequestScaling(min_replicas=2, max_replicas=4, target=8)
    assert scaled.desired.replicas == 2, "within the bounds from the start"
    main = scaled.desired.workloads.main if scaled.desired.workloads is not None else None
    assert main is not None and (main.replicas, main.scaler) == (2, None), "the loop writes the number"
    assert unused(scaled) == []
    sleeping = read_playground(BY | IDLE, replicas=3, elasticConfig=bounds)
    assert sleeping.desired.by_requests == RequestScaling(min_replicas=3, max_replicas=4, idle_timeout_s=900.0)
    assert unused(sleeping) == ["spec.elasticConfig.maxReplicas"]


def test_the_speed_of_an_elastic_config_holds_and_its_metrics_contradict_the_requests() -> None:
    down = {"scaleDown": {"stabilizationWindowSeconds": 60}}

    def with_trigger(hpa: dict[str, Any]) -> Parsed:
        return read_playground(BY | TARGET, elasticConfig={"maxReplicas": 4, "scaleTrigger": {"hpa": hpa}})

    slow = with_trigger({"behavior": down})
    assert slow.desired.by_requests == RequestScaling(max_replicas=4, target=8, down_window_s=60.0, behavior=down)
    assert unused(slow) == []
    faster = with_trigger({"behavior": {**down, "scaleUp": {"stabilizationWindowSeconds": 5}}})
    assert unused(faster) == ["spec.elasticConfig.scaleTrigger.hpa.behavior"]
    with pytest.raises(SpecInvalid) as refused:
        with_trigger({"metrics": [{"type": "Resource"}]})
    assert refused.value.field == "spec.elasticConfig.scaleTrigger.hpa.metrics"


def test_the_bounds_of_an_elastic_config_hold_on_hosts() -> None:
    on_hosts = {"herdsman.dev/host-selector": "room=1"}
    elastic = {"minReplicas": 2, "maxReplicas": 3}
    found = read_playground(BY | TARGET | on_hosts, elasticConfig=elastic)
    assert found.desired.by_requests == RequestScaling(min_replicas=2, max_replicas=3, target=8)
    assert "spec.elasticConfig" not in unused(found)
    assert "spec.elasticConfig" in unused(read_playground(on_hosts, elasticConfig=elastic))


def read_llm_service(spec: dict[str, Any], more: dict[str, str] = IDLE) -> tuple[DesiredService, list[str]]:
    cr = llm_service(spec)
    cr["metadata"]["annotations"] = {**(cr["metadata"].get("annotations") or {}), **BY, **more}
    found = parsed(cr)
    assert found.desired is not None
    return found.desired, unused(found)


def test_an_llm_inference_service_sleeps_by_requests() -> None:
    assert read_llm_service({})[0].by_requests == RequestScaling(idle_timeout_s=900.0)
    assert read_llm_service({}, TARGET | LARGEST)[0].by_requests == RequestScaling(max_replicas=5, target=8)


def test_the_requests_scale_an_llm_inference_service_in_the_bounds_of_its_scaling() -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 4, "wva": {"hpa": {}}}
    found, lost = read_llm_service({"scaling": scaling}, TARGET)
    assert found.by_requests == RequestScaling(min_replicas=2, max_replicas=4, target=8)
    assert found.workloads is not None
    assert (found.replicas, found.workloads.main.replicas, found.workloads.main.scaler, lost) == (2, 2, None, [])


def test_the_sleep_of_keda_becomes_a_sleep_by_requests() -> None:
    keda = {"idleReplicaCount": 0, "cooldownPeriod": 120, "pollingInterval": 5}
    found, lost = read_llm_service({"scaling": {"maxReplicas": 3, "wva": {"keda": keda}}}, TARGET)
    assert found.by_requests == RequestScaling(max_replicas=3, target=8, idle_timeout_s=120.0)
    assert lost == ["spec.scaling.wva.keda.pollingInterval"]


def test_prefill_pods_follow_the_serving_pods_in_their_own_bounds() -> None:
    prefill = {"scaling": {"minReplicas": 2, "maxReplicas": 3, "wva": {"hpa": {}}}}
    found, lost = read_llm_service({"prefill": prefill}, TARGET | LARGEST)

    def replicas(number: int) -> list[int | None]:
        workloads = with_replicas(found, number).workloads
        assert workloads is not None
        return [each.replicas for each in workloads.pods if each.part in ("main", "prefill")]

    assert [replicas(number) for number in (0, 1, 3, 5)] == [[0, 0], [1, 2], [3, 3], [5, 3]]
    assert found.workloads is not None and not [field for field in lost if "scaling" in field]
    assert [each.scaler for each in found.workloads.pods] == [None] * len(found.workloads.pods)


@pytest.mark.parametrize(("prefill", "field"), [(False, "spec.scaling"), (True, "spec.prefill.scaling")])
def test_triggers_of_keda_contradict_the_requests(prefill: bool, field: str) -> None:
    scaling = {"scaling": {"maxReplicas": 4, "keda": {"triggers": [{"type": "cpu"}]}}}
    with pytest.raises(SpecInvalid) as refused:
        read_llm_service({"prefill": scaling} if prefill else scaling)
    assert refused.value.field == f"{field}.keda.triggers"
