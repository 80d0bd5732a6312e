"""The look-up of a static fleet's objects: many of a kind are listed, and the result is that of single reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from components.naming import FIELD_MANAGER
from components.providers.kubernetes_calls import KubernetesCalls
from components.providers.kubernetes_standing import standing
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden
from kubeapi.json_types import Json
from tests.support.loop import eventually
from tools.localcluster import LocalCluster

TYPE = "kubernetes:core/v1:ConfigMap"
OURS, FOREIGN, MISSING = tuple(f"ours-{number}" for number in range(12)), "foreign", "missing"


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    yield made
    made.close()


@pytest.fixture
def objects(client: KubeClient, namespace: str) -> Json:
    """The arguments of a look-up: objects of Herdsman's, one of another owner, one that is missing."""
    names = [*OURS, FOREIGN, MISSING]
    for name in names[:-1]:
        manager = "helm" if name == FOREIGN else FIELD_MANAGER
        client.apply(kinds.CONFIG_MAPS, namespace, config_map(name, namespace), field_manager=manager)
    return {"objects": [{"type": TYPE, "metadata": config_map(name, namespace)["metadata"]} for name in names]}


@pytest.fixture
def reader(control_plane: LocalCluster, client: KubeClient, namespace: str, tmp_path: Path) -> Iterator[KubeClient]:
    """A client that may read single objects, and may not list them."""
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    client.create(kinds.ROLES, namespace, {"metadata": {"name": "reader"}, "rules": rules})
    binding = {
        "metadata": {"name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
    }
    client.create(kinds.ROLE_BINDINGS, namespace, binding)
    control_plane.write_kubeconfig(tmp_path / "reader", user="reader", groups=())
    made = KubeClient.from_kubeconfig(str(tmp_path / "reader"))
    eventually(lambda: may_read(made, namespace), what="the right to read")
    yield made
    made.close()


def may_read(client: KubeClient, namespace: str) -> bool:
    try:
        return bool(client.get(kinds.CONFIG_MAPS, namespace, FOREIGN))
    except Forbidden:
        return False


def config_map(name: str, namespace: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"key": "value"},
    }


def test_many_objects_of_a_kind_are_listed_by_one_request(client: KubeClient, namespace: str, objects: Json) -> None:
    calls = KubernetesCalls(client, field_manager=FIELD_MANAGER)
    standing(calls, {"objects": objects["objects"][:1]})  # the discovery of the kind
    single = [standing(calls, {"objects": [each]}) for each in objects["objects"]]
    before = client.requests_total
    found = standing(calls, objects)
    assert client.requests_total == before + 1
    assert found["standing"] == [entry for each in single for entry in each["standing"]]
    assert len(found["standing"]) == 12
    assert found["conflicts"] == [words for each in single for words in each["conflicts"]]
    [conflict] = found["conflicts"]
    assert f"ConfigMap `{namespace}/{FOREIGN}` already exists and belongs to field manager `helm`" in conflict


def test_objects_are_read_one_by_one_where_they_may_not_be_listed(
    client: KubeClient, objects: Json, reader: KubeClient
) -> None:
    by_admin = standing(KubernetesCalls(client, field_manager=FIELD_MANAGER), objects)
    assert standing(KubernetesCalls(reader, field_manager=FIELD_MANAGER), objects) == by_admin
