"""The account of some pods and what it may do: ServiceAccount, Role, bindings. Called by `render` of this package."""

from __future__ import annotations

from collections.abc import Iterator

from components.rendered import RenderedObject
from components.workloads.parts import component_of, manifest, settled
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.service import DesiredService
from program.desired.workloads import Access

_GROUP = kinds.ROLES.group


def access_objects(desired: DesiredService, access: Access) -> Iterator[RenderedObject]:
    """Build what one account needs, the account first, unless it is the user's own.

    Nothing in a namespace can own the ClusterRoleBinding, so it goes with the service's place in the program, and is
    found by its labels where the state was lost.
    """

    def placed(part: str, made: Json) -> RenderedObject:
        return RenderedObject(f"access/{access.part}/{part}", component_of(access.part), made)

    account: Json = {}
    if access.image_pull_secrets:
        account["imagePullSecrets"] = settled(access.image_pull_secrets)
    if access.secrets:
        account["secrets"] = settled(access.secrets)
    name = access.service_account
    if not access.account_exists:
        yield placed("account", manifest(desired, kinds.SERVICE_ACCOUNTS, name, labels=access.labels, **account))
    if access.role:
        rules = settled(access.rules)
        yield placed("role", manifest(desired, kinds.ROLES, access.role, labels=access.labels, rules=rules))
    if access.binding:
        role = {"apiGroup": _GROUP, "kind": kinds.ROLES.kind, "name": access.role}
        made = manifest(
            desired,
            kinds.ROLE_BINDINGS,
            access.binding,
            labels=access.labels,
            subjects=_subjects(desired, access),
            roleRef=role,
        )
        yield placed("binding", made)
    if access.cluster_binding:
        role = {"apiGroup": _GROUP, "kind": "ClusterRole", "name": access.cluster_role}
        made = manifest(
            desired,
            kinds.CLUSTER_ROLE_BINDINGS,
            access.cluster_binding,
            labels=access.labels,
            subjects=_subjects(desired, access),
            roleRef=role,
        )
        yield placed("cluster-binding", made)


def _subjects(desired: DesiredService, access: Access) -> list[Json]:
    kind = kinds.SERVICE_ACCOUNTS.kind
    return [{"kind": kind, "name": access.service_account, "namespace": desired.key.namespace}]
