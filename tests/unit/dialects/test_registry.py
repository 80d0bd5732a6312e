"""Names of services of all dialects in commands, and how the service of an object is found by its labels and owner."""

from __future__ import annotations

import pytest

from automation.cache.owners import labels_of, process_selector_of, selector_of, service_of
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from program.dialects.registry import (
    dialect_by_word,
    dialect_of,
    is_part_of_another,
    key_of,
    qualified,
    split_name,
)


def cr(kind: Kind, name: str = "chat", *, controller: Kind | None = None) -> Json:
    owners = [{**_typed(controller), "name": "pl", "uid": "u0", "controller": True}] if controller else []
    return {**_typed(kind), "metadata": {"name": name, "namespace": "ns", "ownerReferences": owners}}


def _typed(kind: Kind) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind}


def made(labels: Json | None = None, owner: Kind | None = None) -> Json:
    metadata: Json = {"name": "x", "namespace": "ns", "labels": labels or {}}
    if owner is not None:
        metadata["ownerReferences"] = [{**_typed(owner), "name": "owner", "uid": "u1", "controller": True}]
    return {"metadata": metadata}


@pytest.mark.parametrize(
    ("word", "dialect"),
    [
        ("isvc", "llmkube"),
        ("InferenceService", "llmkube"),
        ("inferenceservices.inference.llmkube.dev", "llmkube"),
        ("llmisvc", "kserve"),
        ("llminferenceservices", "kserve"),
        ("playground", "llmaz"),
        ("pl", "llmaz"),
        ("service.inference.llmaz.io", "llmaz-service"),
        ("llmaz-service", "llmaz-service"),
        ("service", None),
        ("services", None),
        ("inferenceservices.serving.kserve.io", None),
        ("", None),
    ],
)
def test_a_kind_is_named_as_with_kubectl_or_by_its_dialect(word: str, dialect: str | None) -> None:
    assert dialect_by_word(word) == dialect


def test_a_name_alone_means_any_kind_and_a_wrong_word_is_told() -> None:
    assert split_name("chat") == (None, "chat")
    assert split_name("playground/chat") == ("llmaz", "chat")
    for dialect in ("llmkube", "kserve", "llmaz", "llmaz-service"):
        assert split_name(qualified(dialect, "chat")) == (dialect, "chat")
    for wrong in ("deployment/chat", "kserve/", "/chat"):
        with pytest.raises(ValueError, match="is not a kind of service"):
            split_name(wrong)


def test_kinds_of_one_name_are_told_apart_by_their_group_and_versions_are_not() -> None:
    assert dialect_of(cr(kinds.SERVICES)) == ""
    assert dialect_of(cr(kinds.LLMAZ_SERVICES)) == "llmaz-service"
    assert dialect_of({"apiVersion": "serving.kserve.io/v1alpha1", "kind": "LLMInferenceService"}) == "kserve"
    assert dialect_of({"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}) == ""
    assert key_of(cr(kinds.PLAYGROUNDS)) == ServiceKey("llmaz", "ns", "chat")


def test_a_service_that_a_playground_controls_is_part_of_it() -> None:
    assert is_part_of_another(cr(kinds.LLMAZ_SERVICES, controller=kinds.PLAYGROUNDS))
    assert not is_part_of_another(cr(kinds.LLMAZ_SERVICES))


@pytest.mark.parametrize("key", [ServiceKey(dialect, "ns", "chat") for dialect in ("llmkube", "kserve", "llmaz")])
def test_what_was_made_for_a_service_is_found_by_its_labels(key: ServiceKey) -> None:
    assert service_of(made(labels_of(key))) == key
    wanted = dict(part.split("=") for part in selector_of(key.dialect, (key.name,)).split(","))
    assert wanted == labels_of(key)


def test_an_owner_of_a_kind_of_ours_goes_before_labels_and_any_other_does_not() -> None:
    labels = labels_of(ServiceKey("kserve", "ns", "chat"))
    assert service_of(made(labels, kinds.PLAYGROUNDS)) == ServiceKey("llmaz", "ns", "owner")
    assert service_of(made(labels, kinds.REPLICA_SETS)) == ServiceKey("kserve", "ns", "chat")
    assert service_of(made({"app.kubernetes.io/name": "chat"})) is None
    assert service_of(made(labels | {"app.kubernetes.io/part-of": "shop"})) is None


def test_processes_on_hosts_carry_one_label_and_the_dialect_beside_it() -> None:
    process = made({"inference.llmkube.dev/service": "chat", "herdsman.dev/dialect": "kserve"})
    assert service_of(process) == ServiceKey("kserve", "ns", "chat")
    assert process_selector_of("llmkube", ("a", "b")) == "inference.llmkube.dev/service in (a,b)"
    assert process_selector_of("kserve", ("a",)) == "herdsman.dev/dialect=kserve,inference.llmkube.dev/service=a"


def test_many_services_are_chosen_by_the_mark_of_their_dialect() -> None:
    assert selector_of("kserve") == "app.kubernetes.io/part-of=llminferenceservice"
    assert selector_of("llmaz", ("b", "a", "a")) == "herdsman.dev/playground in (a,b)"
