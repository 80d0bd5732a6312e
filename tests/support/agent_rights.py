"""The rights of agents as docs/install defines them: roles, policies, and one user for each host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound
from kubeapi.kinds import Kind
from tests.support.controlplane import eventually
from tools.localcluster import LocalCluster

INSTALL = Path(__file__).parents[2] / "docs" / "install"
_RBAC = "rbac.authorization.k8s.io"
_ROLES = (
    (Kind(f"{_RBAC}/v1", "ClusterRoleBinding", "clusterrolebindings", False), None, "ClusterRole"),
    (Kind(f"{_RBAC}/v1", "RoleBinding", "rolebindings", True), SYSTEM_NAMESPACE, "Role"),
)


def account(host: str) -> str:
    """Return the name of the user that a host's agent authenticates as."""
    return f"system:serviceaccount:{SYSTEM_NAMESPACE}:{host}"


def apply_file(client: KubeClient, name: str) -> None:
    """Apply a file of docs/install."""
    for document in yaml.safe_load_all((INSTALL / name).read_text()):
        kind = client.mapping(document["apiVersion"], document["kind"])
        namespace = document["metadata"].get("namespace")
        client.apply(kind, namespace, document, field_manager="tests", force=True)


def install_rights(client: KubeClient) -> None:
    """Apply roles and policies, and wait until the API server enforces the policies."""
    apply_file(client, "rbac.yaml")
    apply_file(client, "agent-policies.yaml")


def bind_agent(client: KubeClient, user: str) -> None:
    """Give a user the rights of an agent, with the objects that the guide to hosts prints."""
    for kind, namespace, role in _ROLES:
        name = user.rpartition(":")[2]
        binding = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": f"agent-{name}"},
            "roleRef": {"apiGroup": _RBAC, "kind": role, "name": "herdsman-agent"},
            "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
        }
        client.apply(kind, namespace, binding, field_manager="tests", force=True)


def agent_kubeconfig(client: KubeClient, cluster: LocalCluster, host: str, path: Path) -> Path:
    """Write the kubeconfig of a host's agent, and wait until its rights are in force."""
    bind_agent(client, account(host))
    cluster.write_kubeconfig(path, user=account(host), groups=("system:serviceaccounts",))
    await_policies(KubeClient.from_kubeconfig(str(path)))
    return path


def await_policies(agent: KubeClient) -> None:
    """Wait until a policy refuses a write for another host. Policies take effect later than roles."""

    def refused_by_policy() -> bool:
        probes = (
            lambda: agent.create(
                kinds.HOSTS,
                None,
                {
                    "apiVersion": kinds.HOSTS.api_version,
                    "kind": "Host",
                    "metadata": {"name": "policy-probe", "generateName": ""},
                    "spec": {"transport": "agent", "drain": True},
                },
                field_manager="tests",
            ),
            lambda: agent.create(
                kinds.LEASES,
                SYSTEM_NAMESPACE,
                {"apiVersion": kinds.LEASES.api_version, "kind": "Lease", "metadata": {"name": "policy-probe"}},
            ),
        )
        return all(_refusal(probe).startswith("ValidatingAdmissionPolicy") for probe in probes)

    eventually(refused_by_policy, what="the policies to be enforced")


def _refusal(write: Any) -> str:
    try:
        write()
    except Forbidden as refused:
        text = str(refused)
        return text[text.find("ValidatingAdmissionPolicy") :] if "ValidatingAdmissionPolicy" in text else text
    except NotFound:
        return ""
    except ApiError as error:
        return str(error)
    return ""
