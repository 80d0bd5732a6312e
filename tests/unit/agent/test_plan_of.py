"""The plan that is read from a HostProcess, and the message if it is invalid."""

from __future__ import annotations

from typing import Any

import pytest

from agent.contract import ProcessPlan
from agent.server.cluster.plan_watch import PlanInvalid, plan_of

SPEC: dict[str, Any] = {"host": "mac", "service": "s", "argv": ["llama-server"], "serviceName": "s"}


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = plan_of({"spec": SPEC}, host="mac")
    assert plan.argv == ("llama-server",)
    assert ProcessPlan.model_validate(plan.model_dump(mode="json", by_alias=True)) == plan


def test_a_plan_without_completion_path_is_proved_by_health_alone() -> None:
    assert plan_of({"spec": SPEC}, host="mac").completion_path is None


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.host"),
        ({**SPEC, "argv": "llama-server"}, "spec.argv"),
        ({**SPEC, "unknown": 1}, "spec.unknown"),
        ({**SPEC, "host": "pc"}, "spec.host"),
    ],
)
def test_a_plan_that_cannot_be_read_names_the_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanInvalid, match=field):
        plan_of({"spec": spec}, host="mac")
