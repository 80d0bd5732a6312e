"""The accounts of the pods of an LLMInferenceService, and what they may ask the API server. Pure.

The routing sidecar looks for prefill pods, the endpoint picker for all that a pool selects, and keeps its lease; groups
have an account so that a cluster can tell them apart. All else runs as the namespace's default account.
"""

from __future__ import annotations

from typing import Any

from kubeapi import kinds
from program.desired.base import JsonObject
from program.desired.workloads import Access
from program.dialects.kserve import labels, naming
from program.dialects.kserve.credentials import DEFAULT_ACCOUNT
from program.dialects.kserve.pool_group import OLD_POOL_GROUP, POOL_GROUP
from program.dialects.kserve.subject import Subject

SIDECAR = "llm-d-routing-sidecar"
_READ = ["get", "list", "watch"]


def _rule(groups: list[str], resources: list[str], verbs: list[str] = _READ) -> JsonObject:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}


_SIDECAR_RULES = (_rule([""], ["pods"]), _rule([OLD_POOL_GROUP, POOL_GROUP], ["inferencepools"]))
_PICKER_RULES = (
    _rule([""], ["pods"]),
    _rule([POOL_GROUP, OLD_POOL_GROUP], ["inferencepools", "inferenceobjectives", "inferencemodels"]),
    _rule([OLD_POOL_GROUP], ["inferencemodelrewrites", "inferencepoolimports"]),
    _rule(["llm-d.ai"], ["inferenceobjectives", "inferencemodelrewrites"]),
    _rule(["discovery.k8s.io"], ["endpointslices"]),
    _rule(["coordination.k8s.io"], ["leases"], [*_READ, "create", "update", "patch", "delete"]),
)


def decoding_access(subject: Subject, own: str) -> Access:
    """Give the account of single pods with a routing sidecar; `own` is the user's, if they name one."""
    name = subject.name
    return _access(
        subject,
        part="main",
        own=own,
        account=naming.workload(name),
        component=labels.WORKLOAD,
        role=naming.workload_role(name),
        binding=naming.workload_role_binding(name),
        rules=_SIDECAR_RULES,
    )


def group_access(subject: Subject, own: str, *, sidecar: bool) -> Access | None:
    """Give the account of groups that serve; None where the user's own is all they need."""
    name = subject.name
    if own and not sidecar:
        return None
    return _access(
        subject,
        part="main",
        own=own,
        account=naming.group(name),
        role=naming.group_role(name) if sidecar else "",
        binding=naming.group_role_binding(name) if sidecar else "",
        rules=_SIDECAR_RULES if sidecar else (),
    )


def prefill_group_access(subject: Subject) -> Access:
    """Give the account of groups that prefill."""
    return _access(subject, part="prefill", own="", account=naming.prefill_group(subject.name))


def scheduler_access(subject: Subject, account: str) -> Access:
    """Give the endpoint picker's account, which may also have the API server look at tokens."""
    name = subject.name
    made = naming.scheduler_account(name)
    return _access(
        subject,
        part="scheduler",
        own="" if account == made else account,
        account=made,
        component=labels.SCHEDULER,
        role=naming.scheduler_role(name),
        binding=naming.scheduler_role_binding(name),
        rules=_PICKER_RULES,
        cluster_role="system:auth-delegator",
        cluster_binding=naming.scheduler_cluster_binding(subject.namespace, name),
    )


def _access(
    subject: Subject,
    *,
    part: str,
    own: str,
    account: str,
    component: str = "",
    rules: tuple[JsonObject, ...] = (),
    **names: Any,
) -> Access:
    given = labels.of_component(subject.name, component) if component else labels.of_service(subject.name)
    if own:
        return Access(part=part, labels=given, service_account=own, account_exists=True, rules=rules, **names)
    default = subject.look(kinds.SERVICE_ACCOUNTS, subject.namespace, DEFAULT_ACCOUNT) or {}
    return Access(
        part=part,
        labels=given,
        service_account=account,
        image_pull_secrets=tuple(default.get("imagePullSecrets") or ()),
        secrets=tuple(default.get("secrets") or ()),
        rules=rules,
        **names,
    )
