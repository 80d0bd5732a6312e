"""`herdsman doctor agent` checks the agent's rights and the clock against a real API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from automation.cli.main import invoke
from tests.support.controlplane import Api, eventually
from tools.localcluster import LocalCluster

ROLES = Path(__file__).parents[2] / "docs/install/rbac.yaml"


def test_the_roles_that_we_document_are_all_that_an_agent_needs(
    control_plane: LocalCluster, api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mac = tmp_path / "mac"
    control_plane.write_kubeconfig(mac, user="mac-1", groups=("hosts",))

    def findings() -> dict[str, dict[str, str]]:
        capsys.readouterr()
        invoke(["doctor", "agent", "-o", "json", "--", "--kubeconfig", str(mac), "--store", str(tmp_path)])
        return {each["check"]: each for each in json.loads(capsys.readouterr().out)}

    found = findings()
    assert found["cluster"]["state"] == found["clock"]["state"] == "ok", found
    assert found["permissions"]["state"] == "failed" and "rbac.yaml" in found["permissions"]["hint"]
    assert "patch hosts/status" in found["permissions"]["detail"]
    assert "update leases in herdsman-system" in found["permissions"]["detail"]

    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "herdsman-system"}}
    api.apply("/api/v1/namespaces/herdsman-system", system)
    base = "/apis/rbac.authorization.k8s.io/v1"
    subjects = [{"kind": "User", "name": "mac-1", "apiGroup": "rbac.authorization.k8s.io"}]
    for document in yaml.safe_load_all(ROLES.read_text()):
        if document["metadata"]["name"] != "herdsman-agent" or not document["kind"].endswith("Role"):
            continue
        kind, name = document["kind"], document["metadata"]["name"]
        where = "" if kind == "ClusterRole" else "/namespaces/herdsman-system"
        api.apply(f"{base}{where}/{kind.lower()}s/{name}", document)
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": f"{kind}Binding",
            "metadata": {"name": "mac-1"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": subjects,
        }
        api.apply(f"{base}{where}/{kind.lower()}bindings/mac-1", binding)
    # The API server reads roles from a cache, which follows the writes a moment later.
    eventually(lambda: findings()["permissions"]["state"] == "ok", what="the rights of the roles")
