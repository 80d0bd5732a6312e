"""A dry run of an object that does not exist has the outcome of the apply that the provider sends."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from automation.preview.dry_creation import dry_run_creation
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Conflict
from tools.localcluster import LocalCluster

CONTAINER = {
    "name": "engine",
    "image": "example.com/engine:1",
    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    "ports": [{"containerPort": 8080}, {"containerPort": 9090}],
}
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "svc", "labels": {"app": "svc"}},
    "spec": {
        "selector": {"matchLabels": {"app": "svc"}},
        "template": {"metadata": {"labels": {"app": "svc"}}, "spec": {"containers": [CONTAINER]}},
    },
}
ASSIGNED = ("creationTimestamp", "managedFields", "resourceVersion", "uid")


@pytest.fixture
def client(control_plane: LocalCluster) -> KubeClient:
    return KubeClient.from_kubeconfig(str(control_plane.kubeconfig))


def with_container(**fields: Any) -> dict[str, Any]:
    found = copy.deepcopy(DEPLOYMENT)
    found["spec"]["template"]["spec"]["containers"][0] |= fields
    return found


def applied(client: KubeClient, namespace: str, wanted: dict[str, Any]) -> dict[str, Any]:
    return client.apply(kinds.DEPLOYMENTS, namespace, wanted, field_manager=naming.FIELD_MANAGER, dry_run=True)


def content(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ASSIGNED}
    return {**obj, "metadata": metadata}


def test_a_new_object_is_as_the_apply_would_make_it_and_is_not_stored(client: KubeClient, namespace: str) -> None:
    before = client.requests_total
    found = dry_run_creation(client, kinds.DEPLOYMENTS, namespace, DEPLOYMENT)
    assert client.requests_total - before == 1
    assert content(found) == content(applied(client, namespace, DEPLOYMENT))
    assert found["spec"]["replicas"] == 1, "with defaults"
    assert not client.list(kinds.DEPLOYMENTS, namespace)["items"]


@pytest.mark.parametrize(
    "wanted",
    [
        with_container(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        with_container(ports=[{"containerPort": 8080}, {"containerPort": 8080}]),
        with_container(volumeMounts=[{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"}]),
        with_container(unknownField=1),
        with_container(image=7),
        with_container(name="Not A Name"),
    ],
    ids=["env", "ports", "mounts", "unknown", "type", "name"],
)
def test_what_the_apply_refuses_is_refused_in_its_words(
    client: KubeClient, namespace: str, wanted: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as of_apply:
        applied(client, namespace, wanted)
    with pytest.raises(ApiError) as found:
        dry_run_creation(client, kinds.DEPLOYMENTS, namespace, wanted)
    assert (type(found.value), str(found.value)) == (type(of_apply.value), str(of_apply.value))


def test_an_object_that_was_made_meanwhile_is_a_conflict(client: KubeClient, namespace: str) -> None:
    client.create(kinds.DEPLOYMENTS, namespace, DEPLOYMENT)
    with pytest.raises(Conflict):
        dry_run_creation(client, kinds.DEPLOYMENTS, namespace, DEPLOYMENT)
