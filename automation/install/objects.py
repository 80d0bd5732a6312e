"""The objects of an installation, each as a tree with blanks. Pure.

`documents` fills the blanks for `herdsman install`, `chart` writes the same trees as templates, and `generate` writes
the files in docs/install. The operator's trees are in `operator`, the rules of roles in `permissions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from automation.install import console, gateway, identities, operator, permissions
from automation.install.blanks import Remark, Value, When, as_yaml, comment, filled
from automation.install.naming import NAME, PART_OF, metadata
from automation.install.options import InstallOptions
from automation.settings import SYSTEM_NAMESPACE
from components.priority_classes import priority_classes
from kubeapi.json_types import Json
from program.desired.request_report import REPORTS_NAMESPACE
from program.dialects.crds.definitions import crd_documents

LOOP_ROLE = "herdsman-loop"
AGENT_ROLE = "herdsman-agent"
AGENT_HOST_ROLE = "herdsman-agent-host"
VIEW_ROLE = "herdsman-view"
EDIT_ROLE = "herdsman-edit"
PREVIEW_ROLE = "herdsman-preview"

ENGINE_KEYS_ROLE = f"{NAME}-engine-keys"
DIALECTS = {"kserve": "KServe", "llmaz": "llmaz"}
"""The dialects whose permissions are granted separately, by name."""

CONDITIONS: dict[str, Callable[[InstallOptions], bool]] = {
    "claim": lambda o: not o.state and not o.state_secret,
    "claim_class": lambda o: bool(o.state_claim_class),
    "state_url": lambda o: bool(o.state),
    "state_secret": lambda o: bool(o.state_secret),
    "passphrase": lambda o: bool(o.passphrase_secret),
    "metrics": lambda o: bool(o.metrics_secret),
    "pull_secret": lambda o: bool(o.pull_secret),
    "policies": lambda o: bool(o.policies),
    "priority_classes": lambda o: o.priority_classes,
    "several": lambda o: o.replicas > 1,
    "kserve": lambda o: o.kserve,
    "kserve_alone": lambda o: o.kserve and o.replicas == 1,
    "llmaz": lambda o: o.llmaz,
    "external_metrics": lambda o: o.external_metrics,
    "elsewhere": lambda o: o.namespace != SYSTEM_NAMESPACE,
    "identities_deny": lambda o: o.host_identities == "deny",
    "identities_warn": lambda o: o.host_identities == "warn",
    "admission_policies": lambda _: True,
    "gateway": lambda o: o.gateway,
    "gateway_fixed": lambda o: not o.gateway_max_replicas,
    "gateway_metrics": lambda o: o.gateway_metrics,
    "gateway_store": lambda o: bool(o.gateway_store_secret),
    "gateway_audit": lambda o: bool(o.gateway_audit_endpoint),
    "gateway_scales": lambda o: o.gateway and o.gateway_max_replicas > 0,
    "gateway_ingress": lambda o: o.gateway and bool(o.gateway_ingress_class),
    "gateway_route": lambda o: o.gateway and bool(o.gateway_parent),
    "gateway_parent_elsewhere": lambda o: bool(o.gateway_parent_namespace),
    "gateway_own_ca": lambda o: bool(o.gateway_ca_configmap),
    "gateway_public_ca": lambda o: not o.gateway_ca_configmap,
    "console": lambda o: o.console,
    "console_named": lambda o: bool(o.console_host),
    "console_proxied": lambda o: bool(o.console_trusted_proxies),
    "console_ingress": lambda o: o.console and bool(o.console_ingress_class),
}
"""The conditions in the trees, as functions of the options."""


@dataclass(frozen=True)
class Part:
    """One object of an installation."""

    stage: str
    """`cluster`: CRDs, namespaces and classes. `kept`: objects that must outlive the operator. `operator`: the
    operator."""
    tree: Json
    why: str = ""
    condition: str = ""
    """The condition under which the part exists; empty for always."""

    @property
    def kind(self) -> str:
        return str(self.tree["kind"])


STAGES = ("cluster", "kept", "operator")
"""In the order in which they are made. An uninstallation removes only the last, because services need the others."""


def parts() -> list[Part]:
    """Return all objects, in the order in which they are made; the last one is the Deployment."""
    return [
        Part("cluster", _namespace(Value("namespace"))),
        Part(
            "cluster",
            _namespace(SYSTEM_NAMESPACE),
            "Hosts' leases are here wherever the operator is.",
            condition="elsewhere",
        ),
        Part(
            "cluster",
            _namespace(gateway.KEYS_NAMESPACE),
            "The keys of the gateway's clients, and nothing else.",
            condition="gateway",
        ),
        Part("cluster", _namespace(REPORTS_NAMESPACE), "The gateways' reports of their requests, and nothing else."),
        *(Part("cluster", document) for document in crd_documents()),
        *(Part("cluster", document, condition="priority_classes") for document in priority_classes()),
        *_agents(),
        *_users(),
        Part(
            "kept",
            operator.claim(),
            "The state of the engine. It is a cache: the loop can rebuild it, which takes longer than to keep it.",
            condition="claim",
        ),
        *_loop_roles(),
        Part("operator", operator.metrics_service(), "For Prometheus. Requests of /metrics need the token."),
        Part(
            "operator",
            operator.network_policy(),
            "Allows only probes, metrics, the ports for requests to sleeping services, with KServe the port of the "
            "conversion webhook, and the port of the external metrics API if it is served.",
        ),
        Part("operator", operator.budget(), condition="several"),
        *_external_metrics(),
        *_gateway(),
        *_console(),
        Part("operator", operator.deployment()),
    ]


def chosen(
    options: InstallOptions, stages: tuple[str, ...] = STAGES, *, unserved: frozenset[str] = frozenset()
) -> list[Part]:
    """Return the parts of these stages by the options, without kinds that the API server does not serve."""
    asked_for = (each for each in parts() if each.stage in stages and _is_asked_for(each, options))
    return [each for each in asked_for if each.kind not in unserved]


def documents(
    options: InstallOptions, stages: tuple[str, ...] = STAGES, *, unserved: frozenset[str] = frozenset()
) -> list[Json]:
    """Return the objects of these stages by the options, in the order in which they are made."""
    return [filled(each.tree, *_answers(options)) for each in chosen(options, stages, unserved=unserved)]


def manifest(wanted: Iterable[Part], options: InstallOptions) -> str:
    """Write parts as one YAML file with comments."""
    texts = []
    for part in wanted:
        said = "".join(f"{line}\n" for line in comment(part.why)) if part.why else ""
        texts.append(said + as_yaml(filled(part.tree, *_answers(options), remarks=True)))
    return "---\n".join(texts)


def _is_asked_for(part: Part, options: InstallOptions) -> bool:
    return not part.condition or CONDITIONS[part.condition](options)


def _answers(options: InstallOptions) -> tuple[dict[str, Any], dict[str, bool]]:
    return options.model_dump(), {name: holds(options) for name, holds in CONDITIONS.items()}


def _namespace(name: Any) -> Json:
    # The label lets Herdsman recognize the namespace: the API server records no manager for an apply that sets nothing.
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(PART_OF)}}


# Roles


def _rules(table: tuple[permissions.Permission, ...]) -> list[Any]:
    return [Remark(each.why, each.rule) if each.why else each.rule for each in table]


def _role(kind: str, name: str, table: tuple[permissions.Permission, ...], *, namespace: Any = None) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata(name, namespace=namespace, labels=PART_OF),
        "rules": _rules(table),
    }


def _binding(kind: str, name: str, *, namespace: Any = None, account: str = NAME) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata(name, namespace=namespace, labels=PART_OF),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": Value("namespace")}],
    }


def _agents() -> list[Part]:
    return [
        Part(
            "kept",
            _role("ClusterRole", AGENT_ROLE, permissions.AGENT),
            "Permissions of a host's agent. Bind it to the identity of the host, together with the Role of the same "
            "name below: with a ClusterRoleBinding if the host serves all namespaces; otherwise with a RoleBinding in "
            "each served namespace, and a ClusterRoleBinding to herdsman-agent-host.",
        ),
        Part(
            "kept",
            _role("ClusterRole", AGENT_HOST_ROLE, permissions.AGENT_HOST),
            "Permissions on the Host only, for the agent of a host that serves some namespaces.",
        ),
        Part(
            "kept",
            _role("Role", AGENT_ROLE, permissions.AGENT_LEASES, namespace=SYSTEM_NAMESPACE),
            "The Lease of a host's agent, in this namespace only. A right to write Leases elsewhere would include "
            "those of the cluster's own leaders.",
        ),
        *(Part("kept", tree, why, "admission_policies") for tree, why in identities.policies()),
    ]


def _users() -> list[Part]:
    def role(name: str, table: tuple[permissions.Permission, ...], *, writes: bool) -> Json:
        tree = _role("ClusterRole", name, table)
        for dialect, (looks, writing) in permissions.USER_DIALECTS.items():
            rules = (*looks, *writing) if writes else looks
            tree["rules"] += [When(dialect, each.rule) for each in rules]
        return tree

    return [
        Part(
            "kept",
            role(VIEW_ROLE, permissions.USER_VIEW, writes=False),
            "For users who view services: bind it together with the Kubernetes role `view`. It is bound to nobody by "
            "default.",
        ),
        Part(
            "kept",
            role(EDIT_ROLE, permissions.USER_EDIT, writes=True),
            "For users who write services: bind it together with the Kubernetes role `edit`. It is bound to nobody by "
            "default.",
        ),
        Part(
            "kept",
            _role("Role", PREVIEW_ROLE, permissions.PREVIEW, namespace=Value("namespace")),
            "For users of `herdsman preview`: with this role the preview renders with the settings of this loop.",
        ),
    ]


def _account(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(name, namespace=Value("namespace"), labels=PART_OF),
    }


def _gateway() -> list[Part]:
    name, keys = gateway.GATEWAY, {"namespace": gateway.KEYS_NAMESPACE}
    reports = {"namespace": REPORTS_NAMESPACE}

    def bound(kind: str, **where: Any) -> Json:
        return _binding(kind, name, account=name, **where)

    found: list[tuple[Json, str, str]] = [
        (_account(name), "", "gateway"),
        (
            _role("ClusterRole", name, permissions.GATEWAY),
            "All permissions of the gateway in all namespaces. It only reads.",
            "gateway",
        ),
        (bound("ClusterRole"), "", "gateway"),
        (
            _role("ClusterRole", f"{name}-secrets", permissions.GATEWAY_ENGINES),
            "The keys and certificates of engines. It is bound to nobody by default: bind it to the gateway's "
            "ServiceAccount by a RoleBinding in each namespace with such engines.",
            "gateway",
        ),
        (
            _role("ClusterRole", ENGINE_KEYS_ROLE, permissions.ENGINE_KEYS),
            "Permission of the loop to make keys that the gateway sends to engines.",
            "gateway",
        ),
        (_binding("ClusterRole", ENGINE_KEYS_ROLE), "", "gateway"),
        (_role("Role", name, permissions.GATEWAY_KEYS, **keys), "The keys of the gateway's clients.", "gateway"),
        (bound("Role", **keys), "", "gateway"),
        (_role("Role", name, permissions.GATEWAY_REPORTS, **reports), "The only objects that it writes.", "gateway"),
        (bound("Role", **reports), "", "gateway"),
        (gateway.service(), "", "gateway"),
        (gateway.network_policy(), "Allows only requests of clients, and probes.", "gateway"),
        (gateway.budget(), "", "gateway"),
        (gateway.autoscaler(), "", "gateway_scales"),
        (gateway.ingress(), "", "gateway_ingress"),
        (gateway.route(), "", "gateway_route"),
        (gateway.backend_tls(), "", "gateway_route"),
        (gateway.deployment(), "", "gateway"),
    ]
    return [Part("operator", tree, why, condition) for tree, why, condition in found]


def _console() -> list[Part]:
    why = "It has no role, and its token is not mounted: the console uses the tokens of its callers."
    return [
        Part("operator", console.account(), why, "console"),
        Part("operator", console.service(), condition="console"),
        Part("operator", console.network_policy(), "Allows only requests of browsers, and probes.", "console"),
        Part("operator", console.ingress(), condition="console_ingress"),
        Part("operator", console.deployment(), condition="console"),
    ]


def _loop_roles() -> list[Part]:
    leases = "The leader's Lease, and the Leases that hosts renew."
    own: Json = {"namespace": Value("namespace")}
    hosts: Json = {"namespace": SYSTEM_NAMESPACE}
    reports: Json = {"namespace": REPORTS_NAMESPACE}
    return [
        Part("operator", _account(NAME)),
        Part(
            "operator",
            _role("ClusterRole", LOOP_ROLE, permissions.LOOP),
            "All permissions of the loop. It reads no Secrets: pods use them by secretKeyRef.",
        ),
        Part("operator", _binding("ClusterRole", LOOP_ROLE)),
        Part("operator", _role("Role", LOOP_ROLE, permissions.LOOP_LEASES, **own), leases),
        Part("operator", _binding("Role", LOOP_ROLE, **own)),
        Part("operator", _role("Role", LOOP_ROLE, permissions.LOOP_LEASES, **hosts), leases, "elsewhere"),
        Part("operator", _binding("Role", LOOP_ROLE, **hosts), condition="elsewhere"),
        Part("operator", _role("Role", LOOP_ROLE, permissions.LOOP_REPORTS, **reports), "The gateways' reports."),
        Part("operator", _binding("Role", LOOP_ROLE, **reports)),
        *(part for name in permissions.DIALECTS for part in _dialect_role(name)),
    ]


def _external_metrics() -> list[Part]:
    name, condition = f"{LOOP_ROLE}-external-metrics", "external_metrics"
    reader = _binding("Role", name, namespace="kube-system")
    reader["roleRef"]["name"] = "extension-apiserver-authentication-reader"
    found = [
        (
            _role("ClusterRole", name, permissions.EXTERNAL_METRICS),
            "Additional permissions of the loop that serves external metrics.",
        ),
        (_binding("ClusterRole", name), ""),
        (reader, "By Kubernetes' own Role the loop reads how the API server proves itself."),
        (operator.metrics_api_service(), "It has no selector: the loop that leads writes its endpoint."),
        (operator.metrics_api(), "A cluster has one. If another adapter has it, do not apply this one."),
    ]
    return [Part("operator", tree, why, condition) for tree, why in found]


def _dialect_role(dialect: str) -> list[Part]:
    name = f"{LOOP_ROLE}-{dialect}"
    why = f"Additional permissions of the loop for services of {DIALECTS[dialect]}. Not needed without such services."
    return [
        Part("operator", _role("ClusterRole", name, permissions.DIALECTS[dialect]), why, dialect),
        Part("operator", _binding("ClusterRole", name), condition=dialect),
    ]
