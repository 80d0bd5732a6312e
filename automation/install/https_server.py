"""The parts that gateway and console share: an HTTPS server in a pod, its Service, NetworkPolicy and Ingress. Pure.

The objects are trees with blanks (`blanks`). `gateway` and `console` complete them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from automation.install.blanks import Value, When
from automation.install.naming import NAME, PART_OF, metadata
from kubeapi.json_types import Json

PORT = 8443
SERVICE_PORT = 443
USER = 10001
"""The user of the image."""
CERTIFICATE = "/etc/herdsman/tls"
TLS_ARGS = (f"--listen=0.0.0.0:{PORT}", f"--tls-cert={CERTIFICATE}/tls.crt", f"--tls-key={CERTIFICATE}/tls.key")
PORT_OF_POD: Json = {"name": "https", "containerPort": PORT, "protocol": "TCP"}
MOUNT: Json = {"name": "tls", "mountPath": CERTIFICATE, "readOnly": True}
POD_SECURITY: Json = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    # The files of the certificate belong to this group.
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PULL_SECRETS = When("pull_secret", [{"name": Value("pull_secret")}])
HOME: Json = {"name": "HOME", "value": "/tmp"}  # noqa: S108 - a path in the pod
INGRESS_ANNOTATIONS: Mapping[str, str] = {
    # Events must not wait in a buffer, and may pause.
    "nginx.ingress.kubernetes.io/backend-protocol": "HTTPS",
    "nginx.ingress.kubernetes.io/proxy-buffering": "off",
    "nginx.ingress.kubernetes.io/proxy-read-timeout": "3600",
}


@dataclass(frozen=True)
class HttpsServer:
    """One server. Its options are blanks whose names begin with the component, as `gateway_host`."""

    component: str

    @property
    def name(self) -> str:
        """The name of its objects."""
        return f"{NAME}-{self.component}"

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which its pods are found."""
        return {"app.kubernetes.io/name": self.name, "app.kubernetes.io/component": self.component}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its objects."""
        return {**self.selector, **PART_OF}

    def metadata(self, name: str = "") -> Json:
        """The metadata of one of its objects; the name is the server's unless another one is given."""
        return metadata(name or self.name, namespace=Value("namespace"), labels=self.labels)

    def option(self, name: str) -> Value:
        """The blank of an option."""
        return Value(f"{self.component}_{name}")

    def service(self) -> Json:
        """The Service for clients."""
        port = {"name": "https", "port": SERVICE_PORT, "targetPort": "https", "protocol": "TCP", "appProtocol": "https"}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(),
            "spec": {"type": self.option("service_type"), "selector": self.selector, "ports": [port]},
        }

    def network_policy(self, *more_ports: Any) -> Json:
        """The NetworkPolicy: the allowed incoming traffic."""
        ports = [{"port": PORT, "protocol": "TCP"}, *more_ports]
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": self.metadata(),
            "spec": {
                "podSelector": {"matchLabels": self.selector},
                "policyTypes": ["Ingress"],
                "ingress": [{"ports": ports}],
            },
        }

    def ingress(self, annotations: Mapping[str, str]) -> Json:
        """The Ingress. TLS ends at the controller, which speaks TLS with the server."""
        host = self.option("host")
        backend = {"service": {"name": self.name, "port": {"name": "https"}}}
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {**self.metadata(), "annotations": dict(annotations)},
            "spec": {
                "ingressClassName": self.option("ingress_class"),
                "tls": [{"hosts": [host], "secretName": self.option("tls_secret")}],
                "rules": [{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}],
            },
        }

    def certificate_volume(self) -> Json:
        """The volume with the certificate."""
        return {"name": "tls", "secret": {"secretName": self.option("tls_secret"), "defaultMode": 0o440}}


def probe(path: str, **times: int) -> Json:
    """A probe of the server. The kubelet does not check the certificate."""
    get: dict[str, Any] = {"path": path, "port": "https", "scheme": "HTTPS"}
    return {"httpGet": get, "timeoutSeconds": 5, **times}
