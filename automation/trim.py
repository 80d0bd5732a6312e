"""What the loop remembers of each object: only the fields that it reads, so that thousands fit in little memory.

Called by the informers of `watch` before they cache an object; `observe` reads the result. Pure.
"""

from __future__ import annotations

from typing import Any

from automation.engine_start import engine_of
from components import naming
from components.rendered import fingerprint_of

Object = dict[str, Any]


def custom_resource(obj: Object) -> Object:
    """Keep a custom resource whole but for what nobody reads."""
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations and "kubectl.kubernetes.io/last-applied-configuration" in annotations:
        kept = {k: v for k, v in annotations.items() if k != "kubectl.kubernetes.io/last-applied-configuration"}
        metadata["annotations"] = kept
    return {**obj, "metadata": metadata}


def _is_ours(owner: Object) -> bool:
    return bool(owner.get("controller")) and owner.get("kind") == "InferenceService"


def _metadata(obj: Object) -> Object:
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    kept = {
        key: annotations[key]
        for key in (naming.ANNOTATION_APPLIED_HASH, naming.ANNOTATION_DO_NOT_DISRUPT)
        if key in annotations
    }
    return {
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "uid": metadata.get("uid", ""),
        "resourceVersion": metadata.get("resourceVersion", ""),
        "generation": metadata.get("generation", 0),
        "labels": {
            key: value
            for key, value in (metadata.get("labels") or {}).items()
            if key in (naming.LABEL_SERVICE, naming.LABEL_HOST)
        },
        "annotations": kept,
        "owner": next((o["uid"] for o in metadata.get("ownerReferences") or () if _is_ours(o)), ""),
        "deleting": "deletionTimestamp" in metadata,
    }


def owned(obj: Object) -> Object:
    """Keep of an object made for a service: who it is and whose it is."""
    return {"metadata": _metadata(obj)}


def deployment(obj: Object) -> Object:
    """Keep of a Deployment: identity, the live replica target, and the counts of its status."""
    status = obj.get("status") or {}
    kept = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "observedGeneration")
    return {
        "metadata": _metadata(obj),
        "spec": {"replicas": (obj.get("spec") or {}).get("replicas", 1)},
        "status": {key: status[key] for key in kept if key in status},
    }


def autoscaler(obj: Object) -> Object:
    """Keep of an autoscaler: identity and a digest of its spec. Its status changes often and concerns nobody."""
    kept = _metadata(obj)
    kept["resourceVersion"] = ""
    return {"metadata": kept, "spec": fingerprint_of(obj.get("spec"))}


def pod(obj: Object) -> Object:
    """Keep of a pod: why it is not ready. A ready pod keeps next to nothing."""
    status = obj.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    ready = (conditions.get("Ready") or {}).get("status") == "True"
    scheduled = conditions.get("PodScheduled") or {}
    problems = []
    if not ready:
        for entry in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            state = entry.get("state") or {}
            stopped = state.get("waiting") or state.get("terminated")
            if stopped and stopped.get("reason") not in (None, "Completed", "PodInitializing", "ContainerCreating"):
                last = (entry.get("lastState") or {}).get("terminated") or {}
                problems.append(
                    {
                        "container": entry["name"],
                        "reason": stopped["reason"],
                        "message": (last.get("message") or stopped.get("message") or "")[:512],
                    }
                )
    requests: Object = {}
    if not ready:
        for container in (obj.get("spec") or {}).get("containers") or ():
            requests.update((container.get("resources") or {}).get("limits") or {})
    return {
        "metadata": _metadata(obj),
        "ready": ready,
        "phase": status.get("phase", "Pending"),
        "unschedulable": scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        "problems": problems,
        "requests": requests,
        "engine": engine_of(obj),
    }


def node(obj: Object) -> Object:
    """Keep of a node: how much of each extended resource it has."""
    capacity = (obj.get("status") or {}).get("capacity") or {}
    extended = {key: value for key, value in capacity.items() if "/" in key}
    return {"metadata": {"name": obj["metadata"]["name"]}, "status": {"capacity": extended}}


def claim(obj: Object) -> Object:
    """Keep of a volume claim: its phase."""
    return {"metadata": _metadata(obj), "status": {"phase": (obj.get("status") or {}).get("phase", "Pending")}}


def host_process(obj: Object) -> Object:
    """Keep of a HostProcess: where it is placed and what its host reported."""
    spec = obj.get("spec") or {}
    return {"metadata": _metadata(obj), "spec": {"host": spec.get("host", "")}, "status": obj.get("status") or {}}


def endpoint_slice(obj: Object) -> Object:
    """Keep of an agent's EndpointSlice: ready addresses and the heartbeat."""
    metadata = obj["metadata"]
    ready = sum(
        len(e.get("addresses") or ())
        for e in obj.get("endpoints") or ()
        if (e.get("conditions") or {}).get("ready", True)
    )
    return {
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "service": (metadata.get("labels") or {}).get("kubernetes.io/service-name", ""),
        },
        "ready": ready,
        "heartbeat": (metadata.get("annotations") or {}).get("llmkube.ai/agent-heartbeat", ""),
    }


def lease(obj: Object) -> Object:
    """Keep of a host's Lease: the host's name and when it was last renewed."""
    spec = obj.get("spec") or {}
    return {
        "metadata": {"name": obj["metadata"]["name"], "namespace": obj["metadata"].get("namespace", "")},
        "host": (obj["metadata"].get("labels") or {}).get(naming.LABEL_HOST, ""),
        "renewed": spec.get("renewTime", ""),
        "duration_s": spec.get("leaseDurationSeconds", 40),
        "holder": spec.get("holderIdentity") or "",
    }
