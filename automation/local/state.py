"""The state of local mode as the commands show it: the instance, the services, the files with problems. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.client.http import HttpHost, token_from
from agent.client.port import HostError
from agent.contract import ProcessPhase, ProcessReason, ProcessReport
from agent.sources.errors import Reason
from automation.local.applied import Applied, AppliedService, FileProblem
from automation.local.folders import LocalFolders
from automation.local.instance import Instance, running_instance
from automation.places.place import Download, ServiceState, State
from kubeapi import kinds
from kubeapi.json_types import Json

TIMEOUT_S = 5.0
NOT_RUNNING, NOT_APPLIED, NOT_VALID = "NotRunning", "NotApplied", "NotValid"

_STATES = {
    ProcessPhase.READY: State.READY,
    ProcessPhase.ASLEEP: State.ASLEEP,
    ProcessPhase.DOWNLOADING: State.STARTING,
    ProcessPhase.STARTING: State.STARTING,
    ProcessPhase.PENDING: State.STARTING,
    ProcessPhase.STOPPING: State.STARTING,
    ProcessPhase.BACKING_OFF: State.STARTING,
    ProcessPhase.UNHEALTHY: State.STARTING,
    ProcessPhase.STOPPED: State.STOPPED,
    ProcessPhase.FAILED: State.FAILED,
}
_WAITS = frozenset({ProcessReason.INSUFFICIENT_MEMORY, ProcessReason.SWAPPED_OUT, ProcessReason.EVICTED})
_NEEDS_A_PERSON = frozenset(
    {
        *(ProcessReason.RUNTIME_MISSING, ProcessReason.RUNTIME_TOO_OLD, ProcessReason.PLAN_INVALID),
        *(ProcessReason.MEMORY_UNKNOWN, ProcessReason.SECRET_UNAVAILABLE, ProcessReason.CRASH_LOOP),
        *(Reason.NOT_FOUND, Reason.REFUSED, Reason.UNAUTHORIZED, Reason.UNTRUSTED),
        *(Reason.CHECKSUM_MISMATCH, Reason.NOT_GGUF, Reason.PLAN_INVALID),
    }
)


@dataclass(frozen=True)
class LocalState:
    """What local mode does now."""

    folders: LocalFolders
    instance: Instance | None
    """None: it does not run."""
    services: tuple[ServiceState, ...] = ()
    problems: tuple[FileProblem, ...] = ()

    @property
    def is_up(self) -> bool:
        """Whether it serves requests."""
        return self.instance is not None and self.instance.is_serving

    def as_json(self) -> Json:
        """Return the state for scripts."""
        instance = self.instance
        return {
            "running": self.is_up,
            "url": instance.url if instance is not None else "",
            "pid": instance.pid if instance is not None else None,
            "folder": str(self.folders.config),
            "log": str(self.folders.log),
            "services": [_as_json(each) for each in self.services],
            "problems": [{"file": each.file, "message": each.message} for each in self.problems],
        }


def local_state(folders: LocalFolders) -> LocalState:
    """Return the present state. An agent that does not answer has no reports."""
    instance = running_instance(folders)
    applied = Applied.read(folders.applied)
    reports = reports_of(instance) if instance is not None else {}
    services = tuple(service_state(each, reports.get(each.process), instance) for each in applied.services)
    problems = list(applied.problems)
    if applied.engine_problem:
        problems.append(FileProblem(file="Pulumi", message=applied.engine_problem))
    return LocalState(folders, instance, services, tuple(problems))


def agent_of(instance: Instance) -> HttpHost | None:
    """Return a client of the instance's agent; None while it starts."""
    if not instance.agent_url:
        return None
    return HttpHost(instance.agent_url, token_from(Path(instance.token_file)), timeout_s=TIMEOUT_S)


def reports_of(instance: Instance) -> Mapping[str, ProcessReport]:
    """Return the agent's reports by process; none if it does not answer."""
    client = agent_of(instance)
    if client is None:
        return {}
    try:
        return client.report().processes
    except HostError:
        return {}
    finally:
        client.close()


def service_state(
    service: AppliedService, report: ProcessReport | None, instance: Instance | None, *, is_current: bool = True
) -> ServiceState:
    """Return one service as its document, its process and the instance show it. `is_current`: the record is of the
    document's present content."""
    state, phase, reason, message = _shown(service, report, instance)
    told_of_old = report is not None and not is_current and not service.problem
    if told_of_old and instance is not None and state not in (State.READY, State.ASLEEP):
        # What the process says is about the document as it was before.
        state, phase, reason, message = State.STARTING, "Pending", NOT_APPLIED, "the last edit is not applied yet"
    spec = service.document.get("spec")
    replicas = spec.get("replicas", 1) if isinstance(spec, dict) else 1
    serves = report is not None and report.running_phase is ProcessPhase.READY and instance is not None
    loads = report if report is not None and report.phase is ProcessPhase.DOWNLOADING else None
    return ServiceState(
        namespace=service.namespace,
        name=service.name,
        state=state,
        phase=phase,
        reason=reason,
        message=message,
        model=service.model,
        kind="" if service.document.get("kind") == kinds.INFERENCE_SERVICES.kind else str(service.document.get("kind")),
        ready_replicas=int(serves),
        desired_replicas=0 if service.stopped else min(1, replicas) if isinstance(replicas, int) else 1,
        context_size=service.context_size,
        runs_on="this machine",
        endpoint=instance.url if instance is not None else "",
        is_current=is_current and not service.problem,
        download=Download(loads.downloaded_bytes or 0, loads.total_bytes) if loads is not None else None,
        document=service.document,
    )


def _shown(
    service: AppliedService, report: ProcessReport | None, instance: Instance | None
) -> tuple[State, str, str, str]:
    """Return state, phase, reason and message."""
    if instance is None:
        return State.STOPPED, "Stopped", NOT_RUNNING, "local mode is not running; `herdsman local up` starts it"
    if service.problem and (report is None or report.running_phase is not ProcessPhase.READY):
        return State.FAILED, "Failed", NOT_VALID, service.problem
    if service.stopped:
        return State.STOPPED, "Stopped", "", ""
    if report is None:
        return State.STARTING, "Pending", NOT_APPLIED, "it is not applied yet"
    if service.problem:
        # What was applied before the edit goes on.
        return _STATES[report.running_phase], report.phase.value, NOT_VALID, service.problem
    state = _STATES[report.running_phase]
    if report.reason in _WAITS and state is State.STARTING:
        state = State.WAITING
    elif report.reason in _NEEDS_A_PERSON and report.running_phase is ProcessPhase.BACKING_OFF:
        state = State.FAILED
    return state, report.phase.value, report.reason, report.message


def _as_json(service: ServiceState) -> Json:
    return {
        "namespace": service.namespace,
        "name": service.name,
        "model": service.model,
        "state": service.state.value,
        "phase": service.phase,
        "reason": service.reason,
        "message": service.message,
        "contextSize": service.context_size,
    }
