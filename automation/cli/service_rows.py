"""The rows of `herdsman list`, `ps`, `status` and `queue`: a service in words and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum

from automation.cli.output import age_text, size_text
from automation.places.place import Download, ServiceState, State
from kubeapi.json_types import Json
from program.dialects.registry import DIALECTS, dialect_of

COLUMNS = {
    "NAMESPACE": "namespace",
    "NAME": "name",
    "STATE": "state",
    "MODEL": "model",
    "REPLICAS": "replicas",
    "CONTEXT": "context",
    "AGE": "age",
    "WHY": "message",
}
WIDE = {
    **{key: value for key, value in COLUMNS.items() if key != "WHY"},
    "KIND": "kind",
    "PHASE": "phase",
    "REASON": "reason",
    "RUNS ON": "runsOn",
    "ENDPOINT": "endpoint",
    "WHY": "message",
}


class ListFormat(StrEnum):
    """The values of `-o` of the commands that list services."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def row(service: ServiceState) -> Json:
    """Return a service for `-o json`. Numbers are numbers, and unknown values are null."""
    metadata = service.document.get("metadata") or {}
    download = service.download
    return {
        "namespace": service.namespace,
        "name": service.name,
        "kind": service.kind or "InferenceService",
        "state": service.state.value,
        "phase": service.phase,
        "reason": service.reason,
        "message": service.message,
        "model": service.model,
        "readyReplicas": service.ready_replicas,
        "desiredReplicas": service.desired_replicas,
        "contextSize": service.context_size,
        "runsOn": service.runs_on,
        "endpoint": service.endpoint,
        "current": service.is_current,
        "download": {"bytes": download.done_bytes, "total": download.total_bytes} if download else None,
        "createdAt": metadata.get("creationTimestamp"),
    }


def cells(service: ServiceState, columns: Iterable[str], *, now: datetime | None = None) -> list[str]:
    """Return a service as a row of a table with these keys of `row`, `replicas`, `context` and `age`."""
    shown = row(service)
    metadata = service.document.get("metadata") or {}
    shown["replicas"] = f"{service.ready_replicas}/{service.desired_replicas}"
    shown["context"] = "" if service.context_size is None else str(service.context_size)
    shown["age"] = age_text(metadata, now=now or datetime.now(UTC)) if metadata.get("creationTimestamp") else ""
    shown["message"] = why(service)
    return [str(shown[key] or "") for key in columns]


def why(service: ServiceState) -> str:
    """Return why a service is not ready, with its download; empty when it is ready."""
    if service.state is State.READY:
        return ""
    parts = [download_text(service.download) if service.download else "", service.message]
    return "; ".join(part for part in parts if part)


def download_text(download: Download) -> str:
    """Return how far a download is."""
    if not download.done_bytes and not download.total_bytes:
        return "the download begins"
    if not download.total_bytes:
        return f"{size_text(download.done_bytes)} downloaded"
    share = min(100, 100 * download.done_bytes // download.total_bytes)
    return f"{size_text(download.done_bytes)} of {size_text(download.total_bytes)} downloaded ({share} %)"


def qualified_name(service: ServiceState) -> str:
    """Return KIND/NAME, as `-o name` prints it; it is accepted wherever a service is named."""
    dialect = dialect_of(service.document)
    return f"{DIALECTS[dialect].singular if dialect else 'inferenceservice'}/{service.name}"


def documents(services: Sequence[ServiceState]) -> list[Json]:
    """Return the custom resources for `-o yaml`, without what only the API server reads."""
    return [without_managed_fields(each.document) for each in services]


def without_managed_fields(document: Json) -> Json:
    """Return an object without its managedFields."""
    metadata = {key: value for key, value in (document.get("metadata") or {}).items() if key != "managedFields"}
    return {**document, "metadata": metadata}
