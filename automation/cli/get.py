"""`herdsman get`: what is served, where, and how far it is; with `models`, what there is to serve."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from automation.cli.output import OutputFormat, complain, print_json, print_table
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.kinds import Kind

Object = dict[str, Any]
MODELS = frozenset({"model", "models", "mdl"})
"""Words that, as the first one, ask for Models instead of services."""

_SERVICE_COLUMNS = {
    "NAMESPACE": "namespace",
    "NAME": "name",
    "PHASE": "phase",
    "MODEL": "model",
    "REPLICAS": "replicas",
    "QUEUE": "queue",
    "PRIORITY": "priority",
    "RUNS ON": "runsOn",
    "ENDPOINT": "endpoint",
    "AGE": "age",
    "REASON": "reason",
    "MESSAGE": "message",
}
_MODEL_COLUMNS = {
    "NAMESPACE": "namespace",
    "NAME": "name",
    "PHASE": "phase",
    "SIZE": "size",
    "ARCHITECTURE": "architecture",
    "QUANTIZATION": "quantization",
    "ACCELERATOR": "accelerator",
    "AGE": "age",
    "SOURCE": "source",
    "MESSAGE": "message",
}


def get(
    names: Annotated[
        list[str] | None, typer.Argument(help="Services to show, all of them when none is named; `models` for Models.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace.")] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Show InferenceServices with their phase, their place and their endpoint; or Models."""
    asked = list(names or ())
    of_models = bool(asked) and asked[0].lower() in MODELS
    kind = kinds.MODELS if of_models else kinds.INFERENCE_SERVICES
    now = datetime.now(UTC)
    try:
        client = KubeClient.default(kubeconfig)
        objects = _named(client.list(kind, namespace)["items"], asked[1:] if of_models else asked, kind)
        if of_models:
            rows = [model_row(model, now=now) for model in objects]
        else:
            processes = processes_of(client, namespace)
            rows = [service_row(service, processes, now=now) for service in objects]
    except NotFound:
        complain(f"the cluster does not know {kind.kind}s", hint="`herdsman crds | kubectl apply -f -`")
        raise typer.Exit(1) from None
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    if not rows:
        complain(f"no {kind.kind}s here", hint="`examples/` has some to apply")
        return
    columns = _MODEL_COLUMNS if of_models else _SERVICE_COLUMNS
    print_table(tuple(columns), [[row[key] for key in columns.values()] for row in rows], phase_column=2)


def _named(objects: list[Object], names: list[str], kind: Kind) -> list[Object]:
    if not names:
        return objects
    found = [obj for obj in objects if obj["metadata"]["name"] in names]
    missing = set(names) - {obj["metadata"]["name"] for obj in found}
    if missing:
        complain(f"no {kind.kind} {', '.join(f'`{name}`' for name in sorted(missing))}")
        raise typer.Exit(1)
    return found


def processes_of(client: KubeClient, namespace: str | None) -> dict[tuple[str, str], Object]:
    """Find the processes on hosts, by namespace and name of their service; none where the cluster knows no hosts."""
    try:
        found = client.list(kinds.HOST_PROCESSES, namespace)["items"]
    except NotFound:
        return {}
    return {(process["metadata"]["namespace"], process["metadata"]["name"]): process for process in found}


def service_row(service: Object, processes: dict[tuple[str, str], Object], *, now: datetime) -> dict[str, str]:
    """Flatten one service to what a person asks first."""
    metadata, status = service["metadata"], service.get("status") or {}
    ready = condition_of(status, "Ready")
    well = ready.get("status") == "True"
    queue = ""
    if status.get("queuePosition"):
        queue = f"{status['queuePosition']}/{status.get('queueLength', '?')} {status.get('waitingFor', '')}".strip()
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": status.get("phase") or "Unknown",
        "model": service["spec"]["modelRef"],
        "replicas": f"{status.get('readyReplicas', 0)}/{status.get('desiredReplicas', 0)}",
        "queue": queue,
        "priority": str(status.get("effectivePriority", "")),
        "runsOn": runs_on(processes.get((metadata["namespace"], metadata["name"]))),
        "endpoint": status.get("endpoint") or "",
        "age": age_text(metadata, now=now),
        "reason": str(ready.get("reason", "")),
        "message": "" if well else str(ready.get("message", "")),
    }


def runs_on(process: Object | None) -> str:
    """Say where a service runs: in pods, or on which host and where that listens."""
    if process is None:
        return "pods"
    report = process.get("status") or {}
    place = f"host {process['spec']['host']}"
    if report.get("address") and report.get("port"):
        place += f" ({report['address']}:{report['port']})"
    return place


def model_row(model: Object, *, now: datetime) -> dict[str, str]:
    """Flatten one Model to what a person asks first."""
    metadata, spec, status = model["metadata"], model["spec"], model.get("status") or {}
    gguf, ready = status.get("gguf") or {}, condition_of(status, "Ready")
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": status.get("phase") or "Unknown",
        "size": "" if status.get("size") in (None, "0") else str(status["size"]),
        "architecture": gguf.get("architecture", ""),
        "quantization": gguf.get("quantization") or spec.get("quantization") or "",
        "accelerator": (spec.get("hardware") or {}).get("accelerator", "cpu"),
        "age": age_text(metadata, now=now),
        "source": spec["source"],
        "message": "" if ready.get("status") == "True" else str(ready.get("message", "")),
    }


def condition_of(status: Object, kind: str) -> Object:
    """Find a condition by its type; empty where there is none."""
    return next((dict(c) for c in status.get("conditions") or () if c["type"] == kind), {})


def age_text(metadata: Object, *, now: datetime) -> str:
    """Write how long ago an object was made."""
    return duration_text((now - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds())


def duration_text(seconds: float) -> str:
    """Write a duration as kubectl does: its largest unit."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{int(seconds // length_s)}{unit}"
    return f"{int(seconds)}s"
