"""Labels and annotations of the objects of an LLMInferenceService. Pure.

The values are KServe's: clients, dashboards and its own endpoint picker select by them.
"""

from __future__ import annotations

from collections.abc import Mapping

NAME = "app.kubernetes.io/name"
PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
SERVING = "kserve.io/component"
"""On pods that answer requests."""
ROLE = "llm-d.ai/role"
"""On the same pods: what part of a request they do (`both`, `decode`, `prefill`)."""

WORKLOAD = "llminferenceservice-workload"
ROUTER = "llminferenceservice-router"
SCHEDULER = "llminferenceservice-router-scheduler"
TOKENIZER = "tokenizer"
LEADER, WORKER, PREFILL = "-leader", "-worker", "-prefill"

ROUTING_GROUP = "serving.kserve.io/routing-group"
HEADER_ROUTING = "serving.kserve.io/model-based-routing-enabled"
"""Annotation in `spec.annotations`, and of Gateways: whether routes match the header with the model's name."""
LOCAL_MODEL = "internal.serving.kserve.io/localmodel"

_LABEL_PREFIXES = ("kueue.x-k8s.io", LOCAL_MODEL)
_ANNOTATION_PREFIXES = ("k8s.v1.cni.cncf.io", "kueue.x-k8s.io", "prometheus.io", LOCAL_MODEL)
_GROUP_PREFIXES = ("leaderworkerset.sigs.k8s.io",)


def of_service(name: str) -> dict[str, str]:
    """Label what belongs to a service and has no part of its own in it."""
    return {NAME: name, PART_OF: "llminferenceservice"}


def of_component(name: str, component: str) -> dict[str, str]:
    """Label one part of a service."""
    return {COMPONENT: component, **of_service(name)}


def of_serving_pods(name: str, component: str, role: str) -> dict[str, str]:
    """Label pods that answer requests."""
    return {**of_component(name, component), SERVING: "workload", ROLE: role}


def behind_service(name: str) -> dict[str, str]:
    """Select every pod that answers requests, whatever its role."""
    return {**of_service(name), SERVING: "workload"}


def passed_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Give the labels of a custom resource that its workloads carry too: those of queues and model caches."""
    return {key: value for key, value in labels.items() if key.startswith(_LABEL_PREFIXES)}


def passed_annotations(annotations: Mapping[str, str], *, group: bool = False) -> dict[str, str]:
    """Give the annotations that its workloads carry too: networks, queues, scrapes; in groups those of LWS."""
    prefixes = (*_ANNOTATION_PREFIXES, *_GROUP_PREFIXES) if group else _ANNOTATION_PREFIXES
    return {key: value for key, value in annotations.items() if key.startswith(prefixes)}


def own_annotations(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Give what `spec.annotations` says of pods."""
    return {key: value for key, value in (annotations or {}).items() if key != HEADER_ROUTING}
