"""All processes of one host over SSH: looks, and takes for each the next step towards its plan. One thread at a time.

`advance` never waits for what takes long (a download, a drain, a start): it is called again, and goes on from what the
host shows. Called by `host` and by `automation.hosts.ssh_worker`; calls `steps`, `life`, `fetch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from agent.client.ssh import life as ssh_life
from agent.client.ssh import observed
from agent.client.ssh.connection import SshConnection
from agent.client.ssh.errors import CommandRefused, SudoRefused
from agent.client.ssh.layout import Record
from agent.client.ssh.life import Life
from agent.client.ssh.machine import SshMachine
from agent.client.ssh.observed import ObservedProcess
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
from agent.processes.decision import UNHEALTHY_AFTER, Action
from agent.processes.draining import drain_timeout_of
from agent.processes.secret_values import SecretApi
from agent.sources.source_policy import SourcePolicy
from agent.steps.step import Outcome, State, Step, run_steps
from agent.version import agent_version


class SshProcesses:
    """The processes of one host. Every method may raise HostError; it then can be called again."""

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
        """`address` is what reports say: where clients find the processes; empty: the host's own end of the connection.

        `policy` None lets plans name any source. `secret_api` looks up Secrets of which the host has no file; None:
        nobody does. `may_repair` is asked where somebody changed a unit. `refusal` is asked before a start: why the
        host's owner does not allow a plan, empty where it is allowed.
        """
        self.host = host
        self._connection = connection
        self._address = address
        self._clock = clock
        self._machine = SshMachine(connection)
        self._lives: dict[str, Life] = {}
        self._may_repair = may_repair
        self._units = UnitWatch()
        self._preparation = Preparation(
            connection,
            self._machine,
            host=host,
            policy=policy,
            secret_api=secret_api,
            refusal=refusal,
            on_connect=self._units.forget_all,
            clock=clock,
        )
        self._started: dict[str, tuple[str, str]] = {}
        self._awake: dict[str, str] = {}
        """By key the start for whose time the host stays awake."""
        self._engines = ProcessProbes(connection)

    # What is there

    def facts(self) -> HostFacts:
        """Say what the host is."""
        remote = self.remote_host()
        address = self._address or remote.facts.address
        return remote.facts.of_host(self.host, address, agent_version())

    def remote_host(self) -> RemoteHost:
        """Ask what the host is, once for each connection."""
        return self._preparation.remote_host()

    def list_processes(self) -> dict[str, ObservedProcess]:
        """Ask by one command how all processes are."""
        remote = self.remote_host()
        manager = remote.facts.init or "systemd"
        arguments = [remote.layout.root, manager, "user" if remote.own_user else "system", remote.units]
        text = self._connection.shell(script("look"), what="looking at the processes", arguments=arguments)
        seen, _unread = observed.read_processes(text)
        for gone in set(self._lives) - set(seen):
            if not self._lives[gone].wait_until:
                del self._lives[gone]
        return seen

    def changes(self, key: str, plan: ProcessPlan | None) -> list[Outcome]:
        """Say what `advance` or `remove` would do, step by step. Touches nothing."""
        remote, seen = self.remote_host(), self.list_processes()
        if plan is None:
            return run_steps(removal_steps(key, remote), self._machine, dry_run=True)
        record = self._preparation.record(key, plan, 0, seen)
        before = seen.get(key)
        if before is not None:
            record = record.model_copy(update={"generation": before.record.generation})
        service = self._preparation.service(record)
        files = self._preparation.file_steps(plan)
        steps = [*written_steps(record, remote), *files, *unit_steps(service, remote)]
        return run_steps([*steps, Started(service, remote, before)], self._machine, dry_run=True)

    def write(self, key: str, plan: ProcessPlan, generation: int, seen: dict[str, ObservedProcess]) -> Record:
        """Write a plan down on the host, if it is another, and keep its port."""
        before = seen.get(key)
        record = self._preparation.record(key, plan, generation, seen)
        if before is not None and before.record == record:
            return record
        self._take(written_steps(record, self.remote_host()))
        return record

    def advance(self, key: str, plan: ProcessPlan, generation: int, seen: dict[str, ObservedProcess]) -> ProcessReport:
        """Take the next step towards a plan, and say how the process is. `seen` is of this moment."""
        life, now = self._lives.get(key, Life()), self._clock()
        try:
            remote, before = self.remote_host(), seen.get(key)
            wanted = hash_of(plan, remote.facts.address)
            life = ssh_life.with_plan(life, wanted)
            self._preparation.check_runtime(plan)
            if before is None or not before.runs or before.launch != wanted:
                self._preparation.check_allowed(key, plan)
                if life.reason == ProcessReason.NOT_ALLOWED:
                    life = Life(wanted=wanted)
            record = self.write(key, plan, generation, seen)
            if before is not None and before.runs:
                life = ssh_life.with_start(life, before, now=now)
            action = ssh_life.next_action(before, life, plan, wanted, now=now)
            if action is Action.WATCH and before is not None:
                life = self._watch(record, remote, before, life)
                return self._report(record, before, self._keep(key, life), wanted)
            if action in (Action.PREPARE, Action.STOP, Action.RESTART):
                return self._bring_about(action, record, remote, before, life, wanted)
            return self._report(record, before, self._keep(key, life), wanted)
        except (StartDeferred, CommandRefused, SudoRefused) as error:
            failed = (
                error if isinstance(error, StartDeferred) else StartDeferred(ProcessReason.LAUNCH_FAILED, error.message)
            )
            self._keep(key, ssh_life.with_backoff(life, failed.reason, failed.message, now=now))
            return ssh_life.report_of_stopped(ProcessPhase.BACKING_OFF, failed.reason, failed.message, generation)

    def remove(self, key: str, seen: dict[str, ObservedProcess]) -> ProcessReport | None:
        """Take the next step towards no such process; None when it is gone."""
        remote, before = self.remote_host(), seen.get(key)
        if before is None:
            self._forget_process(key)
            return None
        life, now = self._lives.get(key, Life()), self._clock()
        action = ssh_life.next_action(before, life, None, "", now=now)
        if action is Action.WAIT:
            return ssh_life.report_of_stopped(
                ProcessPhase.STOPPING, life.reason, life.message, before.record.generation
            )
        try:
            if not before.record.removing:
                self._take(written_steps(before.record.model_copy(update={"removing": True}), remote))
            if action is Action.STOP:
                life, done = self._drain(before, remote, life)
                self._keep(key, life)
                if not done:
                    return ssh_life.report_of_stopped(ProcessPhase.STOPPING, "", "", before.record.generation)
            self._take(removal_steps(key, remote))
        except StartDeferred as failed:
            self._keep(key, ssh_life.with_backoff(life, failed.reason, failed.message, now=now))
            return ssh_life.report_of_stopped(
                ProcessPhase.STOPPING, failed.reason, failed.message, before.record.generation
            )
        self._forget_process(key)
        return None

    def observe(self, key: str, seen: ObservedProcess) -> ProcessReport:
        """Say how a process is: it is asked, and no step is taken towards anything."""
        record, remote = seen.record, self.remote_host()
        wanted = hash_of(record.plan, remote.facts.address)
        if record.removing:
            return ssh_life.report_of_stopped(ProcessPhase.STOPPING, "", "", record.generation)
        life = self._lives.get(key, Life())
        if seen.runs and seen.launch == wanted:
            life = self._keep(key, self._ask(record, remote, seen, ssh_life.with_start(life, seen, now=self._clock())))
            if life.failures:
                # Nobody looks often enough here to wait for more failures in a row.
                life = replace(life, failures=UNHEALTHY_AFTER)
        return self._report(record, seen, life, wanted)

    def _bring_about(
        self,
        action: Action,
        record: Record,
        remote: RemoteHost,
        before: ObservedProcess | None,
        life: Life,
        wanted: str,
    ) -> ProcessReport:
        key = record.key
        fetching = self._preparation.fetch(record, self._lives.get(key, Life()).attempts)
        if fetching is not None:
            self._keep(key, life)
            report = self._report(record, before, life, wanted) if before is not None else None
            # What runs by the plan before goes on until all is there for the new one.
            return ssh_life.report_of_download(fetching, record.generation, report, still_serves=life.ready)
        service = self._preparation.service(record)
        if action is Action.STOP and before is not None:
            life, done = self._drain(before, remote, life)
            self._keep(key, life)
            if not done:
                return ssh_life.report_of_stopped(ProcessPhase.STOPPING, ProcessReason.REPLACING, "", record.generation)
        elif action is Action.PREPARE:
            promised = {each.record.port for other, each in self.list_processes().items() if other != key}
            record = self._preparation.with_free_port(record, promised)
            service = self._preparation.service(record)
        started = Started(service, remote, before if action is not Action.RESTART else None)
        secrets = self._preparation.secret_steps(record)
        unit = unit_steps(service, remote)
        self._take([*secrets, *written_steps(record, remote), *unit, started])
        self._units.in_order(key, checksum(file_in(unit)))
        self._keep(key, Life(wanted=wanted))
        return ssh_life.report_of_stopped(ProcessPhase.STARTING, "", "", record.generation)

    def _watch(self, record: Record, remote: RemoteHost, seen: ObservedProcess, life: Life) -> Life:
        self._tend(record, remote, seen)
        if remote.facts.os == "darwin" and self._awake.get(record.key) != seen.start:
            # An idle Mac sleeps, and with it what it serves.
            self._connection.shell(script("keep_awake"), what="keeping the Mac awake", arguments=[str(seen.pid)])
            self._awake[record.key] = seen.start
        life = replace(life, attempts=0, reason="", message="", wait_until=0.0, drain=None)
        return self._ask(record, remote, seen, life)

    def _ask(self, record: Record, remote: RemoteHost, seen: ObservedProcess, life: Life) -> Life:
        """Ask a process whether it serves, where that is due, and write down that it has proved itself."""
        if self._clock() < life.probe_at:
            return life
        failure = self._engines.health(record, remote)
        life = ssh_life.with_health(life, record.plan, failure, now=self._clock())
        if failure is None and not life.ready:
            failure = self._engines.completion(record, remote)
            life = ssh_life.with_completion(life, failure, now=self._clock())
        if life.ready and seen.proved != seen.start:
            self._machine.write(remote.layout.proved(record.key), f"{seen.start}\n".encode(), mode=0o600)
        return life

    def _tend(self, record: Record, remote: RemoteHost, seen: ObservedProcess) -> None:
        """Bring unit and files of a running process in order: once, and where somebody changed the unit since."""
        changed = self._units.change(record.key, seen)
        if changed is None or (changed.words and not self._may_repair(record.key, changed.words, changed.is_news)):
            return
        unit, start = seen.unit, seen.start
        with suppress(StartDeferred):  # it serves; what is wrong with its unit is told when it has to be started again
            service = self._preparation.service(record)
            steps = unit_steps(service, remote)
            self._take([*written_steps(record, remote), *steps])
            unit = checksum(file_in(steps))
            if changed.restarted:
                self._take([Started(service, remote, None)])
                start = ""
        self._units.in_order(record.key, unit, start)

    def _drain(self, seen: ObservedProcess, remote: RemoteHost, life: Life) -> tuple[Life, bool]:
        """Ask once whether requests are under way in the process that runs; True: it may be stopped."""
        busy = self._engines.busy(seen.record, remote)
        timeout_s = drain_timeout_of(seen.record.plan)
        if not life.ready and life.drain is None and not seen.proved:
            timeout_s = 0.0  # nobody was ever sent there
        return ssh_life.with_drain_answer(life, busy, timeout_s, now=self._clock())

    def _take(self, steps: Sequence[Step]) -> None:
        for outcome in run_steps(steps, self._machine):
            if outcome.state is State.FAILED:
                hint = f"; {outcome.hint}" if outcome.hint else ""
                raise StartDeferred(ProcessReason.LAUNCH_FAILED, f"{outcome.title}: {outcome.detail}{hint}")

    def _report(self, record: Record, seen: ObservedProcess | None, life: Life, wanted: str) -> ProcessReport:
        words = ""
        if seen is not None and seen.active in ("failed", "activating"):
            words = self._engines.last_words(record.key, self.remote_host())
        phase, reason, message = ssh_life.phase_of(seen, life, wanted, last_words=words)
        runs = seen is not None and seen.runs
        return ProcessReport(
            phase=phase,
            reason=reason,
            message=message,
            observed_generation=record.generation,
            pid=seen.pid if seen is not None and runs else None,
            port=record.port if runs else None,
            address=(self._address or self.remote_host().facts.address) if runs else None,
            restarts=seen.restarts if seen is not None else 0,
            started_at=self._started_at(record.key, seen) if seen is not None and runs else None,
            ready=phase is ProcessPhase.READY,
        )

    def _started_at(self, key: str, seen: ObservedProcess) -> str:
        known = self._started.get(key)
        if known is None or known[0] != seen.start:
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            known = self._started[key] = (seen.start, now)
        return known[1]

    def _keep(self, key: str, life: Life) -> Life:
        self._lives[key] = life
        return life

    def _forget_process(self, key: str) -> None:
        self._lives.pop(key, None)
        self._units.forget_unit(key)
        self._started.pop(key, None)
        self._awake.pop(key, None)
        self._preparation.forget_process(key)
