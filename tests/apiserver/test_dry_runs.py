"""The dry run of an object that a preview shows: none where an apply would change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from automation.preview.dry_run import dry_run_object
from components.naming import FIELD_MANAGER
from components.rendered import RenderedObject
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.fakes.rendered import service


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    yield made
    made.close()


@pytest.fixture(params=["deployment", "service"])
def each(request: pytest.FixtureRequest, namespace: str) -> RenderedObject:
    """An object as it is rendered."""
    objects = {obj.part: obj for obj in service("chat", namespace=namespace).objects}
    return objects[request.param]


def applied(client: KubeClient, each: RenderedObject) -> Json:
    kind = client.mapping(each.manifest["apiVersion"], each.kind)
    return client.apply(kind, each.manifest["metadata"]["namespace"], each.manifest, field_manager=FIELD_MANAGER)


def edited(each: RenderedObject, **fields: Any) -> RenderedObject:
    metadata = {**each.manifest["metadata"], **fields}
    return replace(each, manifest={**each.manifest, "metadata": metadata})


def test_an_object_that_stands_as_it_was_applied_costs_no_request(client: KubeClient, each: RenderedObject) -> None:
    live = applied(client, each)
    before = client.requests_total
    assert dry_run_object(client, each, live).change.op == "same"
    assert client.requests_total == before


def test_fields_of_other_clients_do_not_matter(client: KubeClient, each: RenderedObject) -> None:
    applied(client, each)
    kind = client.mapping(each.manifest["apiVersion"], each.kind)
    patch = {"metadata": {"annotations": {"example.com/note": "mine"}}}
    live = client.patch(kind, each.manifest["metadata"]["namespace"], "chat", patch, field_manager="someone")
    before = client.requests_total
    assert dry_run_object(client, each, live).change.op == "same"
    assert client.requests_total == before


def test_a_changed_a_new_and_a_removed_field_are_found(client: KubeClient, each: RenderedObject) -> None:
    wanted = edited(each, annotations={"example.com/a": "1", "example.com/b": "2"})
    live = applied(client, wanted)
    for notes in ({"example.com/a": "1", "example.com/b": "3"}, {"example.com/a": "1"}, {}):
        assert dry_run_object(client, edited(each, annotations=notes), live).change.op == "update", notes
    more = edited(each, annotations={**wanted.manifest["metadata"]["annotations"], "example.com/c": "3"})
    assert dry_run_object(client, more, live).change.op == "update"


def test_a_field_that_another_client_changed_is_found(client: KubeClient, each: RenderedObject) -> None:
    wanted = edited(each, annotations={"example.com/a": "1"})
    applied(client, wanted)
    kind = client.mapping(each.manifest["apiVersion"], each.kind)
    patch = {"metadata": {"annotations": {"example.com/a": "theirs"}}}
    live = client.patch(kind, each.manifest["metadata"]["namespace"], "chat", patch, field_manager="someone")
    assert dry_run_object(client, wanted, live).change.op == "update"
