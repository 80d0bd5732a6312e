"""The operator's objects, as trees with blanks: its state, its network access, its pod. Pure.

Called by `objects`, which describes the use of the trees.
"""

from __future__ import annotations

from typing import Any

from automation.external_metrics.answers import GROUP, VERSION
from automation.external_metrics.registration import API_SERVICE, PORT_NAME
from automation.install.blanks import Each, Raw, Value, When
from automation.install.naming import LABELS, NAME, SELECTOR, metadata
from automation.serving.wake import FIRST_PORT, PORTS
from kubeapi import kinds
from kubeapi.json_types import Json

CLAIM = "herdsman-state"
CONTAINER = "loop"
HEALTH_PORT = 8081
CONVERSION_PORT = 9443
METRICS_API_PORT = 9444
METRICS_API = f"{NAME}-external-metrics"
"""Name of the Service of the external metrics API."""
USER = 10001
"""The user of the image. It owns the files that it writes by fsGroup."""


def claim() -> Json:
    """The claim for the engine's state, unless the state is elsewhere."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(CLAIM, namespace=Value("namespace")),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": When("claim_class", Value("state_claim_class")),
            "resources": {"requests": {"storage": Value("state_claim_size")}},
        },
    }


def metrics_service() -> Json:
    """The Service for the metrics and the conversion webhook."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(NAME, namespace=Value("namespace")),
        "spec": {
            "selector": dict(SELECTOR),
            "ports": [
                {"name": "metrics", "port": HEALTH_PORT, "targetPort": "health", "protocol": "TCP"},
                When("kserve", {"name": "conversion", "port": 443, "targetPort": "conversion", "protocol": "TCP"}),
            ],
        },
    }


def metrics_api_service() -> Json:
    """The Service of the external metrics API. It has no selector: the loop that leads writes its endpoint."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(METRICS_API, namespace=Value("namespace")),
        "spec": {
            "ports": [{"name": PORT_NAME, "port": 443, "targetPort": METRICS_API_PORT, "protocol": "TCP"}],
        },
    }


def metrics_api() -> Json:
    """The APIService of the external metrics API. The loop writes the authority of its certificate."""
    return {
        "apiVersion": kinds.API_SERVICES.api_version,
        "kind": kinds.API_SERVICES.kind,
        "metadata": metadata(API_SERVICE),
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"namespace": Value("namespace"), "name": METRICS_API, "port": 443},
        },
    }


def network_policy() -> Json:
    """The NetworkPolicy: the allowed incoming traffic."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(NAME, namespace=Value("namespace")),
        "spec": {
            "podSelector": {"matchLabels": dict(SELECTOR)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "ports": [
                        {"port": HEALTH_PORT, "protocol": "TCP"},
                        {"port": FIRST_PORT, "endPort": FIRST_PORT + PORTS - 1, "protocol": "TCP"},
                        When("kserve", {"port": CONVERSION_PORT, "protocol": "TCP"}),
                        When("external_metrics", {"port": METRICS_API_PORT, "protocol": "TCP"}),
                    ]
                }
            ],
        },
    }


def budget() -> Json:
    """The PodDisruptionBudget: of several loops, one always stays."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(NAME, namespace=Value("namespace")),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": dict(SELECTOR)}},
    }


def deployment() -> Json:
    """The Deployment of the loop."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(NAME, namespace=Value("namespace")),
        "spec": {
            "replicas": Value("replicas"),
            # A pod's claim is not attached to another pod while the first one runs. Of two loops, one may always be
            # stopped.
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
        # The loop must not be process 1: its guard could not kill it there, and nothing would reap its children.
        "shareProcessNamespace": True,
        "imagePullSecrets": When("pull_secret", [{"name": Value("pull_secret")}]),
        # The current batch ends first, and the lease is released last.
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
        "name": CONTAINER,
        "image": Value("image"),
        "imagePullPolicy": "IfNotPresent",
        "args": ["run"],
        "envFrom": When("state_secret", [{"secretRef": {"name": Value("state_secret")}}]),
        "env": _environment(),
        "ports": [
            {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
            When("kserve", {"name": "conversion", "containerPort": CONVERSION_PORT, "protocol": "TCP"}),
            When("external_metrics", {"name": "metrics-api", "containerPort": METRICS_API_PORT, "protocol": "TCP"}),
        ],
        "livenessProbe": _probe("/healthz", periodSeconds=20, failureThreshold=4),
        # A loop that waits for the lease is ready as well. Otherwise a rollout would wait for ever for the second loop.
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
    store = {"name": Value("gateway_store_secret"), "key": "url"}
    return [
        When("claim", plain("HERDSMAN_STATE", "file:///state")),
        When("state_url", plain("HERDSMAN_STATE", Value("state"))),
        When("state_secret", {"name": "HERDSMAN_STATE", "valueFrom": url}),
        plain("HERDSMAN_WORK_DIR", "/work"),
        When("passphrase", plain("HERDSMAN_PASSPHRASE_FILE", "/etc/herdsman/passphrase/passphrase")),
        When("metrics", plain("HERDSMAN_METRICS_TOKEN_FILE", "/etc/herdsman/metrics/token")),
        When("policies", plain("HERDSMAN_POLICIES", "/etc/herdsman/policies")),
        # The kubelet probes from outside the pod. Other machines need the token for metrics.
        plain("HERDSMAN_HEALTH_ADDRESS", "0.0.0.0"),  # noqa: S104 - in the pod's own network
        plain("HERDSMAN_HEALTH_PORT", str(HEALTH_PORT)),
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        When("kserve", plain("HERDSMAN_CONVERSION_PORT", str(CONVERSION_PORT))),
        # The statuses of ModelRouters have the use of their budgets.
        When("gateway_store", {"name": "HERDSMAN_GATEWAY_STORE", "valueFrom": {"secretKeyRef": store}}),
        # Of two loops only the leader converts, and a Service would route to either. So the CRDs contain the pod's
        # address.
        When("kserve_alone", plain("HERDSMAN_CONVERSION_SERVICE", f"$(POD_NAMESPACE)/{NAME}")),
        When("external_metrics", plain("HERDSMAN_EXTERNAL_METRICS_PORT", str(METRICS_API_PORT))),
        When("external_metrics", plain("HERDSMAN_EXTERNAL_METRICS_SERVICE", f"$(POD_NAMESPACE)/{METRICS_API}")),
        plain("HOME", "/tmp"),  # noqa: S108 - a path in the pod
        Each("settings", setting),
    ]
