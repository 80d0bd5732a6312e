"""The objects of one host's identity and of its invitation: accounts, roles, bindings. Pure.

`automation.cli.host_invite` writes them. The roles name the objects of the host wherever RBAC can: its Host, its Lease,
its account, its invitation. RBAC cannot select HostProcesses by host, so for their status the admission policies of
`identities` compare the host with the account's name. docs/adr/0075 has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.contract import LABEL_HOST
from agent.server.cluster.host_lease import lease_name
from agent.server.joining.invitation import is_host_name
from agent.server.joining.leftovers import invitation_name
from automation.install.permissions import OURS, RBAC, READ, Permission
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

LABEL_IDENTITY = "herdsman.dev/identity"
"""On the objects of an identity. The value is `host` or `invitation`."""
CLUSTER_ROLES = Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False)

Written = tuple[Kind, str | None, Json]
"""A kind, a namespace and an object."""


def refusal(name: str) -> str:
    """Return why no host may have this name and an account of its own; empty if one may."""
    if not is_host_name(name):
        return "use at most 50 lower-case letters, digits, `-` and `.`"
    if name == "default":
        return f"account `default` of namespace {SYSTEM_NAMESPACE} belongs to all its pods"
    if name == "herdsman" or name.startswith(("herdsman-", "herdsman.")):
        return "names that begin with `herdsman` belong to the accounts of Herdsman itself"
    return ""


def role_name(host: str) -> str:
    """Return the name of the roles and bindings of a host."""
    return f"herdsman-identity-{host}"


def plan_permissions() -> tuple[Permission, ...]:
    """Return the rights on plans, in all namespaces or in each that the host serves."""
    return (
        Permission(OURS, ("hostprocesses",), READ, "The plans. RBAC cannot select those of one host."),
        Permission(OURS, ("hostprocesses/status",), ("patch",)),
    )


def host_permissions(host: str) -> tuple[Permission, ...]:
    """Return the rights in the whole cluster of the agent of a host."""
    return (
        Permission(OURS, ("hosts",), READ, names=(host,)),
        Permission(OURS, ("hosts/status",), ("patch",), names=(host,)),
        Permission("", ("namespaces",), ("get",), "A Host can be restricted to namespaces with certain labels."),
    )


def system_permissions(host: str) -> tuple[Permission, ...]:
    """Return the rights of a host in Herdsman's namespace: its Lease, its next token, the end of its invitation."""
    ended = (invitation_name(host),)
    return (
        Permission("coordination.k8s.io", ("leases",), ("get", "update"), names=(lease_name(host),)),
        Permission("", ("serviceaccounts/token",), ("create",), names=(host,)),
        Permission("", ("serviceaccounts",), ("delete",), names=ended),
        Permission(RBAC, ("roles", "rolebindings"), ("delete",), names=ended),
    )


def invitation_permissions(host: str) -> tuple[Permission, ...]:
    """Return the only right of an invitation: to have a token of the host's account made."""
    return (Permission("", ("serviceaccounts/token",), ("create",), names=(host,)),)


def account(name: str, host: str, use: str) -> Json:
    """Return a ServiceAccount; pods do not get its token by default."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(name, SYSTEM_NAMESPACE, host, use),
        "automountServiceAccountToken": False,
    }


def host_objects(host: str, namespaces: Iterable[str] = ()) -> list[Written]:
    """Return the roles and bindings of a host that serves these namespaces; all if none is named."""
    name, places = role_name(host), tuple(namespaces)
    wide = host_permissions(host) + (() if places else plan_permissions())
    found = _bound(name, None, host, "host", host, wide)
    found += _bound(name, SYSTEM_NAMESPACE, host, "host", host, system_permissions(host))
    for place in places:
        found += _bound(f"{name}-plans", place, host, "host", host, plan_permissions())
    return found


def invitation_objects(host: str) -> list[Written]:
    """Return the role and the binding of an invitation."""
    name = invitation_name(host)
    return _bound(name, SYSTEM_NAMESPACE, host, "invitation", name, invitation_permissions(host))


def _bound(
    name: str, namespace: str | None, host: str, use: str, account_name: str, table: tuple[Permission, ...]
) -> list[Written]:
    kind, binding = (
        (CLUSTER_ROLES, kinds.CLUSTER_ROLE_BINDINGS) if namespace is None else (kinds.ROLES, kinds.ROLE_BINDINGS)
    )
    metadata = _metadata(name, namespace, host, use)
    role = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": metadata,
        "rules": [each.rule for each in table],
    }
    bound = {
        "apiVersion": binding.api_version,
        "kind": binding.kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind.kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account_name, "namespace": SYSTEM_NAMESPACE}],
    }
    return [(kind, namespace, role), (binding, namespace, bound)]


def _metadata(name: str, namespace: str | None, host: str, use: str) -> Json:
    labels = {LABEL_HOST: host, LABEL_IDENTITY: use}
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": labels}
