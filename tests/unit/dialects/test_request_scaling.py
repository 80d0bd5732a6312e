"""Services that are scaled by the requests at the gateways: their settings, and those that contradict them."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.errors import SpecInvalid
from program.desired.keys import ANNOTATION_SCALE_BY
from program.desired.replicas import with_replicas
from program.desired.service import Autoscaling, RequestScaling, ScalingMetric
from program.desired.workloads import PodSet, Workloads
from program.dialects.annotations import read_annotations
from program.dialects.request_scaling import IDLE_TIMEOUT_S, request_scaling
from tests.support.builders import service

BY = {ANNOTATION_SCALE_BY: "requests"}
IDLE = {"herdsman.dev/idle-timeout": "15m"}
TARGET = {"herdsman.dev/target-requests": "8"}


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
            {"autoscaling": Autoscaling(max_replicas=2), "on_host": True},
            "metadata.annotations[herdsman.dev/target-requests]",
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
