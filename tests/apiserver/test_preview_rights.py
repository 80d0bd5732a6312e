"""`herdsman preview` by a user with rights in one namespace only, in a cluster without the CRDs of other dialects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.cli.main import invoke
from automation.install import objects
from automation.install.options import InstallOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import controlplane
from tests.support.definitions import install_crds
from tests.support.previews import apply_model, model_cr, service_cr
from tests.support.rights import await_rights
from tools.localcluster import LocalCluster

RBAC = "rbac.authorization.k8s.io"
# The relevant parts of Kubernetes' role `edit`. The controller that aggregates this role does not run here.
BUILT_IN = {"apiGroups": ["", "apps", "autoscaling", "policy", "networking.k8s.io"], "resources": ["*"], "verbs": ["*"]}


@pytest.fixture(scope="module")
def plane() -> Iterator[LocalCluster]:
    """An API server without controllers."""
    with controlplane.running(("etcd", "kube-apiserver")) as cluster:
        install_crds(controlplane.Api(cluster))
        yield cluster


def test_services_of_other_dialects_that_a_user_may_not_read_do_not_end_a_preview(
    plane: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = KubeClient.from_kubeconfig(str(plane.kubeconfig))
    documents = objects.documents(InstallOptions())
    [edit] = [each["rules"] for each in documents if each["metadata"]["name"] == objects.EDIT_ROLE]
    with controlplane.Api(plane).namespace() as namespace:
        metadata = {"name": "editor"}
        role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [*edit, BUILT_IN]}
        subjects = [{"apiGroup": RBAC, "kind": "User", "name": "editor"}]
        reference = {"apiGroup": RBAC, "kind": "Role", "name": "editor"}
        binding = {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": subjects}
        del binding["rules"]
        client.create(kinds.ROLES, namespace, role)
        client.create(kinds.ROLE_BINDINGS, namespace, binding)
        await_rights(client, "editor", namespace, *edit, BUILT_IN)
        plane.write_kubeconfig(tmp_path / "editor", user="editor")
        apply_model(client, namespace, model_cr())
        client.create(kinds.INFERENCE_SERVICES, namespace, service_cr())

        def preview(*words: str) -> tuple[int, Json, str]:
            code = invoke(["preview", *words, "-n", namespace, f"--kubeconfig={tmp_path / 'editor'}", "-o", "json"])
            out, err = capsys.readouterr()
            return code, json.loads(out or "{}"), err

        name = service_cr()["metadata"]["name"]
        for words in (("--live", name), ("--all",)):
            code, found, said = preview(*words)
            assert code == 2, (found, said)
            [service] = found["services"]
            assert service["name"] == name and not found["errors"]
            assert [note for note in found["notes"] if "herdsman-preview" in note]
            assert not [note for note in found["notes"] if "llminferenceservice" in note or "playground" in note]
        code, _, said = preview("--live", f"llminferenceservice/{name}")
        assert code == 1 and "403" in said
    client.close()
