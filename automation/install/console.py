"""The console's objects, as trees with blanks: a Deployment, an account without rights, and the ways to it. Pure.

Called by `objects`. The pod has the loop's image and runs `herdsman console --listen`. No token of the cluster is
mounted into it: each request to the API server has the token of the person who uses the console.
"""

from __future__ import annotations

from typing import Any

from automation.install.blanks import Value, When
from automation.install.gateway import USER
from automation.install.naming import NAME, PART_OF, metadata
from kubeapi.json_types import Json

CONSOLE = f"{NAME}-console"
SELECTOR = {"app.kubernetes.io/name": CONSOLE, "app.kubernetes.io/component": "console"}
LABELS = {**SELECTOR, **PART_OF}
PORT = 8443
SERVICE_PORT = 443
CERTIFICATE = "/etc/herdsman/tls"
AUTHORITY = "/etc/herdsman/cluster"
"""Where the certificate of the cluster's CA is. Kubernetes keeps the ConfigMap with it in every namespace."""
MEMORY = "512Mi"


def _metadata() -> Json:
    return metadata(CONSOLE, namespace=Value("namespace"), labels=LABELS)


def account() -> Json:
    """The ServiceAccount. It is bound to no role, and its token is not mounted."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(),
        "automountServiceAccountToken": False,
    }


def service() -> Json:
    """The Service for browsers."""
    port = {"name": "https", "port": SERVICE_PORT, "targetPort": "https", "protocol": "TCP", "appProtocol": "https"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(),
        "spec": {"type": Value("console_service_type"), "selector": dict(SELECTOR), "ports": [port]},
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
            "ingress": [{"ports": [{"port": PORT, "protocol": "TCP"}]}],
        },
    }


def ingress() -> Json:
    """The Ingress. TLS ends at the controller, which speaks TLS with the console."""
    host = Value("console_host")
    annotations = {
        # Events must not wait in a buffer, and may pause.
        "nginx.ingress.kubernetes.io/backend-protocol": "HTTPS",
        "nginx.ingress.kubernetes.io/proxy-buffering": "off",
        "nginx.ingress.kubernetes.io/proxy-read-timeout": "3600",
    }
    backend = {"service": {"name": CONSOLE, "port": {"name": "https"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {**_metadata(), "annotations": annotations},
        "spec": {
            "ingressClassName": Value("console_ingress_class"),
            "tls": [{"hosts": [host], "secretName": Value("console_tls_secret")}],
            "rules": [{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}],
        },
    }


def deployment() -> Json:
    """The Deployment. It has one replica, because the sessions are in its memory."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(SELECTOR)},
            "template": {"metadata": {"labels": dict(LABELS)}, "spec": _pod()},
        },
    }


def _pod() -> Json:
    authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    return {
        "serviceAccountName": CONSOLE,
        "automountServiceAccountToken": False,
        "imagePullSecrets": When("pull_secret", [{"name": Value("pull_secret")}]),
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
            {"name": "tls", "secret": {"secretName": Value("console_tls_secret"), "defaultMode": 0o440}},
            {"name": "cluster", "configMap": authority},
        ],
    }


def _container() -> Json:
    return {
        "name": "console",
        "image": Value("image"),
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "console",
            f"--listen=0.0.0.0:{PORT}",
            f"--tls-cert={CERTIFICATE}/tls.crt",
            f"--tls-key={CERTIFICATE}/tls.key",
            f"--api-ca={AUTHORITY}/ca.crt",
            When("console_named", "--host=$(CONSOLE_HOST)"),
        ],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a path in the pod
            When("console_named", {"name": "CONSOLE_HOST", "value": Value("console_host")}),
        ],
        "ports": [{"name": "https", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": _probe(periodSeconds=1, failureThreshold=60),
        "livenessProbe": _probe(periodSeconds=20, failureThreshold=4),
        "readinessProbe": _probe(periodSeconds=5, failureThreshold=3),
        "resources": {"requests": {"cpu": "50m", "memory": MEMORY}, "limits": {"memory": MEMORY}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tls", "mountPath": CERTIFICATE, "readOnly": True},
            {"name": "cluster", "mountPath": AUTHORITY, "readOnly": True},
        ],
    }


def _probe(**times: int) -> Json:
    # The kubelet does not check the certificate.
    get: dict[str, Any] = {"path": "/health", "port": "https", "scheme": "HTTPS"}
    return {"httpGet": get, "timeoutSeconds": 5, **times}
