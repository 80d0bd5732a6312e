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
from program.dialects.request_scaling import IDLE_TIMEOUT_S, request_scaling
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
        (BY | IDLE, {"other_scaler": "spec.elasticConfig"}, "spec.elasticConfig"),
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


def test_a_playground_sleeps_by_requests_and_not_besides_its_autoscaler() -> None:
    def read_playground(annotations: dict[str, str], **spec: Any) -> Parsed:
        return parse_playground(playground(annotations, **spec), Cluster(open_model()))

    found = read_playground(BY | IDLE)
    assert found.desired.by_requests == RequestScaling(idle_timeout_s=900.0)
    assert [each.field for each in found.unsupported] == []
    scaled = read_playground(BY | TARGET | LARGEST, replicas=2)
    assert scaled.desired.by_requests == RequestScaling(min_replicas=2, max_replicas=5, target=8)
    assert [each.field for each in scaled.unsupported] == []
    ignored = read_playground(IDLE)
    assert [each.field for each in ignored.unsupported] == ["metadata.annotations[herdsman.dev/idle-timeout]"]
    trigger = {"hpa": {"metrics": []}}
    with pytest.raises(SpecInvalid) as refused:
        read_playground(BY | IDLE, elasticConfig={"maxReplicas": 4, "scaleTrigger": trigger})
    assert refused.value.field == "spec.elasticConfig"


@pytest.mark.parametrize(("prefill", "field"), [(False, "spec.scaling"), (True, "spec.prefill.scaling")])
def test_an_llm_inference_service_sleeps_by_requests_and_not_besides_its_autoscaler(prefill: bool, field: str) -> None:
    def read_service(spec: dict[str, Any], more: dict[str, str] = IDLE) -> DesiredService:
        cr = llm_service(spec)
        cr["metadata"]["annotations"] = {**(cr["metadata"].get("annotations") or {}), **BY, **more}
        found = parsed(cr).desired
        assert found is not None
        return found

    assert read_service({}).by_requests == RequestScaling(idle_timeout_s=900.0)
    assert read_service({}, TARGET | LARGEST).by_requests == RequestScaling(max_replicas=5, target=8)
    scaling = {"scaling": {"maxReplicas": 4, "wva": {"hpa": {}}}}
    with pytest.raises(SpecInvalid) as refused:
        read_service({"prefill": scaling} if prefill else scaling)
    assert refused.value.field == field
