"""Handles a unit that another program changed on a host over SSH. The service's drift policy decides about its repair.

Called by `ssh_worker` when an observation shows the change.
"""

from __future__ import annotations

from collections.abc import Callable

from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import HOST_PROCESSES
from program.desired.errors import SpecInvalid
from program.desired.service import DriftPolicy
from program.dialects.annotations import read_annotations
from program.dialects.registry import KINDS, dialect_of

Record = Callable[..., None]
"""`EventRecorder.record`."""


def may_repair_unit(
    client: KubeClient, process: Json | None, words: str, *, host: str, is_news: bool, record: Record
) -> bool:
    """Return whether the drift policy of the process's service allows the repair, and record an Event on the service.

    `words` describes the change of the unit. Raises KubeError.
    """
    service = _service_of(client, process) if process is not None else None
    if service is None or process is None:
        return True
    try:
        policy = read_annotations(service["metadata"].get("annotations") or {}).drift
    except SpecInvalid:
        policy = DriftPolicy()
    repair = policy.of(HOST_PROCESSES.kind) == "repair"
    unit = f"the unit of process {process['metadata']['name']} on host {host} {words}"
    if repair:
        record(service, type="Warning", reason="DriftRepaired", message=f"Repaired drift: {unit}")
    elif is_news:
        record(service, type="Warning", reason="DriftReported", message=f"Reported drift without a repair: {unit}")
    return repair


def _service_of(client: KubeClient, process: Json) -> Json | None:
    metadata = process["metadata"]
    for reference in metadata.get("ownerReferences") or ():
        dialect = dialect_of(reference)
        if reference.get("controller") and dialect:
            found = client.find(KINDS[dialect], metadata["namespace"], reference["name"])
            return found if found is not None and found["metadata"]["uid"] == reference["uid"] else None
    return None
