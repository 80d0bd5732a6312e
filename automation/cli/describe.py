"""`herdsman describe NAME`: one service in text: its state and the reason, its replicas, its Events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from automation.cache.owners import process_selector_of, selector_of
from automation.cli.get import model_row
from automation.cli.output import (
    OutputFormat,
    age_text,
    complain,
    duration_text,
    phase_style,
    print_json,
    print_table,
    styled,
)
from automation.cli.place_options import Context
from automation.cli.service_lookup import NAME_HELP, find_service
from automation.places.cluster_states import context_of
from automation.places.running_on import processes_by_service, runs_on
from automation.places.service_view import conditions_of, is_replica, observed_generation, view_of
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.registry import LLMKUBE, key_of, kind_text

EVENTS_SHOWN = 20
_PROOF = {"Answered": "yes", "Unverified": "unknown", "CompletionFailed": "no"}
"""The state for each reason of the pod's condition. Other reasons mean that no completion was requested."""


def describe(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the service, if several namespaces have the name."),
    ] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table (text) or json.")] = OutputFormat.TABLE,
) -> None:
    """Show one service: phase and reason, replicas, queue, memory, rollout, recent Events."""
    try:
        client = KubeClient.default(kubeconfig, context=context)
        service = find_service(client, namespace, name)
        description = describe_service(service, **_around(client, service), now=datetime.now(UTC))
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if output is OutputFormat.JSON:
        print_json(description)
    else:
        print_description(description)


def _around(client: KubeClient, service: Json) -> dict[str, Any]:
    """Read the objects around a service. Objects that the user may not read are omitted without an error."""
    metadata = service["metadata"]
    namespace = metadata["namespace"]

    def listed(
        kind: Kind, *, fields: str | None = None, labels: str | None = None, unseen: Sequence[Json] = ()
    ) -> list[Json]:
        try:
            found = client.list(kind, namespace, field_selector=fields, label_selector=labels)
            return list(found["items"])
        except (NotFound, Forbidden):
            return list(unseen)

    key = key_of(service)
    processes = listed(kinds.HOST_PROCESSES, labels=process_selector_of(key.dialect, (key.name,)))
    model: Json | None = {}
    if key.dialect == LLMKUBE:
        models = listed(kinds.MODELS, fields=f"metadata.name={service['spec']['modelRef']}", unseen=({},))
        model = models[0] if models else None
    return {
        "model": model,
        "pods": listed(kinds.PODS, labels=_pods_of(service)),
        "events": listed(kinds.EVENTS, fields=f"involvedObject.uid={metadata['uid']}"),
        "process": processes_by_service(processes).get(key),
    }


def _pods_of(service: Json) -> str:
    """Return the selector of a service's pods. For llmaz it is in the status: the pods lack Herdsman's label."""
    key = key_of(service)
    selector = (service.get("status") or {}).get("selector") if key.dialect.startswith("llmaz") else ""
    return str(selector or selector_of(key.dialect, (key.name,)))


# --- the description: pure --------------------------------------------------------------------------------------------


def describe_service(
    service: Json,
    *,
    model: Json | None,
    pods: Sequence[Json],
    events: Sequence[Json],
    process: Json | None,
    now: datetime,
) -> Json:
    """Build the document about one service, which `-o json` prints and the text shows. Empty parts are left out.

    `model` is None when there is none, and empty when the user may not read it.
    """
    metadata, spec, status = service["metadata"], service["spec"], service.get("status") or {}
    view = view_of(service)
    ready = conditions_of(service).get("Ready") or {}
    description: Json = {
        "kind": view.kind,
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "phase": view.phase,
        "reason": view.reason,
        "message": ready.get("message", "") or view.message,
        "age": age_text(metadata, now=now),
        "current": observed_generation(service) == metadata.get("generation"),
        "model": {"name": view.model, **_model(model, now=now)},
        "runtime": "" if view.kind else spec.get("runtime", "llamacpp"),
        "mode": status.get("mode", ""),
        "runsOn": runs_on(service, process),
        "context": _context(spec, process),
        "endpoint": view.endpoint,
        "gateway": status.get("gateway") or {},
        "priority": status.get("effectivePriority"),
        "counts": {
            "ready": view.ready_replicas,
            "desired": view.desired_replicas,
            # KServe's status does not count existing replicas; the visible pods are counted.
            "existing": max(view.replicas, sum(map(is_replica, pods)))
            if view.kind == kind_text("kserve")
            else view.replicas,
            "unproved": status.get("unprovedReplicas", 0),
        },
        "queue": _queue(status),
        "scheduling": status.get("schedulingMessage", ""),
        "memory": status.get("memory") or {},
        "acceleration": status.get("acceleration") or {},
        "conditions": [_condition(c, now=now) for c in status.get("conditions") or ()],
        "replicas": [_replica(pod, now=now) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))],
        "events": _events(events, now=now),
    }
    return {key: value for key, value in description.items() if value not in ("", None, {}, [])}


