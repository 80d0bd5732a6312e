"""The annotations that say how the loop treats drift."""

from __future__ import annotations

import pytest

from program.desired.errors import SpecInvalid
from program.desired.service import DriftPolicy
from program.dialects.annotations import read_annotations

DRIFT, IGNORE = "herdsman.dev/drift", "herdsman.dev/drift-ignore"


def test_without_a_word_everything_is_repaired() -> None:
    assert read_annotations({}).drift == read_annotations({DRIFT: ""}).drift == DriftPolicy()
    assert DriftPolicy().of("Service") == "repair"


def test_one_word_is_for_all_kinds_and_a_pair_for_one() -> None:
    policy = read_annotations({DRIFT: "report, Deployment = repair,"}).drift
    assert (policy.of("Service"), policy.of("Deployment")) == ("report", "repair")


def test_ignored_fields_stand_by_kind() -> None:
    text = 'Service/spec.type, Deployment/metadata.labels["a.b/c"],Deployment/spec.template.spec.containers[one].image'
    assert read_annotations({IGNORE: text}).drift.ignored == {
        "Service": ("spec.type",),
        "Deployment": ('metadata.labels["a.b/c"]', "spec.template.spec.containers[one].image"),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (DRIFT, "yes"),
        (DRIFT, "Pod=report"),
        (DRIFT, "=report"),
        (DRIFT, "Service="),
        (IGNORE, "spec.type"),
        (IGNORE, "Service/"),
        (IGNORE, "Service/spec"),
        (IGNORE, "Service/status.loadBalancer"),
        (IGNORE, "Pod/spec.nodeName"),
        (IGNORE, "Service/spec..type"),
        (IGNORE, 'Service/metadata.labels["a'),
        (IGNORE, "Service/spec." + "[9999]" * 3 + "x"),
    ],
)
def test_what_makes_no_sense_names_its_annotation(name: str, value: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        read_annotations({name: value})
    assert refused.value.field == f"metadata.annotations[{name}]"
