"""The admission policies that restrict an agent to its host, as trees. Pure; `objects` makes parts of them.

RBAC cannot express "only its host": a role that allows writes of one Host allows writes of all. So the API server
evaluates these policies at each write of a Host, its status, a HostProcess's status, and a Lease in Herdsman's
namespace. A client that may write the plans themselves (the loop, an administrator) is allowed. Any other client is an
agent, and may write for one host: the ServiceAccount of that name in Herdsman's namespace, or a member of the group
`herdsman:host:<name>` (docs/adr/0033).
"""

from __future__ import annotations

from agent.contract import LABEL_HOST
from agent.server.cluster.host_lease import lease_name
from automation.install.blanks import When
from automation.install.naming import PART_OF, metadata
from automation.settings import SYSTEM_NAMESPACE
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

API = "admissionregistration.k8s.io/v1"
POLICY = "ValidatingAdmissionPolicy"
BINDING = "ValidatingAdmissionPolicyBinding"
KINDS = (
    Kind(API, POLICY, "validatingadmissionpolicies", False),
    Kind(API, BINDING, "validatingadmissionpolicybindings", False),
)
KUBERNETES = "1.30.0"
"""The first version of Kubernetes that serves these kinds."""
GROUP = "herdsman:host:"
"""Prefix of a host's name in the group whose members are that host's agent."""
ACCOUNT = f"system:serviceaccount:{SYSTEM_NAMESPACE}:"
"""Prefix of a host's name in the user that is that host's agent."""
_OURS = "herdsman.dev"
_LEASE = lease_name("")

_SPEAKS = (
    "variables.host != '' && "
    f"(request.userInfo.username == '{ACCOUNT}' + variables.host || "
    f"(has(request.userInfo.groups) && '{GROUP}' + variables.host in request.userInfo.groups))"
)
_TOLD = (
    "'user ' + request.userInfo.username + ' is not the agent of host `' + variables.host + '`: that is account ' + "
    f"variables.host + ' of namespace {SYSTEM_NAMESPACE}, or a member of group {GROUP}' + variables.host"
)
_WRITES_PLANS = (
    "authorizer.group('herdsman.dev').resource('hostprocesses').namespace({namespace}).check('patch').allowed()"
)
_WRITES_HOSTS = "authorizer.group('herdsman.dev').resource('hosts').check('patch').allowed()"
_WRITES_LEASES = (
    "authorizer.group('coordination.k8s.io').resource('leases').namespace(request.namespace).check('patch').allowed()"
)


def policies() -> list[tuple[Json, str]]:
    """Return each policy and each binding, with a comment."""
    found: list[tuple[Json, str]] = []
    for tree, why in (
        (_hosts(), "An agent creates and reports only its own Host, and no Host that is managed over SSH."),
        (_processes(), "An agent reports only the processes of its own host."),
        (_leases(), "An agent writes only the Lease of its own host, not the Lease of the leader or of another host."),
    ):
        found += [(tree, why), (_binding(str(tree["metadata"]["name"])), "")]
    return found


def names() -> tuple[str, ...]:
    """Return the names of the policies; each binding has the name of its policy."""
    return tuple(str(tree["metadata"]["name"]) for tree, _ in policies() if tree["kind"] == POLICY)


def _hosts() -> Json:
    return _policy(
        "herdsman-agents-hosts",
        rules=[_rule(_OURS, ["hosts"], "CREATE"), _rule(_OURS, ["hosts/status"], "UPDATE")],
        trusted=[_WRITES_PLANS.format(namespace="''"), _WRITES_HOSTS],
        host="object.metadata.name",
        more=[
            {
                "expression": "request.operation != 'CREATE' || !has(object.spec) || (!has(object.spec.ssh) && "
                "(!has(object.spec.transport) || object.spec.transport == 'agent'))",
                "message": "an agent may not create a Host that is managed over SSH",
                "reason": "Forbidden",
            },
            {
                "expression": "request.operation != 'CREATE' || !has(object.spec) || "
                "(!has(object.spec.address) && !has(object.spec.allow))",
                "message": "an agent may not set spec.address and spec.allow: only the owner of the host sets them",
                "reason": "Forbidden",
            },
        ],
    )


def _processes() -> Json:
    return _policy(
        "herdsman-agents-processes",
        rules=[_rule(_OURS, ["hostprocesses/status"], "UPDATE")],
        trusted=[_WRITES_PLANS.format(namespace="request.namespace")],
        host="oldObject.spec.host",
        more=[
            {
                "expression": "!has(object.status) || !has(object.status.host) || object.status.host == variables.host",
                "message": "status.host differs from spec.host",
                "reason": "Forbidden",
            },
        ],
    )


def _leases() -> Json:
    name = "object.metadata.name"
    policy = _policy(
        "herdsman-agents-leases",
        rules=[_rule("coordination.k8s.io", ["leases"], "CREATE", "UPDATE")],
        trusted=[_WRITES_LEASES, _WRITES_PLANS.format(namespace="''")],
        host=f"{name}.startsWith('{_LEASE}') ? {name}.substring({len(_LEASE)}) : ''",
        more=[
            {
                "expression": f"has(object.metadata.labels) && '{LABEL_HOST}' in object.metadata.labels && "
                f"object.metadata.labels['{LABEL_HOST}'] == variables.host",
                "message": f"the host in label {LABEL_HOST} differs from the host of the Lease",
                "reason": "Forbidden",
            },
        ],
    )
    there = {"matchLabels": {"kubernetes.io/metadata.name": SYSTEM_NAMESPACE}}
    policy["spec"]["matchConstraints"]["namespaceSelector"] = there
    return policy


def _policy(name: str, *, rules: list[Json], trusted: list[str], host: str, more: list[Json]) -> Json:
    speaks = {"expression": _SPEAKS, "messageExpression": _TOLD, "reason": "Forbidden"}
    return {
        "apiVersion": API,
        "kind": POLICY,
        "metadata": metadata(name, labels=PART_OF),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules},
            "matchConditions": [{"name": "is-an-agent", "expression": f"!({' || '.join(trusted)})"}],
            "variables": [{"name": "host", "expression": host}],
            "validations": [speaks, *more],
        },
    }


def _binding(policy: str) -> Json:
    return {
        "apiVersion": API,
        "kind": BINDING,
        "metadata": metadata(policy, labels=PART_OF),
        "spec": {
            "policyName": policy,
            "validationActions": [
                When("identities_deny", "Deny"),
                When("identities_warn", "Warn"),
                When("identities_warn", "Audit"),
            ],
        },
    }


def _rule(group: str, resources: list[str], *operations: str) -> Json:
    return {"apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": list(operations)}
