"""The console's objects, as trees with blanks: a Deployment, an account without rights, and the ways to it. Pure.

Called by `objects`. The pod has the loop's image and runs `herdsman console --listen`. No token of the cluster is
mounted into it: each request to the API server has the token of the person who uses the console.
"""

from __future__ import annotations

from automation.install.blanks import Value, When
from automation.install.https_server import (
    CONTAINER_SECURITY,
    HOME,
    INGRESS_ANNOTATIONS,
    MOUNT,
    POD_SECURITY,
    PORT_OF_POD,
    PULL_SECRETS,
    TLS_ARGS,
    HttpsServer,
    probe,
)
from kubeapi.json_types import Json

SERVER = HttpsServer("console")
CONSOLE = SERVER.name
AUTHORITY = "/etc/herdsman/cluster"
"""Where the certificate of the cluster's CA is. Kubernetes keeps the ConfigMap with it in every namespace."""
MEMORY = "512Mi"


def account() -> Json:
    """The ServiceAccount. It is bound to no role, and its token is not mounted."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": SERVER.metadata(),
        "automountServiceAccountToken": False,
    }


def service() -> Json:
    """The Service for browsers."""
    return SERVER.service()


def network_policy() -> Json:
    """The NetworkPolicy: the allowed incoming traffic."""
    return SERVER.network_policy()


def ingress() -> Json:
    """The Ingress. TLS ends at the controller, which speaks TLS with the console."""
    return SERVER.ingress(INGRESS_ANNOTATIONS)


def deployment() -> Json:
    """The Deployment. It has one replica, because the sessions are in its memory."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": SERVER.metadata(),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": SERVER.selector},
            "template": {"metadata": {"labels": SERVER.labels}, "spec": _pod()},
        },
    }


def _pod() -> Json:
    authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    return {
        "serviceAccountName": CONSOLE,
        "automountServiceAccountToken": False,
        "imagePullSecrets": PULL_SECRETS,
        "securityContext": POD_SECURITY,
        "containers": [_container()],
        "volumes": [
            SERVER.certificate_volume(),
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
            *TLS_ARGS,
            f"--api-ca={AUTHORITY}/ca.crt",
            When("console_named", "--host=$(CONSOLE_HOST)"),
            When("console_proxied", "--trusted-proxies=$(CONSOLE_TRUSTED_PROXIES)"),
        ],
        "env": [
            HOME,
            When("console_named", {"name": "CONSOLE_HOST", "value": Value("console_host")}),
            When("console_proxied", {"name": "CONSOLE_TRUSTED_PROXIES", "value": Value("console_trusted_proxies")}),
        ],
        "ports": [PORT_OF_POD],
        "startupProbe": probe("/health", periodSeconds=1, failureThreshold=60),
        "livenessProbe": probe("/health", periodSeconds=20, failureThreshold=4),
        "readinessProbe": probe("/health", periodSeconds=5, failureThreshold=3),
        "resources": {"requests": {"cpu": "50m", "memory": MEMORY}, "limits": {"memory": MEMORY}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            MOUNT,
            {"name": "cluster", "mountPath": AUTHORITY, "readOnly": True},
        ],
    }
