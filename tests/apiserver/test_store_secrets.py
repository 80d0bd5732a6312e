"""Annotations of Secrets configure stores. The loop reads them from a real API server with its usual rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.cache.store_secrets import StoreSecrets
from automation.preview.lookup import PreviewLookup
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden
from kubeapi.json_types import Json
from tests.support.loop import eventually
from tests.support.rights import await_rights
from tools.localcluster import LocalCluster

GROUP = "rbac.authorization.k8s.io"
REGION = "serving.kserve.io/s3-region"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.fixture
def admin(control_plane: LocalCluster) -> Iterator[KubeClient]:
    administrator = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    yield administrator
    administrator.close()


@pytest.fixture
def loop(admin: KubeClient, control_plane: LocalCluster, namespace: str, tmp_path: Path) -> Iterator[KubeClient]:
    """A user that may create and patch Secrets in the namespace, as the loop may."""
    user = f"stores-{namespace}"
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch"]}]
    role = {"apiVersion": f"{GROUP}/v1", "kind": "Role", "metadata": {"name": user}, "rules": rules}
    admin.create(kinds.ROLES, namespace, role)
    binding = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": user},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    }
    admin.create(kinds.ROLE_BINDINGS, namespace, binding)
    await_rights(admin, user, namespace, *rules)
    kubeconfig = tmp_path / "kubeconfig"
    control_plane.write_kubeconfig(kubeconfig, user=user)
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    yield client
    client.close()


def secret(region: str) -> Json:
    annotations = {REGION: region, LAST_APPLIED: '{"stringData":{"AWS_SECRET_ACCESS_KEY":"very-secret"}}'}
    metadata = {"name": "keys", "annotations": annotations}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "stringData": {"AWS_SECRET_ACCESS_KEY": "very-secret"},
    }


def test_only_what_annotations_say_of_a_store_comes_to_the_loop(
    admin: KubeClient, loop: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bytes] = []
    plain = KubeClient._request

    def overheard(self: KubeClient, *args: Any) -> bytes:
        answer = plain(self, *args)
        answers.append(answer)
        return answer

    made = admin.create(kinds.SECRETS, namespace, secret("eu"))
    monkeypatch.setattr(KubeClient, "_request", overheard)
    stores = StoreSecrets(loop, changed=lambda *_: None)
    found = stores.get(namespace, "keys")
    assert found is not None and found["metadata"]["annotations"] == {REGION: "eu"}
    assert "very-secret" not in str(found)
    assert answers and not any(b'"data"' in answer for answer in answers)
    monkeypatch.undo()
    live = admin.get(kinds.SECRETS, namespace, "keys")
    assert live["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"], "a look changes nothing"
    with pytest.raises(Forbidden):
        loop.get(kinds.SECRETS, namespace, "keys")
    assert stores.get(namespace, "missing") is None and not stores.pending(namespace, "missing")
    stores.stop()


def test_a_change_of_the_annotations_brings_the_service_back(
    admin: KubeClient, loop: KubeClient, namespace: str
) -> None:
    changed: list[tuple[str, str]] = []
    stores = StoreSecrets(loop, changed=lambda *at: changed.append(at), look_every_s=0.2)
    assert stores.get(namespace, "keys") is None
    admin.create(kinds.SECRETS, namespace, secret("eu"))
    eventually(lambda: changed == [(namespace, "keys")], what="the Secret to be noticed")
    admin.patch(kinds.SECRETS, namespace, "keys", {"stringData": {"AWS_SECRET_ACCESS_KEY": "rotated"}})
    admin.patch(kinds.SECRETS, namespace, "keys", {"metadata": {"annotations": {REGION: "us"}}})
    eventually(lambda: changed == [(namespace, "keys")] * 2, what="the new region to be noticed, and no new key")
    found = stores.get(namespace, "keys")
    assert found is not None and found["metadata"]["annotations"] == {REGION: "us"}
    admin.delete(kinds.SECRETS, namespace, "keys")
    eventually(lambda: len(changed) == 3, what="the deletion to be noticed")
    assert stores.get(namespace, "keys") is None
    stores.stop()


def test_without_the_right_the_secret_counts_as_absent(control_plane: LocalCluster, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    control_plane.write_kubeconfig(kubeconfig, user="nobody-of-stores")
    nobody = KubeClient.from_kubeconfig(str(kubeconfig))
    stores = StoreSecrets(nobody, changed=lambda *_: None)
    assert stores.get("default", "keys") is None and not stores.pending("default", "keys")
    stores.stop()
    nobody.close()


def test_a_preview_reads_no_more_of_it(admin: KubeClient, namespace: str) -> None:
    admin.create(kinds.SECRETS, namespace, secret("eu"))
    found = PreviewLookup(admin)(kinds.SECRETS, namespace, "keys")
    assert found is not None and found["metadata"]["annotations"] == {REGION: "eu"}
    assert "very-secret" not in str(found)
