"""The ServiceAccounts of an LLMInferenceService's pods, and their permissions at the API server. Pure.

The routing sidecar finds prefill pods. The endpoint picker finds the pods and objects of its pool, and renews a Lease.
Groups have an account so that a cluster can distinguish them. Other pods use the namespace's default account.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import is_dns_label
from program.desired.workloads import Access
from program.dialects.kserve import naming
from program.dialects.kserve.parse.credentials import DEFAULT_ACCOUNT
from program.dialects.kserve.parse.subject import Subject, value_at
from program.dialects.kserve.router.pool_group import OLD_POOL_GROUP, POOL_GROUP

SIDECAR = "llm-d-routing-sidecar"
BINDING = "herdsman.dev/epp-auth-binding"
"""Annotation in the status: the ClusterRoleBinding's name, if it is not the usual one."""
_READ = ["get", "list", "watch"]


def _rule(groups: list[str], resources: list[str], verbs: list[str] = _READ) -> Json:
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
    """Return the account of single pods with a routing sidecar. `own` is the user's account; empty for none."""
    name = subject.name
    return _access(
        subject,
        part="main",
        own=own,
        account=naming.workload(name),
        component=naming.WORKLOAD,
        role=naming.workload_role(name),
        binding=naming.workload_role_binding(name),
        rules=_SIDECAR_RULES,
    )


def group_access(subject: Subject, own: str, *, sidecar: bool) -> Access | None:
    """Return the account of groups that serve; None if the user's account is sufficient."""
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
    """Return the account of groups that prefill."""
    return _access(subject, part="prefill", own="", account=naming.prefill_group(subject.name))


def scheduler_access(subject: Subject, account: str) -> Access:
    """Return the endpoint picker's account, which may also create token reviews."""
    name = subject.name
    made = naming.scheduler_account(name)
    return _access(
        subject,
        part="scheduler",
        own="" if account == made else account,
        account=made,
        component=naming.SCHEDULER,
        role=naming.scheduler_role(name),
        binding=naming.scheduler_role_binding(name),
        rules=_PICKER_RULES,
        cluster_role="system:auth-delegator",
        cluster_binding=_cluster_binding(subject),
    )


def bound_apart(cr: Json) -> bool:
    """Return whether the status names a ClusterRoleBinding with an unusual name for the service."""
    metadata = cr["metadata"]
    namespace = str(metadata.get("namespace") or "default")
    apart = naming.scheduler_cluster_binding_apart(namespace, str(metadata["name"]))
    return bool(value_at(cr, "status", "annotations", BINDING) == apart)


def _cluster_binding(subject: Subject) -> str:
    """Return KServe's name of the binding, or another if a service of another namespace results in the same name.

    The older service keeps the usual name. If both were created in the same second, neither has it. A service with the
    other name keeps it, because the usual binding of a deleted service may still be in deletion.
    """
    namespace, name = subject.namespace, subject.name
    usual = naming.scheduler_cluster_binding(namespace, name)
    if bound_apart(subject.cr) or any(_goes_first(other, subject.cr) for other in _of_same_name(subject, usual)):
        return naming.scheduler_cluster_binding_apart(namespace, name)
    return usual


def _of_same_name(subject: Subject, binding: str) -> Iterator[Json]:
    """Yield the services of other namespaces whose binding would have this name."""
    words = f"{subject.namespace}-{subject.name}".split("-")
    for at in range(1, len(words)):
        namespace, name = "-".join(words[:at]), "-".join(words[at:])
        if namespace == subject.namespace or not (is_dns_label(namespace) and is_dns_label(name)):
            continue
        if naming.scheduler_cluster_binding(namespace, name) != binding:
            continue
        other = subject.look(kinds.LLM_SERVICES, namespace, name)
        if other is not None and _may_have_picker(other):
            yield other


def _may_have_picker(cr: Json) -> bool:
    scheduler = value_at(cr, "spec", "router", "scheduler")
    own = scheduler is not None and value_at(scheduler, "pool", "ref") is None
    return own or bool(value_at(cr, "spec", "baseRefs"))


def _goes_first(other: Json, cr: Json) -> bool:
    theirs, own = (str(each["metadata"].get("creationTimestamp") or "") for each in (other, cr))
    return not own or theirs <= own


def _access(
    subject: Subject,
    *,
    part: str,
    own: str,
    account: str,
    component: str = "",
    rules: tuple[Json, ...] = (),
    **names: Any,
) -> Access:
    given = naming.of_component(subject.name, component) if component else naming.of_service(subject.name)
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
