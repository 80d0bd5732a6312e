"""The gateway's objects, as trees with blanks: a Deployment of its own, its account, and the ways to it. Pure.

Called by `objects`, which describes the use of the trees. The pod has the loop's image and runs `herdsman gateway`.
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
    SERVICE_PORT,
    TLS_ARGS,
    HttpsServer,
    probe,
)
from kubeapi.json_types import Json

SERVER = HttpsServer("gateway")
GATEWAY = SERVER.name
KEYS_NAMESPACE = "herdsman-keys"
"""The namespace of clients' keys, and of nothing else: a right to list Secrets concerns all Secrets of a namespace."""
SELECTOR = SERVER.selector
LABELS = SERVER.labels
METRICS_PORT = 9090
LEAVING_S = 5
"""How long a pod that ends accepts connections, in seconds. In this time the nodes take it out of the Service."""
GRACE_S = LEAVING_S + 30 + 10
"""Besides, the answers under way have 30 seconds, and the end of the process has 10 seconds."""


def service() -> Json:
    """The Service for clients."""
    return SERVER.service()


def network_policy() -> Json:
    """The NetworkPolicy: the allowed incoming traffic."""
    return SERVER.network_policy(When("gateway_metrics", {"port": METRICS_PORT, "protocol": "TCP"}))


def budget() -> Json:
    """The PodDisruptionBudget: one gateway may be stopped at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": SERVER.metadata(),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": dict(SELECTOR)}},
    }


def autoscaler() -> Json:
    """The HorizontalPodAutoscaler. One gateway uses one core at most."""
    target = {"type": "AverageValue", "averageValue": "700m"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": SERVER.metadata(),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": GATEWAY},
            "minReplicas": Value("gateway_replicas"),
            "maxReplicas": Value("gateway_max_replicas"),
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def ingress() -> Json:
    """The Ingress. TLS ends at the controller, which speaks TLS with the gateway."""
    # Requests may have images and sound.
    uploads = {
        "nginx.ingress.kubernetes.io/proxy-request-buffering": "off",
        "nginx.ingress.kubernetes.io/proxy-body-size": "64m",
    }
    return SERVER.ingress({**INGRESS_ANNOTATIONS, **uploads})


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
        "metadata": SERVER.metadata(),
        "spec": {"parentRefs": [parent], "hostnames": [Value("gateway_host")], "rules": [rule]},
    }


def backend_tls() -> Json:
    """The BackendTLSPolicy: the Gateway checks the certificate of Herdsman's gateway."""
    authority = {"group": "", "kind": "ConfigMap", "name": Value("gateway_ca_configmap")}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "BackendTLSPolicy",
        "metadata": SERVER.metadata(),
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
        "metadata": SERVER.metadata(),
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
        "imagePullSecrets": PULL_SECRETS,
        "terminationGracePeriodSeconds": GRACE_S,
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "securityContext": POD_SECURITY,
        "containers": [_container()],
        "volumes": [SERVER.certificate_volume()],
    }


def _container() -> Json:
    store = {"name": Value("gateway_store_secret"), "key": "url"}
    return {
        "name": "gateway",
        "image": Value("image"),
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "gateway",
            *TLS_ARGS,
            f"--keys-namespace={KEYS_NAMESPACE}",
            "--node=$(NODE_NAME)",
            When("policies", "--await-policies"),
            When("gateway_metrics", f"--metrics-listen=0.0.0.0:{METRICS_PORT}"),
        ],
        "env": [
            HOME,
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
            PORT_OF_POD,
            When("gateway_metrics", {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}),
        ],
        "startupProbe": probe("/health", periodSeconds=1, failureThreshold=60),
        "livenessProbe": probe("/health", periodSeconds=20, failureThreshold=4),
        # Without its models a gateway would refuse requests that other gateways answer.
        "readinessProbe": probe("/ready", periodSeconds=2, failureThreshold=3),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVING_S)]}}},
        "resources": {
            "requests": {"cpu": "250m", "memory": Value("gateway_memory")},
            "limits": {"memory": Value("gateway_memory")},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [MOUNT],
    }
