"""The gateway's objects, as trees with blanks: a Deployment of its own, its account, and the ways to it. Pure.

Called by `objects`, which describes the use of the trees. The pod has the loop's image and runs `herdsman gateway`.
"""

from __future__ import annotations

from typing import Any

from automation.install.blanks import Value, When
from automation.install.naming import NAME, PART_OF, metadata
from kubeapi.json_types import Json

GATEWAY = f"{NAME}-gateway"
KEYS_NAMESPACE = "herdsman-keys"
"""The namespace of clients' keys, and of nothing else: a right to list Secrets concerns all Secrets of a namespace."""
SELECTOR = {"app.kubernetes.io/name": GATEWAY, "app.kubernetes.io/component": "gateway"}
LABELS = {**SELECTOR, **PART_OF}
PORT = 8443
METRICS_PORT = 9090
SERVICE_PORT = 443
USER = 10001
"""The user of the image."""
CERTIFICATE = "/etc/herdsman/tls"
LEAVING_S = 5
"""How long a pod that ends accepts connections, in seconds. In this time the nodes take it out of the Service."""
GRACE_S = LEAVING_S + 30 + 10
"""Besides, the answers under way have 30 seconds, and the end of the process has 10 seconds."""


def _metadata(name: str = GATEWAY) -> Json:
    return metadata(name, namespace=Value("namespace"), labels=LABELS)


def service() -> Json:
    """The Service for clients."""
    port = {"name": "https", "port": SERVICE_PORT, "targetPort": "https", "protocol": "TCP", "appProtocol": "https"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(),
        "spec": {"type": Value("gateway_service_type"), "selector": dict(SELECTOR), "ports": [port]},
    }


def network_policy() -> Json:
    """The NetworkPolicy: the allowed incoming traffic."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(),
        "spec": {
            "podSelector": {"matchLabels": dict(SELECTOR)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "ports": [
                        {"port": PORT, "protocol": "TCP"},
                        When("gateway_metrics", {"port": METRICS_PORT, "protocol": "TCP"}),
                    ]
                }
            ],
        },
    }


def budget() -> Json:
    """The PodDisruptionBudget: one gateway may be stopped at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": dict(SELECTOR)}},
    }


def autoscaler() -> Json:
    """The HorizontalPodAutoscaler. One gateway uses one core at most."""
    target = {"type": "AverageValue", "averageValue": "700m"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": GATEWAY},
            "minReplicas": Value("gateway_replicas"),
            "maxReplicas": Value("gateway_max_replicas"),
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def ingress() -> Json:
    """The Ingress. TLS ends at the controller, which speaks TLS with the gateway."""
    backend = {"service": {"name": GATEWAY, "port": {"name": "https"}}}
    host = Value("gateway_host")
    annotations = {
        # Streams must not wait in a buffer, and may pause. Requests may have images and sound.
        "nginx.ingress.kubernetes.io/backend-protocol": "HTTPS",
        "nginx.ingress.kubernetes.io/proxy-buffering": "off",
        "nginx.ingress.kubernetes.io/proxy-request-buffering": "off",
        "nginx.ingress.kubernetes.io/proxy-body-size": "64m",
        "nginx.ingress.kubernetes.io/proxy-read-timeout": "3600",
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {**_metadata(), "annotations": annotations},
        "spec": {
            "ingressClassName": Value("gateway_ingress_class"),
            "tls": [{"hosts": [host], "secretName": Value("gateway_tls_secret")}],
            "rules": [{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}],
        },
    }


def route() -> Json:
    """The HTTPRoute. TLS ends at the Gateway, which speaks TLS with Herdsman's gateway by `backend_tls`."""
    rule = {
        "backendRefs": [{"name": GATEWAY, "port": SERVICE_PORT}],
        # An answer may take any time.
        "timeouts": {"request": "0s", "backendRequest": "0s"},
    }
    parent = {
        "name": Value("gateway_parent"),
        "namespace": When("gateway_parent_elsewhere", Value("gateway_parent_namespace")),
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": _metadata(),
        "spec": {"parentRefs": [parent], "hostnames": [Value("gateway_host")], "rules": [rule]},
    }


def backend_tls() -> Json:
    """The BackendTLSPolicy: the Gateway checks the certificate of Herdsman's gateway."""
    authority = {"group": "", "kind": "ConfigMap", "name": Value("gateway_ca_configmap")}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "BackendTLSPolicy",
        "metadata": _metadata(),
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": GATEWAY}],
            "validation": {
                "hostname": Value("gateway_host"),
                "caCertificateRefs": When("gateway_own_ca", [authority]),
                "wellKnownCACertificates": When("gateway_public_ca", "System"),
            },
        },
    }


def deployment() -> Json:
    """The Deployment. A new pod serves before an old one ends."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(),
        "spec": {
            # With an autoscaler, the number of replicas is the autoscaler's.
            "replicas": When("gateway_fixed", Value("gateway_replicas")),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": dict(SELECTOR)},
            "template": {"metadata": {"labels": dict(LABELS)}, "spec": _pod()},
        },
    }


def _pod() -> Json:
    apart = {
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": dict(SELECTOR)},
        },
    }
    return {
        "serviceAccountName": GATEWAY,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "imagePullSecrets": When("pull_secret", [{"name": Value("pull_secret")}]),
        "terminationGracePeriodSeconds": GRACE_S,
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            # The files of the certificate belong to this group.
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container()],
        "volumes": [
            {"name": "tls", "secret": {"secretName": Value("gateway_tls_secret"), "defaultMode": 0o440}},
        ],
    }


def _container() -> Json:
    store = {"name": Value("gateway_store_secret"), "key": "url"}
    return {
        "name": "gateway",
        "image": Value("image"),
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "gateway",
            f"--listen=0.0.0.0:{PORT}",
            f"--tls-cert={CERTIFICATE}/tls.crt",
            f"--tls-key={CERTIFICATE}/tls.key",
            f"--keys-namespace={KEYS_NAMESPACE}",
            "--node=$(NODE_NAME)",
            When("policies", "--await-policies"),
            When("gateway_metrics", f"--metrics-listen=0.0.0.0:{METRICS_PORT}"),
        ],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a path in the pod
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
                for name, field in (("POD_NAMESPACE", "namespace"), ("POD_NAME", "name"), ("POD_UID", "uid"))
            ),
            When("gateway_store", {"name": "HERDSMAN_GATEWAY_STORE", "valueFrom": {"secretKeyRef": store}}),
            When(
                "gateway_audit",
                {"name": "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "value": Value("gateway_audit_endpoint")},
            ),
        ],
        "ports": [
            {"name": "https", "containerPort": PORT, "protocol": "TCP"},
            When("gateway_metrics", {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}),
        ],
        "startupProbe": _probe("/health", periodSeconds=1, failureThreshold=60),
        "livenessProbe": _probe("/health", periodSeconds=20, failureThreshold=4),
        # Without its models a gateway would refuse requests that other gateways answer.
        "readinessProbe": _probe("/ready", periodSeconds=2, failureThreshold=3),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVING_S)]}}},
        "resources": {
            "requests": {"cpu": "250m", "memory": Value("gateway_memory")},
            "limits": {"memory": Value("gateway_memory")},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tls", "mountPath": CERTIFICATE, "readOnly": True}],
    }


def _probe(path: str, **times: int) -> Json:
    # The kubelet does not check the certificate.
    get: dict[str, Any] = {"path": path, "port": "https", "scheme": "HTTPS"}
    return {"httpGet": get, "timeoutSeconds": 5, **times}
