"""Reduces the objects of hosts to the fields that the loop reads: HostProcess, Host, Lease, EndpointSlice. Pure.

Called as `trim` is, by the informers before they cache an object.
"""

from __future__ import annotations

from sys import intern

from agent.contract import ANNOTATION_FENCED
from agent.processes.adapters import adapters_of
from agent.server.cluster.host_lease import lease_name
from automation.cache.trim import made
from automation.hosts.parse import capacity_of
from components import naming
from kubeapi.json_types import Json, JsonView
from program.runtimes.flags import number_of


def host_process(obj: Json) -> Json:
    """Reduce a HostProcess to its replica, host and model, its context, its adapters, and the state that the host
    reported."""
    spec = obj.get("spec") or {}
    placed = {
        "host": intern(spec.get("host", "")),
        "replica": spec.get("replica") or 0,
        "memory": spec.get("memoryBytes"),
        "context": context_of_plan(spec),
        "chosen": intern((obj["metadata"].get("annotations") or {}).get(naming.ANNOTATION_DEFAULT_CONTEXT, "")),
        "sources": model_sources_of_plan(spec),
    }
    if adapters := adapters_of(spec.get("argv") or ()):
        placed["adapters"] = adapters
    return {"metadata": made(obj), "spec": placed, "status": obj.get("status") or {}}


def context_of_plan(spec: JsonView) -> int | None:
    """Return the context in tokens of a HostProcess with llama-server; None for another engine."""
    argv = [str(each) for each in spec.get("argv") or ()]
    return number_of(argv, "--ctx-size", "-c") if spec.get("runtime") == "llamacpp" else None


def model_sources_of_plan(spec: JsonView) -> tuple[str, ...]:
    """Return the addresses of the files of a HostProcess, by which its model is known. Adapters do not count."""
    adapters = adapters_of(spec.get("argv") or ())
    files = (spec.get("file"), *(file for name, file in (spec.get("files") or {}).items() if name not in adapters))
    return tuple(sorted(intern(str(each.get("source", ""))) for each in files if each))


def host(obj: Json) -> Json:
    """Reduce a Host to its capacity, which placement reads. The rest of its status changes often and is not read."""
    metadata = obj["metadata"]
    return {
        "metadata": {"name": metadata["name"], "resourceVersion": metadata.get("resourceVersion", "")},
        "capacity": capacity_of(obj),
    }


def endpoint_slice(obj: Json) -> Json:
    """Reduce an agent's EndpointSlice to the number of ready addresses, the host, and the heartbeat.

    Addresses and host replace the resourceVersion, so that a heartbeat alone is not reported as a change.
    """
    metadata = obj["metadata"]
    host = intern((metadata.get("labels") or {}).get(naming.LABEL_HOST, ""))
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
            "host": host,
            "resourceVersion": f"{ready} on {host}",
        },
        "ready": ready,
        "heartbeat": (metadata.get("annotations") or {}).get("llmkube.ai/agent-heartbeat", ""),
    }


def lease(obj: Json) -> Json:
    """Reduce a host's Lease to the host, the holder, the renewal time, and whether it is fenced.

    The host is the one in the label. It is empty when the Lease does not have the name of that host's Lease.
    """
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    host = (metadata.get("labels") or {}).get(naming.LABEL_HOST, "")
    return {
        "metadata": {
            "name": metadata["name"],
            "namespace": intern(metadata.get("namespace", "")),
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "host": host if metadata["name"] == lease_name(host) else "",
        "renewed": spec.get("renewTime", ""),
        "duration_s": spec.get("leaseDurationSeconds", 40),
        "holder": spec.get("holderIdentity") or "",
        "fenced": (metadata.get("annotations") or {}).get(ANNOTATION_FENCED, ""),
    }
