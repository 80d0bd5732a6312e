"""The HostProcess object of a service that runs on a host instead of in pods. Called by `components.render`.

Its spec is `agent.contract.ProcessPlan`: the argument builder is the pods', the host's supervisor fills in the rest.
"""

from __future__ import annotations

from typing import Any

from agent.contract import ProcessPlan
from components import naming
from components.host_files import host_files
from components.object_metadata import object_metadata, workload_labels
from components.rendered import RenderedObject
from components.service import service_port
from kubeapi import kinds
from program import sizing
from program.desired.base import JsonObject
from program.desired.engines import Generic, LlamaCpp
from program.desired.errors import SpecInvalid
from program.desired.priorities import PRIORITIES
from program.desired.service import DesiredService, HostPlacement
from program.runtimes.base import EMBEDDING_FLAGS, RERANK_FLAGS, mentions, small_completion
from program.runtimes.llamacpp import host_argv


def host_process(desired: DesiredService, host: str, replica: int = 0) -> RenderedObject:
    """Build the HostProcess of one replica, for `host`.

    Raises SpecInvalid for what no host can run: an engine other than llama.cpp and generic, weights on a claim.
    """
    labels = {**workload_labels(desired), naming.LABEL_HOST: host}
    plan = process_plan(desired, host, replica)
    manifest: JsonObject = {
        "apiVersion": kinds.HOST_PROCESSES.api_version,
        "kind": kinds.HOST_PROCESSES.kind,
        "metadata": object_metadata(desired, naming.host_process_name(desired.key.name, replica), labels),
        "spec": plan.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    return RenderedObject(naming.host_process_part(replica), naming.TYPE_HOST_PROCESS, manifest)


def process_plan(desired: DesiredService, host: str, replica: int = 0) -> ProcessPlan:
    """Plan the process of one replica. Raises SpecInvalid as `host_process` does."""
    engine = desired.engine
    if isinstance(engine, LlamaCpp):
        argv = ("llama-server", *_llama_argv(desired))
        health, completion = "/health", _completion_path(desired, engine)
    elif isinstance(engine, Generic):
        if not desired.command:
            raise SpecInvalid(
                field="spec.command", why="on a host runtime `generic` needs a command: no image brings one"
            )
        argv = (*desired.command, *engine.args)
        health, completion = "/", None
    else:
        raise SpecInvalid(field="spec.runtime", why=f"runtime `{engine.kind}` does not run on hosts")
    return ProcessPlan(
        host=host,
        service=desired.key.name,
        runtime=engine.kind,
        argv=argv,
        env={entry["name"]: str(entry.get("value", "")) for entry in desired.pod.env if "valueFrom" not in entry},
        **host_files(desired),
        health_path=health,
        completion_path=completion,
        service_name=naming.service_name(desired.key.name),
        service_port=service_port(desired),
        priority=PRIORITIES[desired.priority],
        eviction_protection=desired.eviction_protection,
        memory_bytes=sizing.declared_bytes(desired),
        memory_budget_bytes=desired.model.memory_budget_bytes,
        memory_fraction=desired.model.memory_fraction,
        replica=replica or None,
        endpoint_slice=naming.endpoint_slice_name(desired.key.name, replica) if replica else None,
        **_hosting(desired),
    )


def _hosting(desired: DesiredService) -> dict[str, Any]:
    """Say what the service wishes of its host; None, and so nothing, where it wishes nothing."""
    placement, sleep = desired.host_placement or HostPlacement(), desired.sleep
    return {
        "memory_check": placement.memory_check,
        "residency": placement.residency,
        "group": placement.group or None,
        "min_dwell_s": placement.min_dwell_s,
        "idle_timeout_s": sleep.idle_timeout_s if sleep else None,
        "wake_timeout_s": sleep.wake_timeout_s if sleep else None,
        "max_held_requests": sleep.max_held_requests if sleep else None,
    }


def _completion_path(desired: DesiredService, engine: LlamaCpp) -> str | None:
    """Choose where the agent asks for proof. Where only the user's own arguments turn chat off, health must do."""
    chats = not any(mentions(engine.extra_args, flag) for flag in (*EMBEDDING_FLAGS, *RERANK_FLAGS))
    if not desired.completion_check or (desired.mode == "chat" and not chats):
        return None
    return small_completion(desired.mode).path


def _llama_argv(desired: DesiredService) -> list[str]:
    return host_argv(
        desired,
        model_path="{model}",
        port="{port}",
        accelerator=desired.model.accelerator,
        host="{host}",
    )