def _model(model: Json | None, *, now: datetime) -> Json:
    if not model:
        return {"phase": "missing"} if model is None else {}
    row = model_row(model, now=now)
    return {key: row[key] for key in ("phase", "size", "architecture", "quantization", "source") if row[key]}


def _context(spec: Json, process: Json | None) -> str:
    """Describe the context, and who chose it; empty where neither the service nor a host sets one."""
    tokens = context_of(spec, process)
    if tokens is None or spec.get("contextSize"):
        return "" if tokens is None else f"{tokens:,} tokens"
    chosen = ((process or {}).get("metadata", {}).get("annotations") or {}).get(naming.ANNOTATION_DEFAULT_CONTEXT, "")
    if chosen == "pending":
        why = "the model or the host was not known when the process was made"
    elif chosen:
        why = "chosen by the model and the host's memory"
    else:
        why = "the default of an earlier version; delete the HostProcess for the present default"
    return f"{tokens:,} tokens ({why})"


def _queue(status: Json) -> Json:
    if not status.get("waitingFor"):
        return {}
    queue = {"waitingFor": status["waitingFor"], "position": status.get("queuePosition")}
    return {**queue, "length": status.get("queueLength")}


def _condition(condition: Json, *, now: datetime) -> Json:
    since = datetime.fromisoformat(condition["lastTransitionTime"])
    kept = {key: condition.get(key, "") for key in ("type", "status", "reason", "message")}
    return {**kept, "for": duration_text((now - since).total_seconds())}


def _replica(pod: Json, *, now: datetime) -> Json:
    status = pod.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return {
        "pod": pod["metadata"]["name"],
        "node": (pod.get("spec") or {}).get("nodeName", ""),
        "state": _state(pod, containers),
        "ready": conditions.get("Ready", {}).get("status") == "True",
        "proved": _proof(conditions.get(naming.CONDITION_COMPLETED, {}), containers),
        "restarts": sum(int(entry.get("restartCount", 0)) for entry in containers),
        "age": age_text(pod["metadata"], now=now),
    }


def _proof(condition: Json, containers: Sequence[Json]) -> str:
    """Describe the result of the completion check. Its message names the start of the engine that it is for."""
    start = condition.get("message")
    if start and start not in {entry.get("containerID") for entry in containers}:
        return "-"
    return _PROOF.get(str(condition.get("reason")), "-")


