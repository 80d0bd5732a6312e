"""All processes of one host over SSH: observes them, and performs the next action of each.

`advance` never waits for a download, a drain or a start. The next call continues from the observed state of the host.
`agent.processes.lifecycle` decides the action. Called by `host` and by `automation.hosts.ssh_worker`, from one thread
at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.errors import CommandRefused, SudoRefused
from agent.client.ssh.layout import Record
from agent.client.ssh.machine import SshMachine
from agent.client.ssh.observed import (
    ObservedProcess,
    observe_unit,
    phase_of,
    read_processes,
    report_of_earlier,
    report_of_stopped,
    serves_earlier,
    status_of_start,
)
from agent.client.ssh.preparation import Preparation, StartDeferred
from agent.client.ssh.probes import ProcessProbes
from agent.client.ssh.scripts import script
from agent.client.ssh.steps import (
    RemoteHost,
    Started,
    file_in,
    hash_of,
    removal_steps,
    unit_steps,
    written_steps,
)
from agent.client.ssh.unit_watch import MayRepair, UnitWatch, checksum
from agent.contract import HostFacts, ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.processes import lifecycle
from agent.processes.decision import Action, Desired
from agent.processes.draining import drain_timeout_of
from agent.processes.lifecycle import Policy, ProcessStatus
from agent.processes.secret_values import SecretApi
from agent.sources.source_policy import SourcePolicy
from agent.steps.machine import MachineError
from agent.steps.service import NotExpressible, Service
from agent.steps.step import Outcome, State, Step, run_steps
from agent.version import agent_version

POLICY = Policy(
    stable_check_interval_s=5.0,
    starting_check_interval_s=0.3,
    first_check_interval_s=0.3,
    backoff_base_s=2.0,
)

_DEFERRING = (StartDeferred, CommandRefused, SudoRefused)
"""Errors that concern one process: its next action has to wait."""

_log = structlog.get_logger(__name__)


class SshProcesses:
    """The processes of one host. Every method may raise HostError and can then be called again."""

    def __init__(
        self,
        connection: SshConnection,
        *,
        host: str,
        address: str = "",
        policy: SourcePolicy | None = None,
        secret_api: SecretApi | None = None,
        may_repair: MayRepair = lambda _key, _words, _is_news: True,
        refusal: Callable[[str, ProcessPlan], str] = lambda _key, _plan: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address` is the processes' address in reports; empty means the host's address on the connection.

        `policy` None lets plans name any source. `secret_api` reads Secrets if the host has no file for them; None
        means that only files count. `may_repair` is called when a unit was changed. `refusal` is called before a start
        and returns why the host's owner does not allow a plan, or an empty string.
        """
        self.host = host
        self._connection = connection
        self._address = address
        self._clock = clock
        self._machine = SshMachine(connection)
        self._statuses: dict[str, ProcessStatus] = {}
        self._may_repair = may_repair
        self._units = UnitWatch()
        self._preparation = Preparation(
            connection,
            self._machine,
            host=host,
            policy=policy,
            secret_api=secret_api,
            refusal=refusal,
            on_connect=self._units.drop_units,
            clock=clock,
        )
        self._awake: dict[str, str] = {}
        """By key, the start of the process that keeps the Mac awake."""
        self._unproved: dict[str, str] = {}
        """By key, the proved start that could not be written on the host; a warning was logged."""
        self._probes = ProcessProbes(connection)

    # Observation

    def facts(self) -> HostFacts:
        """Return the facts of the host."""
        remote = self.remote_host()
        address = self._address or remote.facts.address
        return remote.facts.of_host(self.host, address, agent_version())

    def remote_host(self) -> RemoteHost:
        """Return the facts of the host, read once per connection."""
        return self._preparation.remote_host()

    def list_processes(self) -> dict[str, ObservedProcess]:
        """Observe all processes with one command."""
        remote = self.remote_host()
        manager = remote.facts.init or "systemd"
        arguments = [remote.layout.root, manager, "user" if remote.own_user else "system", remote.units]
        text = self._connection.shell(script("look"), what="reading the states of the processes", arguments=arguments)
        seen, _unread = read_processes(text)
        for gone in set(self._statuses) - set(seen):
            if not self._statuses[gone].retry_at:
                del self._statuses[gone]
        return seen

    def changes(self, key: str, plan: ProcessPlan | None) -> list[Outcome]:
        """Return the steps that `advance` or `remove` would perform. Changes nothing."""
        remote, seen = self.remote_host(), self.list_processes()
        if plan is None:
            return run_steps(removal_steps(key, remote), self._machine, dry_run=True)
        record = self._preparation.record(key, plan, 0, seen)
        before = seen.get(key)
        if before is not None:
            record = record.model_copy(update={"generation": before.record.generation})
        service = self._preparation.service(record)
        files = self._preparation.file_steps(plan)
        steps = [*written_steps(record, remote), *files, *_unit_steps(service, remote)]
        return run_steps([*steps, Started(service, remote, before)], self._machine, dry_run=True)

    def write(self, key: str, plan: ProcessPlan, generation: int, seen: dict[str, ObservedProcess]) -> Record:
        """Write the record of a plan on the host if it has changed. The port stays."""
        before = seen.get(key)
        record = self._preparation.record(key, plan, generation, seen)
        if before is not None and before.runs and before.launch != hash_of(plan, self.remote_host().facts.address):
            earlier = before.record.earlier or before.record.plan
            if hash_of(earlier, self.remote_host().facts.address) == before.launch:
                record = record.model_copy(update={"earlier": earlier})
        if before is not None and before.record == record:
            return record
        self._run(written_steps(record, self.remote_host()))
        return record

    def advance(self, key: str, plan: ProcessPlan, generation: int, seen: dict[str, ObservedProcess]) -> ProcessReport:
        """Perform the next action towards a plan, and report the process. `seen` is the current observation."""
        status, now = self._statuses.get(key, ProcessStatus()), self._clock()
        remote, before = None, seen.get(key)
        try:
            remote = self.remote_host()  # asks the host after a reconnection, and that may fail
            desired = Desired(plan, hash_of(plan, remote.facts.address), generation)
            if before is not None:
                status = status_of_start(status, before, now=now)
            status = lifecycle.plan_changed(status, desired)
            self._preparation.check_runtime(plan)
            if before is None or not before.runs or before.launch != desired.launch_hash:
                self._preparation.check_allowed(key, plan)
                if status.reason == ProcessReason.NOT_ALLOWED:
                    status = replace(status, attempts=0, retry_at=0.0, reason="", message="")
            record = self.write(key, plan, generation, seen)
            observed = observe_unit(before, status, desired.launch_hash, now=now)
            action = lifecycle.next_step(status, desired, observed, now=now, policy=POLICY).action
            if before is not None and action in (Action.WATCH, Action.CHECK_HEALTH, Action.CHECK_COMPLETION):
                status = self._watch(record, remote, before, status)
                return self._report(record, before, self._keep(key, status), desired.launch_hash)
            if action in (Action.START, Action.STOP, Action.RESTART):
                return self._replace(action, record, remote, before, status, desired)
            if before is not None and serves_earlier(before, status, desired.launch_hash):
                words = ProcessPhase.BACKING_OFF, status.reason, status.message
                return self._report_earlier(record, remote, before, status, desired.launch_hash, *words)
            return self._report(record, before, self._keep(key, status), desired.launch_hash)
        except _DEFERRING as error:
            reason = _reason_of(error)
            status = self._keep(key, _attempt_failed(status, reason, error.message, now=now))
            if remote is not None:
                launch_hash = hash_of(plan, remote.facts.address)
                with suppress(*_DEFERRING):  # the first error is reported
                    before = self._serves_still(key, before, status, launch_hash)
                    if before is not None:
                        words = ProcessPhase.BACKING_OFF, reason, error.message
                        record = before.record.model_copy(update={"generation": generation})
                        return self._report_earlier(record, remote, before, status, launch_hash, *words)
            return report_of_stopped(ProcessPhase.BACKING_OFF, reason, error.message, generation)

    def remove(self, key: str, seen: dict[str, ObservedProcess]) -> ProcessReport | None:
        """Perform the next action towards the removal of a process. Returns None after the removal."""
        before = seen.get(key)
        if before is None:
            self._drop_process(key)
            return None
        status, now = lifecycle.plan_changed(self._statuses.get(key, ProcessStatus()), None), self._clock()
        observed, generation = observe_unit(before, status, "", now=now), before.record.generation
        action = lifecycle.next_step(status, None, observed, now=now, policy=POLICY).action
        if action is Action.WAIT:
            return report_of_stopped(ProcessPhase.STOPPING, status.reason, status.message, generation)
        try:
            remote = self.remote_host()
            if not before.record.removing:
                self._run(written_steps(before.record.model_copy(update={"removing": True}), remote))
            if action is Action.STOP:
                status, is_drained = self._drain(before, remote, status)
                self._keep(key, status)
                if not is_drained:
                    return report_of_stopped(ProcessPhase.STOPPING, "", "", generation)
            self._run(removal_steps(key, remote))
        except _DEFERRING as error:
            reason = _reason_of(error)
            self._keep(key, _attempt_failed(status, reason, error.message, now=now))
            return report_of_stopped(ProcessPhase.STOPPING, reason, error.message, generation)
        self._drop_process(key)
        return None

    def observe(self, key: str, seen: ObservedProcess) -> ProcessReport:
        """Report a process after checking its health. Changes nothing on the host but the record of a proved start."""
        record, remote = seen.record, self.remote_host()
        if record.removing:
            return report_of_stopped(ProcessPhase.STOPPING, "", "", record.generation)
        launch_hash = hash_of(record.plan, remote.facts.address)
        status = status_of_start(self._statuses.get(key, ProcessStatus()), seen, now=self._clock())
        if seen.runs:
            if seen.launch == launch_hash:
                # Observations are too rare here to wait for several failures in a row.
                status = self._check(record, remote, seen, status, replace(POLICY, unhealthy_after=1))
            self._keep(key, status)
        if serves_earlier(seen, status, launch_hash):
            phase = ProcessPhase.BACKING_OFF if status.attempts else ProcessPhase.DOWNLOADING
            words = phase, status.reason if status.attempts else "", status.message if status.attempts else ""
            return self._report_earlier(record, remote, seen, status, launch_hash, *words)
        return self._report(record, seen, status, launch_hash)

    def _replace(
        self,
        action: Action,
        record: Record,
        remote: RemoteHost,
        before: ObservedProcess | None,
        status: ProcessStatus,
        desired: Desired,
    ) -> ProcessReport:
        """Download the files, stop a running process, and start that of the plan."""
        key = record.key
        download = self._preparation.fetch(record, self._statuses.get(key, ProcessStatus()).attempts)
        if download is not None:
            self._keep(key, status)
            progress = {"downloaded_bytes": download.done_bytes, "total_bytes": download.total_bytes}
            if before is not None and serves_earlier(before, status, desired.launch_hash):
                told = ProcessPhase.DOWNLOADING, "", ""
                report = self._report_earlier(record, remote, before, status, desired.launch_hash, *told)
            else:
                report = report_of_stopped(ProcessPhase.PENDING, "", "", record.generation)
                if before is not None:
                    report = self._report(record, before, status, desired.launch_hash)
                words = {"phase": ProcessPhase.DOWNLOADING, "reason": "", "message": "", "ready": False}
                report = report.model_copy(update=words)
            return report.model_copy(update=progress)
        record = record.model_copy(update={"earlier": None})
        service = self._preparation.service(record)
        if action is Action.STOP and before is not None:
            status, is_drained = self._drain(before, remote, status)
            self._keep(key, status)
            if not is_drained:
                return report_of_stopped(ProcessPhase.STOPPING, ProcessReason.REPLACING, "", record.generation)
        elif action is Action.START:
            promised = {each.record.port for other, each in self.list_processes().items() if other != key}
            record = self._preparation.with_free_port(record, promised)
            service = self._preparation.service(record)
        started = Started(service, remote, before if action is not Action.RESTART else None)
        secrets = self._preparation.secret_steps(record)
        unit = _unit_steps(service, remote)
        self._run([*secrets, *written_steps(record, remote), *unit, started])
        self._units.in_order(key, checksum(file_in(unit)))
        self._keep(key, ProcessStatus(launch_hash=desired.launch_hash))
        return report_of_stopped(ProcessPhase.STARTING, "", "", record.generation)

    def _serves_still(
        self, key: str, before: ObservedProcess | None, status: ProcessStatus, launch_hash: str
    ) -> ObservedProcess | None:
        """Return the process of an earlier plan if it serves now. It may have been stopped before an error."""
        if before is None or not serves_earlier(before, status, launch_hash):
            return None
        found = self.list_processes().get(key)
        return found if found is not None and serves_earlier(found, status, launch_hash) else None

    def _report_earlier(
        self,
        record: Record,
        remote: RemoteHost,
        before: ObservedProcess,
        status: ProcessStatus,
        launch_hash: str,
        phase: ProcessPhase,
        reason: str,
        message: str,
    ) -> ProcessReport:
        """Check the process of an earlier plan, which serves until all files of the plan are on the host."""
        checked = self._check(record, remote, before, status, POLICY)
        # Phase, reason and message are those of the plan.
        status = replace(checked, phase=status.phase, reason=status.reason, message=status.message)
        self._keep(record.key, status)
        report = self._report(record, before, status, launch_hash)
        return report_of_earlier(report, status, record, phase=phase, reason=reason, message=message)

    def _watch(self, record: Record, remote: RemoteHost, seen: ObservedProcess, status: ProcessStatus) -> ProcessStatus:
        self._repair_unit(record, remote, seen)
        if remote.facts.os == "darwin" and self._awake.get(record.key) != seen.start:
            # An idle Mac sleeps, and its processes then do not serve.
            self._connection.shell(script("keep_awake"), what="keeping the Mac awake", arguments=[str(seen.pid)])
            self._awake[record.key] = seen.start
        if status.attempts:
            status = replace(lifecycle.stop_cancelled(status), attempts=0, retry_at=0.0)
        return self._check(record, remote, seen, status, POLICY)

    def _check(
        self, record: Record, remote: RemoteHost, seen: ObservedProcess, status: ProcessStatus, policy: Policy
    ) -> ProcessStatus:
        """Check health and completion if they are due, and record a proved start on the host."""
        if self._clock() < status.check_at:
            return status
        failure = self._probes.health(record, remote)
        status = lifecycle.health_checked(status, record.plan, failure=failure, now=self._clock(), policy=policy)
        if status.is_healthy:
            failure = self._probes.completion(record, remote)
            status = lifecycle.completion_checked(status, failure=failure, now=self._clock(), policy=policy)
        if status.ready_since is not None and seen.proved != seen.start:
            self._write_proved(record.key, seen.start, remote)
        return status

    def _write_proved(self, key: str, start: str, remote: RemoteHost) -> None:
        """Record a proved start on the host. After a failure the next check tries again, because the process serves."""
        try:
            self._machine.write(remote.layout.proved(key), f"{start}\n".encode(), mode=0o600)
        except MachineError as error:
            if self._unproved.get(key) != start:
                _log.warning("Could not record a proved start", host=self.host, process=key, error=error.message)
            self._unproved[key] = start

    def _repair_unit(self, record: Record, remote: RemoteHost, seen: ObservedProcess) -> None:
        """Write unit and files of a running process, once per connection and after a change by another program."""
        changed = self._units.change(record.key, seen)
        if changed is None or (changed.words and not self._may_repair(record.key, changed.words, changed.is_news)):
            return
        unit, start = seen.unit, seen.start
        with suppress(StartDeferred):  # it serves; a problem with its unit is reported when it has to be started again
            service = self._preparation.service(record)
            steps = _unit_steps(service, remote)
            self._run([*written_steps(record, remote), *steps])
            unit = checksum(file_in(steps))
            if changed.restarted:
                self._run([Started(service, remote, None)])
                start = ""
        self._units.in_order(record.key, unit, start)

    def _drain(self, seen: ObservedProcess, remote: RemoteHost, status: ProcessStatus) -> tuple[ProcessStatus, bool]:
        """Check once whether the running process works on requests. The second value is True if it may be stopped."""
        busy = self._probes.busy(seen.record, remote)
        timeout_s = drain_timeout_of(seen.record.plan)
        if status.ready_since is None and status.drain is None and not seen.proved:
            timeout_s = 0.0  # no client was ever sent there
        return lifecycle.drain_answered(status, busy, timeout_s, now=self._clock())

    def _run(self, steps: Sequence[Step]) -> None:
        for outcome in run_steps(steps, self._machine):
            if outcome.state is State.FAILED:
                words = _with_hint(f"{outcome.title}: {outcome.detail}", outcome.hint)
                raise StartDeferred(ProcessReason.LAUNCH_FAILED, words)

    def _report(
        self, record: Record, seen: ObservedProcess | None, status: ProcessStatus, launch_hash: str
    ) -> ProcessReport:
        words = ""
        if seen is not None and seen.active in ("failed", "activating"):
            words = self._probes.last_words(record.key, self.remote_host())
        phase, reason, message = phase_of(seen, status, launch_hash, last_words=words)
        running = status.running if seen is not None and seen.runs else None
        return ProcessReport(
            phase=phase,
            reason=reason,
            message=message,
            observed_generation=record.generation,
            pid=running.pid if running is not None else None,
            port=record.port if running is not None else None,
            address=(self._address or self.remote_host().facts.address) if running is not None else None,
            restarts=seen.restarts if seen is not None else 0,
            started_at=running.started_at if running is not None else None,
            ready=phase is ProcessPhase.READY,
        )

    def _keep(self, key: str, status: ProcessStatus) -> ProcessStatus:
        self._statuses[key] = status
        return status

    def _drop_process(self, key: str) -> None:
        self._statuses.pop(key, None)
        self._units.drop_unit(key)
        self._awake.pop(key, None)
        self._unproved.pop(key, None)
        self._preparation.drop_process(key)


def _unit_steps(service: Service, remote: RemoteHost) -> list[Step]:
    """Return the steps that install a unit. Raises StartDeferred if the host cannot have such a unit."""
    try:
        return unit_steps(service, remote)
    except MachineError as error:
        raise StartDeferred(ProcessReason.LAUNCH_FAILED, _with_hint(error.message, error.hint)) from error
    except NotExpressible as error:
        raise StartDeferred(ProcessReason.PLAN_INVALID, str(error)) from error


def _with_hint(words: str, hint: str) -> str:
    return f"{words}; {hint}" if hint else words


def _reason_of(error: StartDeferred | CommandRefused | SudoRefused) -> str:
    return error.reason if isinstance(error, StartDeferred) else ProcessReason.LAUNCH_FAILED


def _attempt_failed(status: ProcessStatus, reason: str, message: str, *, now: float) -> ProcessStatus:
    return lifecycle.attempt_failed(status, reason=reason, message=message, now=now, policy=POLICY)
