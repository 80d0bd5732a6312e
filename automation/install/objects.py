"""The objects of an installation, each as a tree with blanks. Pure.

`documents` fills the blanks for `herdsman install`, `chart` writes the same trees as templates, and `generate` keeps
the files in docs/install. Names are fixed, so that an installation whose state was lost is found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from automation.install import permissions
from automation.install.blanks import Each, Raw, Remark, Value, When, as_yaml, comment, filled
from automation.install.options import InstallOptions
from automation.serving.wake_endpoints import FIRST_PORT, PORTS
from automation.settings import SYSTEM_NAMESPACE
from components.priority_classes import priority_classes
from program.dialects.crds import crd_documents

Json = dict[str, Any]

NAME = "herdsman"
LOOP_ROLE = "herdsman-loop"
AGENT_ROLE = "herdsman-agent"
CLAIM = "herdsman-state"
HEALTH_PORT = 8081
CONVERSION_PORT = 9443
USER = 10001
"""The user of the image; it owns what it writes by fsGroup."""

DIALECTS = {"kserve": "KServe", "llmaz": "llmaz"}
"""The dialects whose rights are granted apart, by name."""

SELECTOR = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "loop"}
LABELS = {**SELECTOR, "app.kubernetes.io/part-of": NAME}
PART_OF = {"app.kubernetes.io/part-of": NAME}

CONDITIONS: dict[str, Callable[[InstallOptions], bool]] = {
    "claim": lambda o: not o.state and not o.state_secret,
    "claim_class": lambda o: bool(o.state_claim_class),
    "state_url": lambda o: bool(o.state),
    "state_secret": lambda o: bool(o.state_secret),
    "passphrase": lambda o: bool(o.passphrase_secret),
    "metrics": lambda o: bool(o.metrics_secret),
    "pull_secret": lambda o: bool(o.pull_secret),
    "policies": lambda o: bool(o.policies),
    "several": lambda o: o.replicas > 1,
    "kserve": lambda o: o.kserve,
    "kserve_alone": lambda o: o.kserve and o.replicas == 1,
    "llmaz": lambda o: o.llmaz,
    "elsewhere": lambda o: o.namespace != SYSTEM_NAMESPACE,
}
"""What the trees ask of the options."""


@dataclass(frozen=True)
class Part:
    """One object of an installation."""

    stage: str
    """`cluster`: CRDs, namespaces and classes. `kept`: what must outlive the operator. `operator`: the operator."""
    tree: Json
    why: str = ""
    condition: str = ""
    """There only then; always, when empty."""

    @property
    def kind(self) -> str:
        return str(self.tree["kind"])


STAGES = ("cluster", "kept", "operator")
"""In the order in which they are made. An uninstallation takes the last alone: what serves needs the others."""


def parts() -> list[Part]:
    """All objects, in the order in which they are made; the last one is the Deployment."""
    return [
        Part("cluster", _namespace(Value("namespace"))),
        Part(
            "cluster",
            _namespace(SYSTEM_NAMESPACE),
            "Hosts' leases are here wherever the operator is.",
            condition="elsewhere",
        ),
        *(Part("cluster", document) for document in crd_documents()),
        *(Part("cluster", document) for document in priority_classes()),
        *_agents(),
        Part("kept", _claim(), "The state of the engine: a cache, which is cheaper kept than made again.", "claim"),
        *_loop_roles(),
        Part("operator", _metrics_service(), "For Prometheus; /metrics asks for the token."),
        Part(
            "operator",
            _network_policy(),
            "Probes, metrics, the ports at which requests for sleeping services are held, and with KServe that of the "
            "webhook that converts its versions; nothing else comes in.",
        ),
        Part("operator", _budget(), condition="several"),
        Part("operator", _deployment()),
    ]


def chosen(options: InstallOptions, stages: tuple[str, ...] = STAGES) -> list[Part]:
    """The parts of these stages that these options ask for."""
    return [each for each in parts() if each.stage in stages and _is_asked_for(each, options)]


def documents(options: InstallOptions, stages: tuple[str, ...] = STAGES) -> list[Json]:
    """The objects of these stages that these options ask for, in the order in which they are made."""
    return [filled(each.tree, *_answers(options)) for each in chosen(options, stages)]


def manifest(wanted: Iterable[Part], options: InstallOptions) -> str:
    """Write parts as one file of YAML, with what is to be said of them."""
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
    # The label is what makes it ours to see: of an apply that sets nothing the API server keeps no record.
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(PART_OF)}}


def _metadata(name: str, *, namespace: Any = None, labels: Json = LABELS) -> Json:
    found: Json = {"name": name}
    if namespace is not None:
        found["namespace"] = namespace
    return {**found, "labels": dict(labels)}


# Roles


def _rules(table: tuple[permissions.Permission, ...]) -> list[Any]:
    return [Remark(each.why, each.rule) if each.why else each.rule for each in table]


def _role(kind: str, name: str, table: tuple[permissions.Permission, ...], *, namespace: Any = None) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": _metadata(name, namespace=namespace, labels=PART_OF),
        "rules": _rules(table),
    }


def _binding(kind: str, name: str, *, namespace: Any = None) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": _metadata(name, namespace=namespace, labels=PART_OF),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": Value("namespace")}],
    }


def _agents() -> list[Part]:
    return [
        Part(
            "kept",
            _role("ClusterRole", AGENT_ROLE, permissions.AGENT),
            "What the agent of a host may do; bind it to the identity that the host uses, with the Role of the same "
            "name below.",
        ),
        Part(
            "kept",
            _role("Role", AGENT_ROLE, permissions.AGENT_LEASES, namespace=SYSTEM_NAMESPACE),
            "Its Lease. In this namespace alone: who may write Leases elsewhere could depose the leaders of the "
            "cluster itself.",
        ),
    ]


def _loop_roles() -> list[Part]:
    leases = "The leader's lease, and the leases by which hosts say that they live."
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(NAME, namespace=Value("namespace"), labels=PART_OF),
    }
    own = {"namespace": Value("namespace")}
    hosts = {"namespace": SYSTEM_NAMESPACE}
    return [
        Part("operator", account),
        Part(
            "operator",
            _role("ClusterRole", LOOP_ROLE, permissions.LOOP),
            "What the loop may do, and no more. It reads no Secrets: pods take them by secretKeyRef.",
        ),
        Part("operator", _binding("ClusterRole", LOOP_ROLE)),
        Part("operator", _role("Role", LOOP_ROLE, permissions.LOOP_LEASES, **own), leases),
        Part("operator", _binding("Role", LOOP_ROLE, **own)),
        Part("operator", _role("Role", LOOP_ROLE, permissions.LOOP_LEASES, **hosts), leases, "elsewhere"),
        Part("operator", _binding("Role", LOOP_ROLE, **hosts), condition="elsewhere"),
        *(part for name in permissions.DIALECTS for part in _dialect_role(name)),
    ]


def _dialect_role(dialect: str) -> list[Part]:
    name = f"{LOOP_ROLE}-{dialect}"
    why = f"What the loop may do besides for services of {DIALECTS[dialect]}; nobody needs it who has none."
    return [
        Part("operator", _role("ClusterRole", name, permissions.DIALECTS[dialect]), why, dialect),
        Part("operator", _binding("ClusterRole", name), condition=dialect),
    ]


# The operator


def _claim() -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(CLAIM, namespace=Value("namespace")),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": When("claim_class", Value("state_claim_class")),
            "resources": {"requests": {"storage": Value("state_claim_size")}},
        },
    }


def _metrics_service() -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(NAME, namespace=Value("namespace")),
        "spec": {
            "selector": dict(SELECTOR),
            "ports": [
                {"name": "metrics", "port": HEALTH_PORT, "targetPort": "health", "protocol": "TCP"},
                When("kserve", {"name": "conversion", "port": 443, "targetPort": "conversion", "protocol": "TCP"}),
            ],
        },
    }


def _network_policy() -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(NAME, namespace=Value("namespace")),
        "spec": {
            "podSelector": {"matchLabels": dict(SELECTOR)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "ports": [
                        {"port": HEALTH_PORT, "protocol": "TCP"},
                        {"port": FIRST_PORT, "endPort": FIRST_PORT + PORTS - 1, "protocol": "TCP"},
                        When("kserve", {"port": CONVERSION_PORT, "protocol": "TCP"}),
                    ]
                }
            ],
        },
    }


def _budget() -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(NAME, namespace=Value("namespace")),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": dict(SELECTOR)}},
    }


def _deployment() -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(NAME, namespace=Value("namespace")),
        "spec": {
            "replicas": Value("replicas"),
            # A claim that one pod holds is not handed over while it runs, and of two loops one may always go.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": dict(SELECTOR)},
            "template": {"metadata": {"labels": dict(LABELS)}, "spec": _pod()},
        },
    }


def _pod() -> Json:
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(SELECTOR)},
    }
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        # The loop must not be process 1: nobody could end it there, which its guard must, and nobody would reap for it.
        "shareProcessNamespace": True,
        "imagePullSecrets": When("pull_secret", [{"name": Value("pull_secret")}]),
        # A batch under way is let to its end, and the lease is released last.
        "terminationGracePeriodSeconds": 90,
        "topologySpreadConstraints": When("several", [spread]),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container()],
        "volumes": [
            {"name": "work", "emptyDir": {"sizeLimit": "4Gi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            When("claim", {"name": "state", "persistentVolumeClaim": {"claimName": CLAIM}}),
            When("passphrase", _of_secret("passphrase")),
            When("metrics", _of_secret("metrics")),
            When("policies", {"name": "policies", "configMap": {"name": Value("policies")}}),
        ],
    }


def _of_secret(name: str) -> Json:
    return {"name": name, "secret": {"secretName": Value(f"{name}_secret"), "defaultMode": 0o440}}


def _container() -> Json:
    return {
        "name": "loop",
        "image": Value("image"),
        "imagePullPolicy": "IfNotPresent",
        "args": ["run"],
        "envFrom": When("state_secret", [{"secretRef": {"name": Value("state_secret")}}]),
        "env": _environment(),
        "ports": [
            {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
            When("kserve", {"name": "conversion", "containerPort": CONVERSION_PORT, "protocol": "TCP"}),
        ],
        "livenessProbe": _probe("/healthz", periodSeconds=20, failureThreshold=4),
        # Also ready: a loop that waits for the lease. A rollout would else wait for ever for the second one.
        "readinessProbe": _probe("/readyz?standby=ok", periodSeconds=5, failureThreshold=3),
        "resources": {
            "requests": {"cpu": "200m", "memory": Value("memory")},
            "limits": {"memory": Value("memory")},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "work", "mountPath": "/work"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a path in the pod
            When("claim", {"name": "state", "mountPath": "/state"}),
            When("passphrase", {"name": "passphrase", "mountPath": "/etc/herdsman/passphrase", "readOnly": True}),
            When("metrics", {"name": "metrics", "mountPath": "/etc/herdsman/metrics", "readOnly": True}),
            When("policies", {"name": "policies", "mountPath": "/etc/herdsman/policies", "readOnly": True}),
        ],
    }


def _probe(path: str, **times: int) -> Json:
    return {"httpGet": {"path": path, "port": "health"}, "timeoutSeconds": 5, **times}


def _environment() -> list[Any]:
    def plain(name: str, value: Any) -> Json:
        return {"name": name, "value": value}

    def setting(key: Any, value: Any) -> Json:
        name = Raw(f"HERDSMAN_{key.text}") if isinstance(key, Raw) else f"HERDSMAN_{str(key).upper()}"
        return {"name": name, "value": value}

    url = {"secretKeyRef": {"name": Value("state_secret"), "key": "url"}}
    return [
        When("claim", plain("HERDSMAN_STATE", "file:///state")),
        When("state_url", plain("HERDSMAN_STATE", Value("state"))),
        When("state_secret", {"name": "HERDSMAN_STATE", "valueFrom": url}),
        plain("HERDSMAN_WORK_DIR", "/work"),
        When("passphrase", plain("HERDSMAN_PASSPHRASE_FILE", "/etc/herdsman/passphrase/passphrase")),
        When("metrics", plain("HERDSMAN_METRICS_TOKEN_FILE", "/etc/herdsman/metrics/token")),
        When("policies", plain("HERDSMAN_POLICIES", "/etc/herdsman/policies")),
        # The kubelet asks from outside the pod; beyond it metrics take the token.
        plain("HERDSMAN_HEALTH_ADDRESS", "0.0.0.0"),  # noqa: S104 - in the pod's own network
        plain("HERDSMAN_HEALTH_PORT", str(HEALTH_PORT)),
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        When("kserve", plain("HERDSMAN_CONVERSION_PORT", str(CONVERSION_PORT))),
        # Of two loops only the leader converts, and a Service would lead to either: then the CRDs name the pod itself.
        When("kserve_alone", plain("HERDSMAN_CONVERSION_SERVICE", f"$(POD_NAMESPACE)/{NAME}")),
        plain("HOME", "/tmp"),  # noqa: S108 - a path in the pod
        Each("settings", setting),
    ]
