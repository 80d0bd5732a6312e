"""Reduces each object to the fields that the loop reads, so that thousands of objects need little memory. Pure.

Called by the informers of `cluster_cache` and `service_cache` before they cache an object; `observe` reads the result.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from contextlib import suppress
from sys import intern
from typing import Any

from automation.drift.field_drift import owned_text
from automation.history.revision import edit_of
from automation.serving.engine_start import engine_of
from components import demand, naming
from components.rendered import fingerprint_of
from kubeapi.json_types import Json
from program.desired.keys import LABEL_DIALECT, LABEL_LLMAZ_SERVICE, LABEL_PLAYGROUND
from program.desired.quantities import read_quantity
from program.dialects.registry import ENGINE_CONTAINERS, KINDS


def custom_resource(obj: Json) -> Json:
    """Keep a custom resource except its managedFields and kubectl's last-applied annotation.

    The copies share their keys and their repeated texts, which are half of an object's size. The decoder of a watch
    event makes new ones for each object.
    """
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations and "kubectl.kubernetes.io/last-applied-configuration" in annotations:
        kept = {k: v for k, v in annotations.items() if k != "kubectl.kubernetes.io/last-applied-configuration"}
        metadata["annotations"] = kept
    if edit := edit_of(obj["metadata"]):
        metadata["changedBy"] = edit
    return {intern(key): _shared(metadata if key == "metadata" else value) for key, value in obj.items()}


_LONGEST_SHARED = 128
"""Characters of a text that is likely to be in other objects too, such as the message of a condition."""
_UNIQUE = frozenset({"name", "uid", "resourceVersion"})
_SHARED_DEPTH = 32
"""Levels of nested JSON. Deeper values are kept without a copy, so that an object of any depth can be cached."""


def _shared(value: Any, depth: int = 0) -> Any:
    """Return the same JSON, with one object for all equal keys and for all equal short texts."""
    if depth > _SHARED_DEPTH:
        return value
    if isinstance(value, dict):
        return {intern(key): item if key in _UNIQUE else _shared(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_shared(item, depth + 1) for item in value]
    return intern(value) if type(value) is str and len(value) <= _LONGEST_SHARED else value


_OWNERS = frozenset(kind.kind for kind in KINDS.values())


def _is_ours(owner: Json) -> bool:
    return bool(owner.get("controller")) and owner.get("kind") in _OWNERS


_ANNOTATIONS = (
    naming.ANNOTATION_APPLIED_HASH,
    naming.ANNOTATION_ASKED_REPLICAS,
    naming.ANNOTATION_ASLEEP,
    naming.ANNOTATION_DO_NOT_DISRUPT,
    naming.ANNOTATION_KEPT_TEMPLATE,
    naming.ANNOTATION_POOL,
    naming.ANNOTATION_TEMPLATE_HASH,
)
LABEL_COMPONENT = "app.kubernetes.io/component"
_LABELS = (
    *(naming.LABEL_SERVICE, naming.LABEL_HOST, naming.LABEL_MODEL, LABEL_DIALECT, LABEL_PLAYGROUND),
    *(LABEL_LLMAZ_SERVICE, LABEL_COMPONENT, "app.kubernetes.io/name", "app.kubernetes.io/part-of"),
)
_EMPTY: Json = {}
"""Shared by all objects without such values; cached objects are never changed."""


def _metadata(obj: Json) -> Json:
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    labels = metadata.get("labels") or {}
    return {
        "name": metadata["name"],
        "namespace": intern(metadata.get("namespace", "")),
        "uid": metadata.get("uid", ""),
        "resourceVersion": metadata.get("resourceVersion", ""),
        "generation": metadata.get("generation", 0),
        "labels": {key: intern(labels[key]) for key in _LABELS if key in labels} or _EMPTY,
        "annotations": {key: intern(annotations[key]) for key in _ANNOTATIONS if key in annotations} or _EMPTY,
        "owner": next((o["uid"] for o in metadata.get("ownerReferences") or () if _is_ours(o)), ""),
        "deleting": "deletionTimestamp" in metadata,
    }


def made(obj: Json) -> Json:
    """Reduce the metadata of an object made for a service to what the loop reads, including what drift compares."""
    kept = _metadata(obj)
    kept["owned"] = owned_text(obj)
    metadata = obj["metadata"]
    # The metadata of an object without a generation, such as a Service, does not show a change of its spec.
    spec = None if metadata.get("generation") else obj.get("spec")
    kept["content"] = hash(json.dumps([metadata.get("labels"), metadata.get("annotations"), spec]))
    return kept


def owned(obj: Json) -> Json:
    """Reduce an object made for a service to its identity and its owner."""
    return {"metadata": made(obj)}


def owned_in_full(obj: Json) -> Json:
    """Keep all fields of an object made for a service that other services refer to, with its identity and its owner."""
    kept = custom_resource(obj)
    return {**kept, "metadata": {**kept["metadata"], **made(obj), "labels": obj["metadata"].get("labels") or {}}}


def deployment(obj: Json) -> Json:
    """Reduce a Deployment to its replica target and who set it, a replica's requests, and the rollout's progress."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    pod_spec = (spec.get("template") or {}).get("spec") or {}
    conditions = conditions_of(obj)
    progressing, failure = conditions.get("Progressing") or {}, conditions.get("ReplicaFailure") or {}
    volumes = pod_spec.get("volumes") or ()
    claims = tuple(v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v)
    requests, limits = _resources(pod_spec, "requests"), _resources(pod_spec, "limits")
    kept = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "observedGeneration")
    return {
        "metadata": made(obj),
        "spec": {
            "replicas": spec.get("replicas", 1),
            "scaled_by": _scaler(obj),
            "claims": tuple(intern(claim) for claim in claims),
            "requests": {**requests, **{name: limits[name] for name in limits if name not in requests}},
        },
        "status": {key: status[key] for key in kept if key in status},
        "replica_failure": failure.get("message", "")[:MESSAGE_LENGTH] if failure.get("status") == "True" else "",
        "progress_deadline_exceeded": progressing.get("status") == "False"
        and progressing.get("reason") == "ProgressDeadlineExceeded",
    }


