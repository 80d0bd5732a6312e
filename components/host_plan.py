"""The HostProcess object of a service that runs on a host instead of in pods. Called by `components.render`.

Its spec is `agent.contract.ProcessPlan`: the argument builder is the pods', the host's supervisor fills in the rest.
"""

from __future__ import annotations

from typing import Any

from agent.contract import ProcessPlan, SecretReference
from components import naming
from components.host_files import Files, host_files
from components.host_program import host_program
from components.object_metadata import object_metadata, workload_labels
from components.rendered import RenderedObject
from components.service import service_port
from kubeapi import kinds
from kubeapi.json_types import Json
from program import sizing
from program.desired.priorities import PRIORITIES
from program.desired.service import DesiredService, HostPlacement
from program.dialects.hosts.env import SHARED_ENGINES
from program.dialects.hosts.names import hosted_service_name
from program.runtimes.base import secret_env


def host_process(desired: DesiredService, host: str, replica: int = 0) -> RenderedObject:
    """Build the HostProcess of one replica, for `host`.

    Raises SpecInvalid for what no host can run: an engine other than llama.cpp and generic, weights on a claim.
    """
    labels = {**workload_labels(desired), naming.LABEL_HOST: host}
    name = naming.host_process_name(desired.key.name, replica, desired.key.dialect)
    plan = process_plan(desired, host, replica)
    manifest: Json = {
        "apiVersion": kinds.HOST_PROCESSES.api_version,
        "kind": kinds.HOST_PROCESSES.kind,
        "metadata": object_metadata(desired, name, labels),
        "spec": plan.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    return RenderedObject(naming.host_process_part(replica), naming.TYPE_HOST_PROCESS, manifest)


def process_plan(desired: DesiredService, host: str, replica: int = 0) -> ProcessPlan:
    """Plan the process of one replica. Raises SpecInvalid as `host_process` does."""
    program = host_program(desired)
    name, dialect = desired.key.name, desired.key.dialect
    return ProcessPlan(
        host=host,
        # By this name agents find the object again, which of other dialects than LLMKube's is not the service's own.
        service=naming.host_process_name(name, dialect=dialect),
        runtime=program.runtime,
        argv=program.argv,
        **_environment(desired),
        **(host_files(desired) if program.reads_files else Files(file=None, files=None)),
        daemon_model=program.daemon_model,
        health_path=program.health_path,
        completion_path=program.completion_path,
        idle=program.idle,
        service_name=hosted_service_name(dialect, name),
        service_port=service_port(desired),
        priority=PRIORITIES[desired.priority],
        eviction_protection=desired.eviction_protection,
        memory_bytes=sizing.declared_bytes(desired),
        memory_budget_bytes=desired.model.memory_budget_bytes,
        memory_fraction=desired.model.memory_fraction,
        replica=replica or None,
        endpoint_slice=naming.endpoint_slice_name(name, replica, dialect) if replica else None,
        **_hosting(desired),
    )


def _environment(desired: DesiredService) -> dict[str, Any]:
    """Say what of the environment is a value and what a reference; of two variables of one name the last counts.

    A daemon that services share gets no secret of one of them.
    """
    token = getattr(desired.engine, "hf_token", None)
    values: dict[str, str] = {}
    secrets: dict[str, SecretReference] = {}
    for entry in (*secret_env("HF_TOKEN", token), *desired.pod.env):
        name = entry["name"]
        reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
        if reference is None and "valueFrom" in entry:
            continue
        values.pop(name, None)
        secrets.pop(name, None)
        if reference is None:
            values[name] = str(entry.get("value", ""))
            continue
        secrets[name] = SecretReference(
            secret=reference["name"], key=reference["key"], optional=reference.get("optional") or None
        )
    return {"env": values, "secret_env": secrets if secrets and desired.engine.kind not in SHARED_ENGINES else None}


def _hosting(desired: DesiredService) -> dict[str, Any]:
    """Say what the service wishes of its host; None, and so nothing, where it wishes nothing."""
    placement, sleep = desired.host_placement or HostPlacement(), desired.sleep
    return {
        "memory_check": placement.memory_check,
        "residency": placement.residency,
        "group": placement.group or None,
        "min_dwell_s": placement.min_dwell_s,
        "drain_timeout_s": desired.drain_s,
        "idle_timeout_s": sleep.idle_timeout_s if sleep else None,
        "wake_timeout_s": sleep.wake_timeout_s if sleep else None,
        "max_held_requests": sleep.max_held_requests if sleep else None,
    }
