"""Fields without effect are listed with their path; fields that take effect are not."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from tests.unit.dialects.kserve.combining import service
from tests.unit.dialects.kserve.parsing import annotated, parsed

DRA = "serving.kserve.io/exp-dra-"


def told(cr: Json, *objects: Json) -> dict[str, str]:
    """Return the messages about a service, by field."""
    return {problem.field: problem.message for problem in parsed(cr, *objects).unsupported}


@pytest.mark.parametrize(
    ("spec", "field", "word"),
    [
        ({"replica": 2}, "spec.replica", "not a field"),
        ({"router": {"scheduler": {"foo": 1}}}, "spec.router.scheduler.foo", "not a field"),
        ({"router": {"ingress": {}}}, "spec.router.ingress", "chat-kserve-workload-svc"),
        ({"router": {"gateway": {}}}, "spec.router.gateway", "route: {}"),
        ({"router": {"gateway": {"refs": [{"name": "g"}]}}}, "spec.router.gateway", "route: {}"),
        ({"prefill": {}}, "spec.prefill", "scheduler: {}"),
        ({"prefill": {}, "router": {"route": {}}}, "spec.prefill", "scheduler: {}"),
        (
            {"router": {"scheduler": {"pool": {"ref": {"name": "p"}}, "replicas": 2}}},
            "spec.router.scheduler.replicas",
            "pool.ref",
        ),
        (
            {"router": {"scheduler": {"pool": {"ref": {"name": "p"}, "spec": {}}}}},
            "spec.router.scheduler.pool.spec",
            "pool.ref",
        ),
        (
            {"template": {"initContainers": [{"name": "x"}, {"name": "storage-initializer", "args": ["a"]}]}},
            "spec.template.initContainers[1].args",
            "model.uri",
        ),
        (
            {"model": {"uri": "pvc://claim", "confidential": {"enabled": True}}},
            "spec.model.confidential",
            "downloaded",
        ),
    ],
)
def test_what_has_no_effect_is_named(spec: Json, field: str, word: str) -> None:
    found = told(service(spec))
    assert list(found) == [field]
    assert word in found[field]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"router": {"gateway": {}, "route": {}, "scheduler": {"replicas": 2}}, "prefill": {}},
        {"router": {"scheduler": {"pool": {"ref": {"name": "p"}}}}},
        # A foreign route may lead to a foreign endpoint picker.
        {"router": {"route": {"http": {"refs": [{"name": "r"}]}}}, "prefill": {}},
        {"template": {"initContainers": [{"name": "storage-initializer", "image": "mine:1"}]}},
        {"model": {"uri": "hf://acme/tiny", "confidential": {"enabled": True}}},
        {"model": {"uri": "pvc://claim", "confidential": {"enabled": False}}},
        {"template": {"hostname": "h"}, "router": {"scheduler": {"config": {"inline": {"any": 1}}}}},
    ],
)
def test_what_is_given_is_not(spec: Json) -> None:
    assert told(service(spec)) == {}


def test_a_slip_in_an_annotation_for_devices_is_named() -> None:
    annotations: dict[str, Any] = {f"{DRA}device-class": "gpu.example.com", f"{DRA}device-cont": "2"}
    found = told(annotated(annotations))
    assert list(found) == [f"metadata.annotations[{DRA}device-cont]"]
    assert "device-count" in next(iter(found.values()))