def _state(pod: Json, containers: Sequence[Json]) -> str:
    """Return the state of a pod in one word, as `kubectl get pods` shows it."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    for entry in containers:
        state = entry.get("state") or {}
        stopped = state.get("waiting") or state.get("terminated") or {}
        if stopped.get("reason") not in (None, "Completed", "PodInitializing", "ContainerCreating"):
            return str(stopped["reason"])
    return str((pod.get("status") or {}).get("phase", "Unknown"))


def _events(events: Sequence[Json], *, now: datetime) -> list[Json]:
    """Return the last Events, the oldest first."""

    def at(event: Json) -> str:
        return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])

    return [
        {
            "age": duration_text((now - datetime.fromisoformat(at(event))).total_seconds()),
            "type": event.get("type", "Normal"),
            "reason": event.get("reason", ""),
            "count": event.get("count") or (event.get("series") or {}).get("count") or 1,
            "message": event.get("message", ""),
        }
        for event in sorted(events, key=at)[-EVENTS_SHOWN:]
    ]


# --- the text ---------------------------------------------------------------------------------------------------------


def print_description(description: Json) -> None:
    """Print a description; with colours only on a terminal."""
    console = Console(soft_wrap=True, highlight=False)

    def line(title: str, text: str | Text) -> None:
        if text:
            # A condition's name may be longer than the column.
            console.print(
                styled(f"{title + ':':<13} ", style="bold") + (text if isinstance(text, Text) else styled(text))
            )

    line("Name", f"{description['namespace']}/{description['name']}")
    line("Kind", description.get("kind", ""))
    phase = styled(description["phase"], style=phase_style(description["phase"]))
    reason = description.get("reason", "")
    line("Phase", phase + styled(f" ({reason})" if reason and reason != description["phase"] else ""))
    line("Why", description.get("message", ""))
    if not description.get("current"):
        line(
            "Note",
            styled("this status is for an earlier spec; the loop has not reconciled the last edit yet", style="yellow"),
        )
    model = description["model"]
    about = ", ".join(model[key] for key in ("phase", "size", "architecture", "quantization") if model.get(key))
    line("Model", f"{model['name']} ({about})" if about else model["name"])
    line("Engine", ", ".join(part for part in (description.get("runtime", ""), description.get("mode", "")) if part))
    line("Runs on", description["runsOn"])
    line("Context", description.get("context", ""))
    line("Endpoint", description.get("endpoint", ""))
    line("Outside", description.get("gateway", {}).get("endpoint", ""))
    line("Replicas", counts_text(description["counts"]))
    line("Queue", queue_text(description.get("queue", {})))
    line("Scheduler", description.get("scheduling", ""))
    line("Priority", str(description.get("priority", "")))
    line("Memory", memory_text(description.get("memory", {})))
    line("Computes on", acceleration_text(description.get("acceleration", {})))
    for condition in notable(description.get("conditions", []), why=description.get("message", "")):
        line(condition["type"], f"{condition['reason']} for {condition['for']}: {condition['message']}")
    if description.get("replicas"):
        console.print()
        keys = ("pod", "node", "state", "ready", "proved", "restarts", "age")
        rows = [[_cell(replica[key]) for key in keys] for replica in description["replicas"]]
        print_table(tuple(key.upper() for key in keys), rows, phase_column=2)
    if description.get("events"):
        console.print()
        columns = {"LAST SEEN": "age", "TYPE": "type", "EVENT": "reason", "COUNT": "count", "MESSAGE": "message"}
        rows = [[_cell(event[key]) for key in columns.values()] for event in description["events"]]
        print_table(tuple(columns), rows, phase_column=1)


def _cell(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def counts_text(counts: Json) -> str:
    """Return how many replicas serve, and the state of the others."""
    text = f"{counts['ready']} of {counts['desired']} ready"
    if counts["existing"] != counts["desired"]:
        text += f", {counts['existing']} exist"
    if counts["unproved"]:
        text += f", {counts['unproved']} healthy but without a completion yet"
    return text


def queue_text(queue: Json) -> str:
    """Return the place in the queue; empty when the service waits for no GPU."""
    if not queue:
        return ""
    place = f"number {queue['position']} of {queue.get('length') or '?'}, " if queue.get("position") else ""
    return f"{place}waits for {queue['waitingFor']}"


def memory_text(memory: Json) -> str:
    """Return the estimated memory of a replica, beside its request."""
    if not memory:
        return ""
    parts = {"weights": "weights", "kvCache": "KV cache", "compute": "compute"}
    made_of = ", ".join(f"{memory[key]} {word}" for key, word in parts.items() if memory.get(key))
    text = f"{memory.get('total', '?')} estimated ({made_of})"
    if memory.get("asked"):
        text += f"; {memory['asked']} requested"
    if memory.get("available"):
        text += f"; the largest node has {memory['available']}"
    return text


def acceleration_text(acceleration: Json) -> str:
    """Return the device that computes."""
    if not acceleration:
        return ""
    layers = f"{acceleration.get('layersOffloaded', 0)} of {acceleration.get('layersTotal', 0)} layers"
    return f"{acceleration.get('device', '?')} ({layers})"


_TOLD_ALREADY = frozenset({"Ready", "Reconciling", "Stalled", "Available", "Progressing", "GPUAvailable", "Degraded"})
_WELL_WHEN_FALSE = frozenset({"Suspended", "RolledBack", "RolloutDeferred", "ChangePending", "TemplateKept", "Drifted"})


def notable(conditions: Sequence[Json], *, why: str = "") -> list[Json]:
    """Return the conditions that report a problem that no other line shows.

    `why` is the service's own message. KServe's summary conditions repeat the messages of others.
    """
    found: list[Json] = []
    for condition in conditions:
        kind, message = condition["type"], condition.get("message", "")
        if kind in _TOLD_ALREADY or kind == "Suspended":
            continue
        if condition["status"] != ("True" if kind in _WELL_WHEN_FALSE else "False"):
            continue
        if message and (message in why or any(message == each.get("message") for each in found)):
            continue
        found.append(condition)
    return found
