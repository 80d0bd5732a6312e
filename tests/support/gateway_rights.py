"""The rights of the gateway's ServiceAccount, as an installation with a gateway grants them."""

from __future__ import annotations

from pathlib import Path

from automation.install.gateway import GATEWAY, KEYS_NAMESPACE
from automation.install.objects import documents
from automation.install.options import InstallOptions
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.request_report import REPORTS_NAMESPACE
from tools.localcluster import LocalCluster

USER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{GATEWAY}"
_ROLES = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def grant_gateway_rights(client: KubeClient, cluster: LocalCluster, path: Path) -> Path:
    """Install the roles of the gateway, and write a kubeconfig for its user."""
    for document in documents(InstallOptions(gateway=True)):
        kind, metadata = document["kind"], document["metadata"]
        is_namespace = kind == "Namespace" and metadata["name"] in (KEYS_NAMESPACE, REPORTS_NAMESPACE)
        if is_namespace or (kind in _ROLES and metadata["name"] == GATEWAY):
            mapped = client.mapping(document["apiVersion"], kind)
            client.apply(mapped, metadata.get("namespace"), document, field_manager="tests", force=True)
    cluster.write_kubeconfig(path, user=USER, groups=("system:serviceaccounts",))
    return path


def grant_secret(client: KubeClient, namespace: str, name: str) -> None:
    """Let the gateway read one Secret, as docs/how-to/model-router.md says."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": f"gateway-{name}", "namespace": namespace}
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]}
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": GATEWAY, "namespace": SYSTEM_NAMESPACE}],
    }
    client.apply(kinds.ROLES, namespace, role, field_manager="tests", force=True)
    client.apply(kinds.ROLE_BINDINGS, namespace, binding, field_manager="tests", force=True)
