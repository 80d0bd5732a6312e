"""Names, labels and annotations of the objects of an LLMInferenceService. They are the same as KServe's. Pure.

Clients, dashboards and the endpoint picker select by the labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import md5

SYSTEM_NAMESPACE = "kserve"
"""The namespace in which KServe keeps its settings and presets."""
SETTINGS_NAME = "inferenceservice-config"
"""The ConfigMap with the settings."""

_LONGEST = 63
_HASH_LENGTH = 32
_ROOM = _LONGEST - _HASH_LENGTH


def child_name(parent: str, suffix: str) -> str:
    """Join both. A name of more than 63 characters is cut and gets a hash.

    The hash is of `parent`. If the suffix leaves no room for it, the hash is of both, and the suffix is cut too.
    """
    if len(parent) + len(suffix) <= _LONGEST:
        return parent + suffix
    if len(suffix) < _ROOM:
        return f"{parent[: _ROOM - len(suffix)]}{_hash(parent)}{suffix}"
    start = f"{parent[:_ROOM]}{_hash(parent + suffix)}"
    # A name must not end in a dash or a dot.
    return f"{start}{suffix[: _LONGEST - len(start)]}".rstrip("-.")


def _hash(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def workload(service: str) -> str:
    """Return the name of the serving Deployment, and of its pods' account if they need one."""
    return child_name(service, "-kserve")


def workload_role(service: str) -> str:
    """Return the name of the Role for the routing sidecar in the Deployment."""
    return child_name(service, "-kserve-role")


def workload_role_binding(service: str) -> str:
    """Return the name of the RoleBinding of `workload_role`."""
    return child_name(service, "-kserve-rb")


def group(service: str) -> str:
    """Return the name of the serving LeaderWorkerSet, and of its pods' account."""
    return child_name(service, "-kserve-mn")


def group_role(service: str) -> str:
    """Return the name of the Role for the routing sidecar in the leaders."""
    return child_name(service, "-kserve-mn-role")


def group_role_binding(service: str) -> str:
    """Return the name of the RoleBinding of `group_role`."""
    return child_name(service, "-kserve-mn-rb")


def prefill(service: str) -> str:
    """Return the name of the Deployment that prefills."""
    return child_name(service, "-kserve-prefill")


def prefill_group(service: str) -> str:
    """Return the name of the LeaderWorkerSet that prefills, and of its pods' account."""
    return child_name(service, "-kserve-mn-prefill")


def workload_service(service: str) -> str:
    """Return the name of the Service in front of all serving pods."""
    return child_name(service, "-kserve-workload-svc")


def certificates(service: str) -> str:
    """Return the name of the Secret with the pods' TLS certificate."""
    return child_name(service, "-kserve-self-signed-certs")


def scheduler(service: str) -> str:
    """Return the name of the endpoint picker's Deployment."""
    return child_name(service, "-kserve-router-scheduler")


def scheduler_service(service: str) -> str:
    """Return the name of the endpoint picker's Service."""
    return child_name(service, "-epp-service")


def scheduler_account(service: str) -> str:
    """Return the name of the endpoint picker's ServiceAccount."""
    return child_name(service, "-epp-sa")


def scheduler_role(service: str) -> str:
    """Return the name of the endpoint picker's Role."""
    return child_name(service, "-epp-role")


def scheduler_role_binding(service: str) -> str:
    """Return the name of the RoleBinding of `scheduler_role`."""
    return child_name(service, "-epp-rb")


def scheduler_cluster_binding(namespace: str, service: str) -> str:
    """Return the name of the ClusterRoleBinding that lets the endpoint picker create token reviews."""
    return child_name(namespace, f"-{service}-epp-auth-rb")


def scheduler_cluster_binding_apart(namespace: str, service: str) -> str:
    """Return another name of that ClusterRoleBinding, with a hash.

    It is for a service whose usual name another service has: `a`, `b-c` and `a-b`, `c` have the same.
    """
    return child_name(namespace, f"-{service}-{_hash(f'{namespace}/{service}')[:8]}-epp-auth-rb")


