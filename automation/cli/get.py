"""`herdsman get`: services with phase, place and endpoint; with `models`, the Models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import typer

from automation.cli.output import OutputFormat, age_text, complain, condition_of, print_json, print_table
from automation.cli.place_options import Context
from automation.cli.service_lookup import list_services, split_or_end
from automation.places.running_on import processes_by_service, runs_on
from automation.places.service_view import view_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.dialects.registry import LLMKUBE, dialect_of, is_part_of_another, key_of, kind_text

MODELS = frozenset({"model", "models", "mdl"})
"""First arguments that select Models instead of services."""

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
        list[str] | None, typer.Argument(help="Services to show; `models` shows Models. The default is all services.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace.")] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """List services of all dialects with their phase, place and endpoint; or Models.

    `KIND/NAME` selects one service if several kinds have the name.
    """
    asked = list(names or ())
    of_models = bool(asked) and asked[0].lower() in MODELS
    kind = kinds.MODELS if of_models else kinds.INFERENCE_SERVICES
    now = datetime.now(UTC)
    try:
        client = KubeClient.default(kubeconfig, context=context)
        if of_models:
            models = _models_named(client.list(kind, namespace)["items"], asked[1:])
            rows = [model_row(model, now=now) for model in models]
        else:
            services = _services_named(client, namespace, asked)
            processes = processes_of(client, namespace)
            rows = [service_row(service, processes, now=now) for service in services]
    except NotFound:
        complain(f"the cluster has no CRD for {kind.kind}s", hint="`herdsman crds | kubectl apply --server-side -f -`")
        raise typer.Exit(1) from None
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    if not rows:
        complain(f"no {'Models' if of_models else 'services'} here", hint="apply one, such as a file of `examples/`")
        return
    columns = _MODEL_COLUMNS if of_models else _SERVICE_COLUMNS
    if any(row.get("kind") for row in rows):
        # Names are unique only within a kind.
        rows = [{"kind": kinds.INFERENCE_SERVICES.kind, **row} for row in rows]
        columns = {"NAMESPACE": "namespace", "NAME": "name", "PHASE": "phase", "KIND": "kind", **columns}
    print_table(tuple(columns), [[row[key] for key in columns.values()] for row in rows], phase_column=2)


def _models_named(models: list[Json], names: list[str]) -> list[Json]:
    if not names:
        return models
    found = [model for model in models if model["metadata"]["name"] in names]
    _end_without(set(names) - {model["metadata"]["name"] for model in found}, kinds.MODELS.kind)
    return found


def _services_named(client: KubeClient, namespace: str | None, names: list[str]) -> list[Json]:
    """Return the services of all dialects, or the named ones.

    The Service that llmaz makes for a Playground is returned only for `KIND/NAME`.
    """
    asked = {split_or_end(name) for name in names}
    found, seen = [], set()
    for cr in list_services(client, namespace):
        own, alone = (dialect_of(cr), cr["metadata"]["name"]), (None, cr["metadata"]["name"])
        if own in asked or ((alone in asked or not asked) and not is_part_of_another(cr)):
            found.append(cr)
            seen |= {own, alone}
    for dialect in {dialect for dialect, _ in asked - seen}:
        _end_without({name for said, name in asked - seen if said == dialect}, kind_text(dialect or LLMKUBE))
    return found


def _end_without(missing: set[str], kind: str) -> None:
    if missing:
        complain(f"no {kind} {', '.join(f'`{name}`' for name in sorted(missing))}")
        raise typer.Exit(1)


def processes_of(client: KubeClient, namespace: str | None) -> dict[ServiceKey, Json]:
    """Return the first process of each service on hosts; none where the cluster serves no HostProcesses."""
    try:
        found = client.list(kinds.HOST_PROCESSES, namespace)["items"]
    except NotFound:
        return {}
    return processes_by_service(found)


def service_row(service: Json, processes: Mapping[ServiceKey, Json], *, now: datetime) -> dict[str, str]:
    """Return one row of the table of services; for another dialect than LLMKube's with its `kind`."""
    metadata, status, view = service["metadata"], service.get("status") or {}, view_of(service)
    queue = ""
    if status.get("queuePosition"):
        queue = f"{status['queuePosition']}/{status.get('queueLength', '?')} {status.get('waitingFor', '')}".strip()
    return {
        **({"kind": view.kind} if view.kind else {}),
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": view.phase,
        "model": view.model,
        "replicas": f"{view.ready_replicas}/{view.desired_replicas}",
        "queue": queue,
        "priority": str(status.get("effectivePriority", "")),
        "runsOn": runs_on(service, processes.get(key_of(service))),
        "endpoint": view.endpoint,
        "age": age_text(metadata, now=now),
        "reason": view.reason,
        "message": view.message,
    }


def model_row(model: Json, *, now: datetime) -> dict[str, str]:
    """Return one row of the table of Models."""
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
