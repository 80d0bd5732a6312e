"""`herdsman get`: what is served, where, and how far it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from automation.cli.output import OutputFormat, complain, print_json, print_table
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound

Object = dict[str, Any]


def get(
    names: Annotated[list[str] | None, typer.Argument(help="Services to show; all of them when none is named.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace.")] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Show InferenceServices with their phase, their place and their endpoint."""
    try:
        client = KubeClient.default(kubeconfig)
        services = client.list(kinds.INFERENCE_SERVICES, namespace)["items"]
        try:
            processes = client.list(kinds.HOST_PROCESSES, namespace)["items"]
        except NotFound:
            processes = []
    except NotFound:
        complain("the cluster does not know InferenceServices", hint="`herdsman crds | kubectl apply -f -`")
        raise typer.Exit(1) from None
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if names:
        services = [s for s in services if s["metadata"]["name"] in names]
        missing = set(names) - {s["metadata"]["name"] for s in services}
        if missing:
            complain(f"no InferenceService {', '.join(f'`{name}`' for name in sorted(missing))}")
            raise typer.Exit(1)
    by_service = {(p["metadata"]["namespace"], p["metadata"]["name"]): p for p in processes}
    rows = [describe(service, by_service, now=datetime.now(UTC)) for service in services]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    if not rows:
        complain("no InferenceServices here", hint="`examples/` has some to apply")
        return
    columns = ("NAMESPACE", "NAME", "PHASE", "READY", "MODEL", "RUNS ON", "ENDPOINT", "AGE", "MESSAGE")
    keys = ("namespace", "name", "phase", "ready", "model", "runsOn", "endpoint", "age", "message")
    print_table(columns, [[str(row[key]) for key in keys] for row in rows], phase_column=2)


def describe(service: Object, processes: dict[tuple[str, str], Object], *, now: datetime) -> dict[str, str]:
    """Flatten one service to what a person asks first."""
    metadata, status = service["metadata"], service.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    process = processes.get((metadata["namespace"], metadata["name"]))
    report = (process or {}).get("status") or {}
    age = now - datetime.fromisoformat(metadata["creationTimestamp"])
    runs_on = "pods"
    if process is not None:
        runs_on = f"host {process['spec']['host']}"
        if report.get("address") and report.get("port"):
            runs_on += f" ({report['address']}:{report['port']})"
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": status.get("phase") or "Unknown",
        "ready": f"{status.get('readyReplicas', 0)}/{status.get('desiredReplicas', 0)}",
        "model": service["spec"]["modelRef"],
        "runsOn": runs_on,
        "endpoint": status.get("endpoint") or "",
        "age": duration_text(age.total_seconds()),
        "message": "" if ready.get("status") == "True" else str(ready.get("message", "")),
    }


def duration_text(seconds: float) -> str:
    """Write a duration as kubectl does: its largest unit."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{int(seconds // length_s)}{unit}"
    return f"{int(seconds)}s"
