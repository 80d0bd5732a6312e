"""How the loop finds KServe's dialect, and the labels of a service and of its objects."""

from __future__ import annotations

from typing import Any

import pytest

from program.dialects.registry import DIALECTS, dialect_named, dialect_of
from tests.unit.dialects.kserve.combining import service
from tests.unit.dialects.kserve.parsing import annotated, made, parsed

KSERVE = dialect_named("kserve")


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_it_is_found_by_the_kind_of_any_version(version: str) -> None:
    cr = {"apiVersion": f"serving.kserve.io/{version}", "kind": "LLMInferenceService"}
    assert dialect_of(cr) == KSERVE.name == "kserve"


@pytest.mark.parametrize(
    ("route", "labels"),
    [
        ({"group": "chat", "weight": 1}, {"serving.kserve.io/routing-group": "chat"}),
        ({}, {}),
        ({"group": "not a label"}, {}),
        ({"group": 5}, {}),
        ("wreck", {}),
    ],
)
def test_a_service_is_labelled_with_its_group_even_where_the_rest_makes_no_sense(route: Any, labels: Any) -> None:
    assert KSERVE.labels(service({"router": {"route": route}})) == labels
    assert KSERVE.labels({"kind": "x", "metadata": {"name": "n"}, "spec": "wreck"}) == {}


def test_pods_and_pool_are_found_by_the_labels_that_services_are_known_by() -> None:
    """The loop finds objects by their labels. It would not delete a superfluous object without them."""
    cr = annotated(
        {"serving.kserve.io/exp-dra-device-class": "gpu.example.com"},
        prefill={"parallelism": {"data": 2, "dataLocal": 1}, "worker": {"containers": []}},
        scaling={"maxReplicas": 2, "wva": {"hpa": {}}},
        router={"scheduler": {"tokenizer": {}}, "route": {}},
    )
    cr["spec"]["prefill"]["scaling"] = cr["spec"]["scaling"]
    workloads = made(cr)
    mark = DIALECTS["kserve"].mark
    labelled = [
        *workloads.pods,
        *workloads.services,
        *workloads.access,
        *workloads.claim_templates,
        *(pods.scaler for pods in workloads.pods if pods.scaler is not None),
        *(thing for thing in (workloads.pool, workloads.route, workloads.certificate) if thing is not None),
    ]
    assert len(labelled) > 12
    assert {mark.service_of(thing.labels) for thing in labelled} == {"chat"}
    assert {mark.service_of(pods.template["metadata"]["labels"]) for pods in workloads.pods} == {"chat"}


def test_an_ingress_that_is_named_is_said_to_have_no_effect() -> None:
    found = parsed(service({"router": {"ingress": {"refs": [{"name": "web"}]}}}))
    [problem] = found.unsupported
    assert (problem.reason, problem.field) == ("NotHonoured", "spec.router.ingress")
    assert "-kserve-workload-svc" in problem.message