def workload(obj: Json) -> Json:
    """Reduce a Deployment or LeaderWorkerSet of KServe or llmaz as `deployment` does, with its kind and conditions.

    `gpus` and `memory_bytes` of the spec are the requests of one replica: of one pod, or of a whole group.
    """
    status = obj.get("status") or {}
    conditions = {
        kind: {key: str(each.get(key, ""))[:MESSAGE_LENGTH] for key in ("status", "reason", "message")}
        for kind, each in conditions_of(obj).items()
        if kind in ("Available", "Progressing")
    }
    selector = ((obj.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    chosen = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    reduced, pods = deployment(obj), _pods_of_replica(obj.get("spec") or {})
    reduced["spec"] |= {
        "gpus": int(sum(demand.of_pod(pod, demand.gpus) * count for pod, count in pods)),
        "memory_bytes": int(sum(demand.of_pod(pod, demand.memory) * count for pod, count in pods)),
    }
    return {
        **reduced,
        "kind": intern(obj.get("kind", "")),
        "conditions": conditions,
        "selector": status.get("hpaPodSelector") or chosen,
    }


def _pods_of_replica(spec: Json) -> list[tuple[Json, int]]:
    """Return the pod specs of one replica, each with the number of such pods."""
    group = spec.get("leaderWorkerTemplate")
    if group is None:
        return [((spec.get("template") or {}).get("spec") or {}, 1)]
    worker = (group.get("workerTemplate") or {}).get("spec") or {}
    leader = (group.get("leaderTemplate") or {}).get("spec") or worker
    return [(leader, 1), (worker, int(group.get("size") or 1) - 1)]


def _scaler(obj: Json) -> str:
    """Return the field manager that set the replicas through the scale subresource, or an empty text.

    The API server removes the entry from managedFields when another manager sets the field.
    """
    for entry in obj["metadata"].get("managedFields") or ():
        if entry.get("subresource") == "scale" and "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            return intern(str(entry.get("manager", "")))
    return ""


def conditions_of(obj: Json) -> dict[str, Json]:
    """Return the conditions of an object by type."""
    return {c["type"]: c for c in (obj.get("status") or {}).get("conditions") or () if "type" in c}


def autoscaler(obj: Json) -> Json:
    """Reduce a HorizontalPodAutoscaler or ScaledObject to a digest of its spec, and the condition that is not met.

    Its status is written every 15 s. A digest of spec and condition replaces the resourceVersion, so that the informer
    reports no change while both are equal.
    """
    conditions = conditions_of(obj)
    problem = next(
        (c for t in ("AbleToScale", "ScalingActive", "Ready") if _is_false(c := conditions.get(t) or {})), {}
    )
    spec = obj.get("spec") or {}
    digest = fingerprint_of({"spec": spec, "why": [problem.get("type"), problem.get("reason")]})
    kept = made(obj)
    kept["resourceVersion"] = f"{digest} {hash(kept['owned'])} {kept['content']}"
    text = ": ".join(str(problem[key]) for key in ("reason", "message") if problem.get(key))
    return {
        "metadata": kept,
        "kind": intern(obj.get("kind", "HorizontalPodAutoscaler")),
        "spec": digest,
        "target": intern((spec.get("scaleTargetRef") or {}).get("name", "")),
        "max_replicas": spec.get("maxReplicas") or spec.get("maxReplicaCount"),
        "problem": text[:MESSAGE_LENGTH],
    }


def _is_false(condition: Json) -> bool:
    # ScalingDisabled is the reason of an autoscaler whose target is scaled to zero.
    return condition.get("status") == "False" and condition.get("reason") != "ScalingDisabled"


def autoscaler_with_conditions(obj: Json) -> Json:
    """Reduce an autoscaler as `autoscaler` does, with its conditions. Their messages change with every measurement."""
    kept = autoscaler(obj)
    conditions = [
        {key: str(each.get(key, "")) for key in ("type", "status", "reason")}
        for each in (obj.get("status") or {}).get("conditions") or ()
    ]
    version = f"{kept['metadata']['resourceVersion']} {conditions}"
    metadata = {**kept["metadata"], "resourceVersion": version}
    return {**kept, "metadata": metadata, "status": {"conditions": conditions}}


MESSAGE_LENGTH = 1024
_UNREMARKABLE = (None, "", "Completed", "PodInitializing", "ContainerCreating")


def pod(obj: Json) -> Json:
    """Reduce a pod to its node, its priority, the start of its engine, and, while it is not ready, reasons and
    requests.
    """
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    conditions = conditions_of(obj)
    ready = (conditions.get("Ready") or {}).get("status") == "True"
    scheduled = conditions.get("PodScheduled") or {}
    disrupted = conditions.get("DisruptionTarget") or {}
    waits = scheduled.get("status") == "False"
    return {
        "metadata": _metadata(obj),
        "ready": ready,
        "phase": intern(status.get("phase", "Pending")),
        "node": intern(spec.get("nodeName", "")),
        "priority": spec.get("priority", 0),
        "init_running": "" if ready else _running_init(status),
        "problems": () if ready else tuple(_problems(spec, status)),
        "unschedulable": scheduled.get("message", "")[:MESSAGE_LENGTH] if waits else "",
        "requests": _EMPTY if ready else _resources(spec, "limits"),
        "needs": _resources(spec, "requests") if waits else _EMPTY,
        "node_selector": (spec.get("nodeSelector") or _EMPTY) if waits else _EMPTY,
        "device_claims": bool(spec.get("resourceClaims")),
        "nominated_node": intern(status.get("nominatedNodeName") or ""),
        "preempted": disrupted.get("status") == "True" and disrupted.get("reason") == "PreemptionByScheduler",
        "engine": engine_of(obj),
    }


def workload_pod(obj: Json) -> Json:
    """Reduce a pod of KServe or llmaz as `pod` does. Its engine is found by the container's name first."""
    engine = engine_of(obj, ENGINE_CONTAINERS)
    engine.pop("foreign", None)
    return {**pod(obj), "engine": engine}


def _running_init(status: Json) -> str:
    entries = status.get("initContainerStatuses") or ()
    return next((intern(e["name"]) for e in entries if "running" in (e.get("state") or {})), "")


def _problems(spec: Json, status: Json) -> Iterator[Json]:
    """Yield the problems of a pod that is not ready: first that of the pod, then those of its containers."""
    if status.get("phase") == "Failed" and status.get("reason"):
        yield _problem("", status["reason"], str(status.get("message", ""))[:MESSAGE_LENGTH])
    for field, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        images = {c.get("name"): c.get("image", "") for c in spec.get("initContainers" if init else "containers") or ()}
        for entry in status.get(field) or ():
            state = entry.get("state") or {}
            ended = state.get("terminated") or (entry.get("lastState") or {}).get("terminated") or {}
            stopped = state.get("waiting") or state.get("terminated") or {}
            reason = stopped.get("reason")
            crashed = ended.get("exitCode", 0) != 0 or ended.get("reason") == "OOMKilled"
            if reason in _UNREMARKABLE and not crashed:
                continue
            last_words = (ended.get("message") or "").strip()[-MESSAGE_LENGTH:]
            yield _problem(
                entry["name"],
                "" if reason in _UNREMARKABLE else reason,
                last_words or (stopped.get("message") or "")[:MESSAGE_LENGTH],
                init=init,
                image=images.get(entry["name"]) or entry.get("image", ""),
                exit_code=ended.get("exitCode"),
                oom_killed=ended.get("reason") == "OOMKilled",
                restarts=entry.get("restartCount", 0),
            )


def _problem(container: str, reason: str, message: str, **more: Any) -> Json:
    return {"container": container, "reason": reason, "message": message, **more}


def _resources(pod_spec: Json, field: str) -> Json:
    """Sum `limits` or `requests` of all containers that run side by side."""
    total: Json = {}
    for container in pod_spec.get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get(field) or {}).items():
            total[intern(name)] = str(amount) if name not in total else _sum(total[name], str(amount))
    return total or _EMPTY


def _sum(left: str, right: str) -> str:
    try:
        both = read_quantity(left) + read_quantity(right)
    except ValueError:
        return right
    return format(both.normalize(), "f")


def node(obj: Json) -> Json:
    """Reduce a node to its labels, its resources, its pod CIDRs, and the reason why it is not ready."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    ready = conditions_of(obj).get("Ready") or {"status": "True"}
    why = "" if ready.get("status") == "True" else ": ".join(filter(None, (ready.get("reason"), ready.get("message"))))
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    return {
        "metadata": {
            "name": metadata["name"],
            "labels": {intern(k): intern(v) for k, v in (metadata.get("labels") or {}).items()},
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "status": {
            "capacity": {intern(key): intern(value) for key, value in capacity.items() if "/" in key},
            "allocatable": {
                intern(key): intern(value)
                for key, value in allocatable.items()
                if "/" in key or key in ("cpu", "memory", "ephemeral-storage")
            },
        },
        "podRanges": tuple(_pod_ranges(obj.get("spec") or {})),
        "trouble": intern(why[:MESSAGE_LENGTH]),
    }


def _pod_ranges(spec: Json) -> Iterator[str]:
    """Return the CIDRs of a node's pods that can be read."""
    for text in {*(spec.get("podCIDRs") or ()), *filter(None, (spec.get("podCIDR"),))}:
        with suppress(ValueError):
            yield str(ipaddress.ip_network(text, strict=False))


def namespace(obj: Json) -> Json:
    """Reduce a namespace to its labels, its annotations for Herdsman, and whether it is being deleted."""
    metadata = obj["metadata"]
    said = {intern(k): v for k, v in (metadata.get("annotations") or {}).items() if k.startswith("herdsman.dev/")}
    return {
        "metadata": {"name": metadata["name"], "resourceVersion": metadata.get("resourceVersion", "")},
        "labels": metadata.get("labels") or _EMPTY,
        "annotations": said or _EMPTY,
        "terminating": "deletionTimestamp" in metadata,
    }


def priority_class(obj: Json) -> Json:
    """Reduce a PriorityClass to its value."""
    return {"metadata": {"name": obj["metadata"]["name"]}, "value": obj.get("value", 0)}


def route(obj: Json) -> Json:
    """Reduce an HTTPRoute to its hostnames, whether gateways accepted it, and the message of one that did not."""
    hostnames = (obj.get("spec") or {}).get("hostnames") or ()
    refused, accepted = "", False
    for parent in (obj.get("status") or {}).get("parents") or ():
        for condition in parent.get("conditions") or ():
            if condition.get("type") in ("Accepted", "ResolvedRefs") and condition.get("status") == "False":
                refused = f"{condition.get('reason', '')}: {condition.get('message', '')}"[:MESSAGE_LENGTH]
            elif condition.get("type") == "Accepted" and condition.get("status") == "True":
                accepted = True
    said = accepted or bool(refused)
    return {
        "metadata": made(obj),
        "hosts": tuple(hostnames),
        "tls": False,
        "accepted": (accepted and not refused) if said else None,
        "message": refused,
    }


def ingress(obj: Json) -> Json:
    """Reduce an Ingress to its hosts, or to the addresses that its controller published."""
    spec = obj.get("spec") or {}
    rules = tuple(rule["host"] for rule in spec.get("rules") or () if rule.get("host"))
    published = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    addresses = tuple(entry.get("hostname") or entry.get("ip") or "" for entry in published)
    return {
        "metadata": made(obj),
        "hosts": rules or addresses,
        "tls": bool(spec.get("tls")),
        "accepted": True if addresses else None,
        "message": "",
    }


def claim(obj: Json) -> Json:
    """Reduce a volume claim to its phase."""
    return {"metadata": _metadata(obj), "status": {"phase": (obj.get("status") or {}).get("phase", "Pending")}}
