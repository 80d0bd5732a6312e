"""The rights of one host: enough for its agent, and named wherever RBAC can name them."""

from __future__ import annotations

import pytest

from automation.install import host_identity, permissions
from automation.settings import SYSTEM_NAMESPACE


def test_an_identity_has_no_right_that_the_shared_role_lacks_except_those_on_itself() -> None:
    shared = {*permissions.requests(permissions.AGENT), *permissions.requests(permissions.AGENT_LEASES)}
    wide = (*host_identity.host_permissions("mac-1"), *host_identity.plan_permissions())
    own = permissions.requests((*wide, *host_identity.system_permissions("mac-1")))
    assert set(own) - shared == {
        ("", "serviceaccounts/token", "create"),
        ("", "serviceaccounts", "delete"),
        ("rbac.authorization.k8s.io", "roles", "delete"),
        ("rbac.authorization.k8s.io", "rolebindings", "delete"),
    }
    assert shared - set(own) == {("herdsman.dev", "hosts", "create"), ("coordination.k8s.io", "leases", "create")}


def test_every_right_names_the_host_but_those_that_rbac_cannot_limit() -> None:
    unnamed = [
        resource
        for each in (*host_identity.host_permissions("mac-1"), *host_identity.system_permissions("mac-1"))
        for resource in each.resources
        if not each.names
    ]
    assert unnamed == ["namespaces"]
    [only] = host_identity.invitation_permissions("mac-1")
    assert (only.resources, only.verbs, only.names) == (("serviceaccounts/token",), ("create",), ("mac-1",))


def test_a_host_of_some_namespaces_reads_plans_there_only() -> None:
    found = host_identity.host_objects("mac-1", ["lab", "prod"])
    plans = {
        where
        for kind, where, body in found
        for rule in body.get("rules", ())
        if kind.kind.endswith("Role") and "hostprocesses" in rule["resources"]
    }
    assert plans == {"lab", "prod"}
    everywhere = host_identity.host_objects("mac-1")
    assert {where for _, where, _ in everywhere} == {None, SYSTEM_NAMESPACE}


@pytest.mark.parametrize("name", ["default", "herdsman", "herdsman-gateway", "herdsman-invite-mac-1", "Mac", "", "a/b"])
def test_names_that_no_host_may_have(name: str) -> None:
    assert host_identity.refusal(name)


def test_names_of_hosts() -> None:
    assert [host_identity.refusal(each) for each in ("mac-1", "lab.mac", "defaults", "my-herdsman")] == [""] * 4
