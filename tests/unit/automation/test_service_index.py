"""Which services a change concerns: by Model, by claim, by the name of their Kubernetes Service."""

from __future__ import annotations

from typing import Any

from automation.cache.service_index import ServiceIndex, models_of
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json


def service(name: str, **spec: Any) -> Json:
    return {"metadata": {"namespace": "prod", "name": name}, "spec": {"modelRef": "base", **spec}}


def made(name: str, *, claims: tuple[str, ...] = ()) -> Json:
    metadata = {"namespace": "prod", "name": name, "labels": {naming.LABEL_SERVICE: name}}
    return {"metadata": metadata, "spec": {"claims": claims}}


def test_a_name_with_dots_is_found_by_the_service_that_it_becomes() -> None:
    index = ServiceIndex()
    index.service_changed(None, service("llama-3.1"))
    assert index.services_named("prod", "llama-3-1") == ["llama-3.1"]
    index.service_changed(None, service("llama-3-1"))
    assert index.rivals("prod", "llama-3.1") == ["llama-3-1"]
    index.service_changed(service("llama-3.1"), None)
    assert index.services_named("prod", "llama-3-1") == ["llama-3-1"]


def test_all_models_that_a_service_needs_are_known() -> None:
    assert models_of(service("a")) == {"base"}
    assert models_of(service("a", speculativeDecoding={"draftModelRef": "small"})) == {"base", "small"}
    assert models_of({"metadata": {}, "spec": {}}) == set()


def test_services_are_found_by_the_claim_that_their_pods_mount() -> None:
    index = ServiceIndex()
    index.object_changed(kinds.DEPLOYMENTS, None, made("a", claims=("weights",)))
    index.object_changed(kinds.DEPLOYMENTS, None, made("b", claims=("weights", "more")))
    assert index.services_of_claim("prod", "weights") == ["a", "b"]
    index.object_changed(kinds.DEPLOYMENTS, made("a", claims=("weights",)), made("a"))
    index.object_changed(kinds.DEPLOYMENTS, made("b"), None)
    assert index.services_of_claim("prod", "weights") == index.services_of_claim("prod", "more") == []


def test_what_belongs_to_no_service_is_not_kept() -> None:
    index = ServiceIndex()
    nobodys = {"metadata": {"namespace": "prod", "name": "x", "labels": {}}, "spec": {}}
    assert index.object_changed(kinds.DEPLOYMENTS, None, nobodys) == ""
    assert index.services_with_objects() == []
    index.object_changed(kinds.SERVICES, None, made("a"))
    index.object_changed(kinds.SERVICES, made("a"), None)
    assert index.services_with_objects() == []
