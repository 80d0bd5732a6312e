"""Converts Hosts for `herdsman host`: into rows of tables, and from options into objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from agent.server.joining.leftovers import ANNOTATION_INVITED, ANNOTATION_JOINED
from automation.cache.owners import service_of
from automation.cli.output import condition_of, duration_text
from automation.places.resource_use import state_of_host
from components.naming import FLEET_TO_COME
from components.providers.kubernetes_ownership import fleet_of
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_HOST, ANNOTATION_HOST_MOVES, ServiceKey
from program.dialects.registry import LLMKUBE, kind_text

COLUMNS = {
    "NAME": "name",
    "STATE": "state",
    "TRANSPORT": "transport",
    "ADDRESS": "address",
    "SYSTEM": "system",
    "ACCELERATOR": "accelerator",
    "MEMORY": "memory",
    "PROCESSES": "processes",
    "PRESSURE": "pressure",
    "HEARTBEAT": "heartbeat",
    "VERSION": "version",
    "MESSAGE": "message",
}


def host_row(host: Json, lease: Json | None, processes: Iterable[Json], *, now: datetime) -> dict[str, str]:
    """Return one row of the table of hosts. `processes` are the HostProcesses placed on the host."""
    spec, status = host.get("spec") or {}, host.get("status") or {}
    placed = list(processes)
    ready = condition_of(status, "Ready")
    serving = sum(1 for process in placed if (process.get("status") or {}).get("ready"))
    return {
        "name": host["metadata"]["name"],
        "state": state_of_host(host),
        "transport": spec.get("transport", "agent"),
        "address": status.get("address") or spec.get("address") or "",
        "system": "/".join(part for part in (status.get("os"), status.get("arch")) if part),
        "accelerator": ", ".join(_accelerator(each) for each in status.get("accelerators") or ()),
        "memory": _memory(status, placed),
        "processes": f"{serving}/{len(placed)}",
        "pressure": str(status.get("memoryPressure") or ""),
        "heartbeat": heartbeat_text(lease, now=now),
        "version": str(status.get("agentVersion") or ""),
        "message": "" if ready.get("status") == "True" else _message(ready, lease),
    }


def heartbeat_text(lease: Json | None, *, now: datetime) -> str:
    """Return the time since the host's last heartbeat, by its clock."""
    renewed = ((lease or {}).get("spec") or {}).get("renewTime")
    if not renewed:
        return "never"
    return f"{duration_text(max(0.0, (now - datetime.fromisoformat(renewed)).total_seconds()))} ago"


def _message(ready: Json, lease: Json | None) -> str:
    return joining_text(lease, reported=bool(ready.get("message"))) or str(ready.get("message", ""))


def joining_text(lease: Json | None, *, reported: bool) -> str:
    """Return how far a host has joined that waits for its machine or its agent; empty for other hosts.

    `reported`: something else explains the state of the host, so that an earlier join does not.
    """
    notes, spec = (lease or {}).get("metadata", {}).get("annotations") or {}, (lease or {}).get("spec") or {}
    if spec.get("holderIdentity"):
        return ""
    if ends := notes.get(ANNOTATION_INVITED):
        return f"invited until {ends}; no machine has joined"
    if not reported and (joined := notes.get(ANNOTATION_JOINED)):
        return f"joined from {str(joined).rpartition(' (')[0]}; its agent does not run"
    return ""


def gib(amount: int | None) -> str:
    """Format bytes as GiB."""
    return "?" if amount is None else f"{amount / (1 << 30):.1f}"


def reserved_bytes(processes: Iterable[Json]) -> int:
    """Return the sum of the memory with which a host's processes were admitted; before that, of their estimates."""
    return sum(
        int((process.get("status") or {}).get("memoryBytes") or (process.get("spec") or {}).get("memoryBytes") or 0)
        for process in processes
    )


def _memory(status: Json, placed: list[Json]) -> str:
    allocatable = (status.get("allocatable") or {}).get("memory")
    return f"{gib(reserved_bytes(placed))}/{gib(allocatable)} GiB"


def _accelerator(each: Mapping[str, Any]) -> str:
    count = int(each.get("count") or 1)
    name = each.get("name") or each.get("type") or "?"
    return name if count == 1 else f"{count}x {name}"


def stays(process: Json, service: Json | None) -> str:
    """Return the reason why a process does not leave a drained host; empty when it moves."""
    if fleet := fleet_of(process):
        who = "a static fleet" if fleet == FLEET_TO_COME else f"static fleet `{fleet}`"
        return f"{who} places it; change annotation {ANNOTATION_HOST} in the fleet's files and run `pulumi up`"
    annotations = ((service or {}).get("metadata") or {}).get("annotations") or {}
    if service is None:
        return "its service was deleted; the process stops soon"
    if annotations.get(ANNOTATION_HOST) == process["spec"]["host"]:
        return f"annotation {ANNOTATION_HOST} pins it here"
    if annotations.get(ANNOTATION_HOST_MOVES) == "false":
        return f"annotation {ANNOTATION_HOST_MOVES} forbids to move it"
    return ""


def placed_on(processes: Iterable[Json], host: str) -> list[Json]:
    """Return the HostProcesses of a host."""
    return [process for process in processes if (process.get("spec") or {}).get("host") == host]


def key_of_process(process: Json) -> ServiceKey:
    """Return the service of a HostProcess. One without owner and labels is of the InferenceService that it names."""
    metadata = process["metadata"]
    named = (process.get("spec") or {}).get("service") or metadata["name"]
    return service_of(process) or ServiceKey(LLMKUBE, str(metadata["namespace"]), str(named))


def process_text(process: Json) -> str:
    """Name the service of a HostProcess for messages, and the replica where it is not the first."""
    key, replica = key_of_process(process), (process.get("spec") or {}).get("replica")
    kind = "" if key.dialect == LLMKUBE else f"{kind_text(key.dialect)} "
    return f"{kind}{key.namespace}/{key.name}" + (f" (replica {replica})" if replica else "")


def host_object(name: str, labels: Mapping[str, str], spec: Json) -> Json:
    """Build a Host."""
    metadata: Json = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": kinds.HOSTS.api_version, "kind": kinds.HOSTS.kind, "metadata": metadata, "spec": spec}


def known_host_lines(text: str, address: str, port: int) -> list[str]:
    """Return the keys of a host from a known_hosts file, without its names: `type base64`.

    Hashed names are skipped.
    """
    names = {address} if port == 22 else {f"[{address}]:{port}"}
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3 or words[0].startswith(("#", "@", "|")):
            continue
        if names & set(words[0].split(",")):
            found.append(f"{words[1]} {words[2]}")
    return found


def taint_of(text: str) -> Json | None:
    """Parse `key=value:Effect` or `key:Effect`; None for any other text."""
    rest, colon, effect = text.rpartition(":")
    key, equals, value = rest.partition("=")
    if not colon or not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        return None
    return {"key": key, "effect": effect, **({"value": value} if equals else {})}
