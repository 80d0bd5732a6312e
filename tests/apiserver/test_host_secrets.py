"""The right of one host to read one Secret: the objects that the command writes, and their effect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from agent.contract import ProcessPlan, SecretReference
from agent.processes.secret_values import SecretUnavailable, SecretValues
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, NotFound
from tests.support.controlplane import Api, eventually
from tests.support.rights import await_rights
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.apiserver
Herdsman = Callable[..., subprocess.CompletedProcess[str]]


def kubeconfig_of(cluster: LocalCluster, user: str, folder: Path) -> Path:
    """Write a kubeconfig for a user without any right."""
    file = folder / f"{user}.yaml"
    cluster.write_kubeconfig(file, user=user)
    return file


@pytest.fixture
def herdsman(control_plane: LocalCluster) -> Herdsman:
    def run(*arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "automation.cli", "host", "grant-secret", *arguments]
        config = str(kubeconfig or control_plane.kubeconfig)
        return subprocess.run([*command, "--kubeconfig", config], capture_output=True, text=True, timeout=60)

    return run


def plan(secret: str = "hub", key: str = "token", *, optional: bool | None = None) -> ProcessPlan:
    reference = SecretReference(secret=secret, key=key, optional=optional)
    return ProcessPlan(host="h", service="s", argv=("x",), service_name="s", secret_env={"HF_TOKEN": reference})


def make_secret(api: Api, namespace: str, name: str = "hub", **values: str) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
    api.apply(kinds.SECRETS.path(namespace, name), {**body, "stringData": values or {"token": "hf_1"}})


def test_a_grant_opens_one_secret_to_one_host(
    control_plane: LocalCluster, api: Api, namespace: str, herdsman: Herdsman, tmp_path: Path
) -> None:
    make_secret(api, namespace)
    make_secret(api, namespace, "other")
    agent = KubeClient.from_kubeconfig(str(kubeconfig_of(control_plane, f"agent-{namespace}", tmp_path)))
    values = SecretValues.of_agent(tmp_path / "none", host="mac", client=agent)
    key = f"{namespace}/s"

    with pytest.raises(SecretUnavailable) as refused:
        values.of(key, plan())
    assert "env[HF_TOKEN].valueFrom.secretKeyRef" in str(refused.value)
    assert f"herdsman host grant-secret mac {namespace}/hub" in str(refused.value)

    granted = herdsman("mac", f"{namespace}/hub", "--user", f"agent-{namespace}")
    assert granted.returncode == 0, granted.stderr
    admin = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["hub"], "verbs": ["get"]}
    await_rights(admin, f"agent-{namespace}", namespace, rule)
    admin.close()
    assert values.of(key, plan()) == {"HF_TOKEN": "hf_1"}
    for name in ("other", "missing"):
        with pytest.raises(Forbidden):
            agent.get(kinds.SECRETS, namespace, name)
    with pytest.raises(Forbidden):
        agent.list(kinds.SECRETS, namespace)

    with pytest.raises(SecretUnavailable, match="has no key `gone`"):
        values.of(key, plan(key="gone"))
    assert values.of(key, plan(key="gone", optional=True)) == {}
    make_secret(api, namespace, token="hf_2")
    assert values.of(key, plan()) == {"HF_TOKEN": "hf_2"}, "each start reads anew"
    api.delete(kinds.SECRETS.path(namespace, "hub"))
    with pytest.raises(SecretUnavailable, match="does not exist"):
        values.of(key, plan())
    assert values.of(key, plan(optional=True)) == {}

    again = herdsman("mac", f"{namespace}/hub", "--user", f"agent-{namespace}")
    assert again.returncode == 0, again.stderr
    revoked = herdsman("mac", f"{namespace}/hub", "--user", f"agent-{namespace}", "--revoke")
    assert revoked.returncode == 0, revoked.stderr

    def refusal() -> str:
        try:
            values.of(key, plan(optional=True))
        except SecretUnavailable as error:
            return str(error)
        return ""

    # The API server reads role bindings from a cache, which follows the removal a moment later.
    assert "may not read" in eventually(refusal, what="a refusal")


def test_a_file_of_the_host_goes_before_the_secret(
    control_plane: LocalCluster, api: Api, namespace: str, tmp_path: Path
) -> None:
    make_secret(api, namespace)
    file = tmp_path / namespace / "hub" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("hf_file\n")
    client = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    values = SecretValues.of_agent(tmp_path, host="mac", client=client)
    file.chmod(0o600)
    assert values.of(f"{namespace}/s", plan()) == {"HF_TOKEN": "hf_file"}
    file.chmod(0o644)
    with pytest.raises(SecretUnavailable, match="chmod go-rwx"):
        values.of(f"{namespace}/s", plan())


def test_nobody_grants_more_than_he_may_read(
    control_plane: LocalCluster, api: Api, namespace: str, herdsman: Herdsman, tmp_path: Path
) -> None:
    make_secret(api, namespace)
    user = f"dev-{namespace}"
    meta = {"name": "roles", "namespace": namespace}
    rules = [
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["roles", "rolebindings"],
            "verbs": ["get", "create", "patch"],
        }
    ]
    group = "rbac.authorization.k8s.io"
    api.apply(
        kinds.ROLES.path(namespace, "roles"),
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules},
    )
    api.apply(
        kinds.ROLE_BINDINGS.path(namespace, "roles"),
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "roles"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
        },
    )
    config = kubeconfig_of(control_plane, user, tmp_path)
    caller = KubeClient.from_kubeconfig(str(config))
    eventually(lambda: _may_get(caller, namespace), what="the caller's rights to hold")
    refused = herdsman("mac", f"{namespace}/hub", kubeconfig=config)
    assert refused.returncode == 1
    assert "may read the Secret" in refused.stderr
    with pytest.raises(NotFound):
        caller.get(kinds.ROLES, namespace, "herdsman-host-mac-secret-hub")


def _may_get(client: KubeClient, namespace: str) -> bool:
    try:
        client.get(kinds.ROLES, namespace, "roles")
    except Forbidden:
        return False
    return True


def test_a_dry_run_shows_what_would_be_applied(api: Api, namespace: str, herdsman: Herdsman) -> None:
    shown = herdsman("mac", f"{namespace}/hub", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    role, binding = yaml.safe_load_all(shown.stdout)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["hub"], "verbs": ["get"]}]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": "herdsman-system", "name": "mac"}]
    assert api.get(kinds.ROLES.path(namespace, role["metadata"]["name"])) is None
    listed = json.loads(herdsman("mac", f"{namespace}/hub", "--dry-run", "-o", "json").stdout)
    assert listed["items"] == [role, binding]
    wrong = herdsman("mac", "hub", "--dry-run")
    assert wrong.returncode == 64
    assert "NAMESPACE/SECRET" in wrong.stderr
