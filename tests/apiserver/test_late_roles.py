"""A RoleBinding that is applied before its role: created a moment later, and previewed as a creation."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.preview.dry_run import dry_run_object
from components.naming import FIELD_MANAGER, TYPE_ROUTING
from components.providers.kubernetes_calls import KubernetesCalls
from components.providers.kubernetes_errors import Refused
from components.providers.kubernetes_objects import Token
from components.providers.kubernetes_waiting import Call
from components.rendered import RenderedObject
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden
from kubeapi.kinds import Kind
from tests.support.loop import eventually
from tools.localcluster import LocalCluster

RBAC = "rbac.authorization.k8s.io/v1"
ROLES = Kind(RBAC, "Role", "roles", True)
ROLE_BINDINGS = Kind(RBAC, "RoleBinding", "rolebindings", True)
RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]


@pytest.fixture
def limited(control_plane: LocalCluster, kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[KubeClient]:
    """A client that may grant only rights that it has, like the loop, so that the API server reads the role.

    For a client that may bind any role, it does not.
    """
    admin = KubeClient.from_kubeconfig(str(kubeconfig))
    rules = [
        *RULES,
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["roles", "rolebindings"],
            "verbs": ["get", "create", "patch"],
        },
    ]
    admin.create(ROLES, namespace, {**role(namespace), "metadata": {"name": "giver"}, "rules": rules})
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "giver"}
    given = {**binding(namespace), "metadata": {"name": "giver"}, "subjects": [user]}
    admin.create(ROLE_BINDINGS, namespace, {**given, "roleRef": {**given["roleRef"], "name": "giver"}})
    control_plane.write_kubeconfig(tmp_path / "kubeconfig", user="giver", groups=())
    made = KubeClient.from_kubeconfig(str(tmp_path / "kubeconfig"))
    eventually(lambda: allowed(made, namespace), what="the rights")
    yield made
    made.close()
    admin.close()


def allowed(client: KubeClient, namespace: str) -> bool:
    try:
        client.get(ROLES, namespace, "giver")
    except Forbidden:
        return False
    return True


def role(namespace: str) -> dict[str, Any]:
    return {"apiVersion": RBAC, "kind": "Role", "metadata": {"name": "reader", "namespace": namespace}, "rules": RULES}


def binding(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": {"name": "readers", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "picker", "namespace": namespace}],
    }


def call(manifest: dict[str, Any], **more: Any) -> Call:
    return Call(Token(manifest["apiVersion"], manifest["kind"]), manifest, **more)


def test_a_binding_waits_for_its_role(limited: KubeClient, namespace: str) -> None:
    calls = KubernetesCalls(limited, field_manager=FIELD_MANAGER)
    late = threading.Timer(0.5, lambda: calls.create(call(role(namespace))))
    late.start()
    made = calls.create(call(binding(namespace)))
    late.join()
    assert made is not None and made["metadata"]["name"] == "readers"


def test_a_binding_whose_role_never_comes_is_refused_with_its_name(limited: KubeClient, namespace: str) -> None:
    started = time.monotonic()
    with pytest.raises(Refused, match="reader"):
        KubernetesCalls(limited, field_manager=FIELD_MANAGER).create(call(binding(namespace), timeout_s=1.0))
    assert time.monotonic() - started < 10


def test_a_binding_is_previewed_before_its_role_is_there(limited: KubeClient, namespace: str) -> None:
    manifest = binding(namespace)
    found = dry_run_object(limited, RenderedObject("picker-binding", TYPE_ROUTING, manifest), None)
    assert (found.change.op, found.change.refused) == ("create", "")