def pool(service: str) -> str:
    """Return the name of the InferencePool."""
    return child_name(service, "-inference-pool")


def tokenizer(service: str) -> str:
    """Return the name of the tokenizer's Deployment and Service."""
    return child_name(service, "-tokenizer")


def route(service: str) -> str:
    """Return the name of the HTTPRoute."""
    return child_name(service, "-kserve-route")


def autoscaler(service: str, *, prefill: bool = False) -> str:
    """Return the name of the HorizontalPodAutoscaler."""
    return child_name(service, "-kserve-prefill-hpa" if prefill else "-kserve-hpa")


def scaled_object(service: str, *, prefill: bool = False) -> str:
    """Return the name of KEDA's ScaledObject."""
    return child_name(service, "-kserve-prefill-keda" if prefill else "-kserve-keda")


def devices(service: str) -> str:
    """Return the name of the ResourceClaimTemplate."""
    return child_name(service, "-managed-dra")


def published_model(namespace: str, model: str) -> str:
    """Return the name of a model that is unique in all namespaces."""
    return f"publishers/{namespace}/models/{model}"


NAME = "app.kubernetes.io/name"
PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
SERVING = "kserve.io/component"
"""On pods that answer requests."""
ROLE = "llm-d.ai/role"
"""On the same pods: the part of a request that they compute (`both`, `decode`, `prefill`)."""

WORKLOAD = "llminferenceservice-workload"
ROUTER = "llminferenceservice-router"
SCHEDULER = "llminferenceservice-router-scheduler"
TOKENIZER = "tokenizer"
LEADER, WORKER, PREFILL = "-leader", "-worker", "-prefill"

ROUTING_GROUP = "serving.kserve.io/routing-group"
HEADER_ROUTING = "serving.kserve.io/model-based-routing-enabled"
"""Annotation in `spec.annotations` and of Gateways: whether routes match the header with the model's name."""
LOCAL_MODEL = "internal.serving.kserve.io/localmodel"

_LABEL_PREFIXES = ("kueue.x-k8s.io", LOCAL_MODEL)
_ANNOTATION_PREFIXES = ("k8s.v1.cni.cncf.io", "kueue.x-k8s.io", "prometheus.io", LOCAL_MODEL)
_GROUP_PREFIXES = ("leaderworkerset.sigs.k8s.io",)


def of_service(name: str) -> dict[str, str]:
    """Return the labels of an object that belongs to the whole service."""
    return {NAME: name, PART_OF: "llminferenceservice"}


def of_component(name: str, component: str) -> dict[str, str]:
    """Return the labels of one component of a service."""
    return {COMPONENT: component, **of_service(name)}


def of_serving_pods(name: str, component: str, role: str) -> dict[str, str]:
    """Return the labels of pods that answer requests."""
    return {**of_component(name, component), SERVING: "workload", ROLE: role}


def behind_service(name: str) -> dict[str, str]:
    """Return the selector of all pods that answer requests, in any role."""
    return {**of_service(name), SERVING: "workload"}


def passed_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a custom resource that its workloads get too: those of queues and model caches."""
    return {key: value for key, value in labels.items() if key.startswith(_LABEL_PREFIXES)}


def passed_annotations(annotations: Mapping[str, str], *, group: bool = False) -> dict[str, str]:
    """Return the annotations that its workloads get too: networks, queues, scrapes; for groups also those of LWS."""
    prefixes = (*_ANNOTATION_PREFIXES, *_GROUP_PREFIXES) if group else _ANNOTATION_PREFIXES
    return {key: value for key, value in annotations.items() if key.startswith(prefixes)}


def own_annotations(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Return the annotations of `spec.annotations` that are for pods."""
    return {key: value for key, value in (annotations or {}).items() if key != HEADER_ROUTING}
