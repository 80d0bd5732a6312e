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
from pathlib import PurePosixPath

from agent.client.port import HostRefused
from agent.client.ssh import life as ssh_life
from agent.client.ssh import look as ssh_look
from agent.client.ssh.asking import Asking as EngineQuestions
from agent.client.ssh.binaries import Binaries
from agent.client.ssh.connection import SshConnection
from agent.client.ssh.errors import CommandRefused, SudoRefused
from agent.client.ssh.facts import FactsIncomplete, read_facts
from agent.client.ssh.fetch import Fetcher, FileState
from agent.client.ssh.layout import Layout, LayoutInvalid, Record
from agent.client.ssh.life import Life
from agent.client.ssh.look import Seen
from agent.client.ssh.machine import SshMachine
from agent.client.ssh.ports import NoPortFree, free_port
from agent.client.ssh.scripts import script
from agent.client.ssh.secret_files import SecretFiles
from agent.client.ssh.steps import (
    Place,
    Started,
    file_in,
    file_steps,
    files_of,
    hash_of,
    removal_steps,
    secret_steps,
    service_of,
    unit_steps,
    written_steps,
)
from agent.client.ssh.unit_watch import MayRepair, UnitWatch, checksum
from agent.contract import HostFacts, ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.processes.command_line import FileMissing
from agent.processes.decision import UNHEALTHY_AFTER, Action
from agent.processes.draining import drain_timeout_of
from agent.processes.engines import SHARED
from agent.processes.flags import unknown
from agent.processes.secret_values import Asking, SecretUnavailable, SecretValues
from agent.sources.source_policy import SourcePolicy
from agent.steps.machine import MachineError
from agent.steps.service import NotExpressible, Service
from agent.steps.step import Outcome, State, Step, run_steps
from agent.version import agent_version

RUNTIME_AGAIN_S = 60.0
"""How often a host without a wanted engine is asked for it anew."""


class NotNow(HostRefused):
    """A process cannot be brought into being now; why, in the words of a report."""


class SshProcesses:
    """The processes of one host. Every method may raise HostError; it then can be called again."""

    def __init__(
        self,
        connection: SshConnection,
        *,
        host: str,
        address: str = "",
        policy: SourcePolicy | None = None,
        asking: Asking | None = None,
        may_repair: MayRepair = lambda _key, _words, _is_news: True,
        refusal: Callable[[str, ProcessPlan], str] = lambda _key, _plan: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address` is what reports say: where clients find the processes; empty: the host's own end of the connection.

        `policy` None lets plans name any source. `asking` looks up Secrets of which the host has no file; None: nobody
        does. `may_repair` is asked where somebody changed a unit. `refusal` is asked before a start: why the host's
        owner does not allow a plan, empty where it is allowed.
        """
        self.host = host
        self._connection = connection
        self._address = address
        self._policy = policy
        self._clock = clock
        self._machine = SshMachine(connection)
        self._place: Place | None = None
        self._place_of = -1
        self._facts_at = 0.0
        self._fetcher: Fetcher | None = None
        self._binaries: Binaries | None = None
        self._lives: dict[str, Life] = {}
        self._may_repair = may_repair
        self._refusal = refusal
        self._units = UnitWatch()
        self._started: dict[str, tuple[str, str]] = {}
        self._awake: dict[str, str] = {}
        """By key the start for whose time the host stays awake."""
        self._retrying: set[str] = set()
        """Keys whose failed fetch was begun again after its back-off."""
        self._engines = EngineQuestions(connection)
        folder = connection.target.secrets
        self._secrets = SecretValues(PurePosixPath(folder), SecretFiles(self._machine, folder).read, asking)

    # What is there

    def facts(self) -> HostFacts:
        """Say what the host is."""
        place = self.place()
        address = self._address or place.facts.address
        return place.facts.of_host(self.host, address, agent_version())

    def place(self, *, anew: bool = False) -> Place:
        """Ask what the host is, once for each connection."""
        if self._place is None or anew or self._place_of != self._connection.opened:
            target = self._connection.target
            text = self._connection.shell(script("facts"), what="asking what the host is", timeout_s=90.0)
            try:
                facts = read_facts(text)
                layout = Layout.of(target.store, facts.home)
            except (FactsIncomplete, LayoutInvalid) as error:
                raise HostRefused("HostUnsuitable", f"{target.server.name}: {error}") from error
            if not facts.address:
                raise HostRefused("HostUnsuitable", f"{target.server.name} did not tell its address (SSH_CONNECTION)")
            self._place = Place(facts, self._machine.facts, layout, target.sudo)
            self._place_of = self._connection.opened
            self._fetcher = Fetcher(self._connection, layout, self._policy)
            self._binaries = Binaries(self._connection, facts)
            self._units.clear()
            self._facts_at = self._clock()
        return self._place

    def look(self) -> dict[str, Seen]:
        """Look at all processes by one command."""
        place = self.place()
        manager = place.facts.init or "systemd"
        arguments = [place.layout.root, manager, "user" if place.own_user else "system", place.units]
        text = self._connection.shell(script("look"), what="looking at the processes", arguments=arguments)
        seen, _unread = ssh_look.read_processes(text)
        for gone in set(self._lives) - set(seen):
            if not self._lives[gone].wait_until:
                del self._lives[gone]
        return seen

    def changes(self, key: str, plan: ProcessPlan | None) -> list[Outcome]:
        """Say what `advance` or `remove` would do, step by step. Touches nothing."""
        place, seen = self.place(), self.look()
        if plan is None:
            return run_steps(removal_steps(key, place), self._machine, dry_run=True)
        record = self._record(key, plan, 0, seen)
        before = seen.get(key)
        if before is not None:
            record = record.model_copy(update={"generation": before.record.generation})
        service, fetcher = self._service(record, place), self._fetcher
        assert fetcher is not None
        steps = [*written_steps(record, place), *file_steps(plan, fetcher), *unit_steps(service, place)]
        return run_steps([*steps, Started(service, place, before)], self._machine, dry_run=True)

    def write(self, key: str, plan: ProcessPlan, generation: int, seen: dict[str, Seen]) -> Record:
        """Write a plan down on the host, if it is another, and keep its port."""
        before = seen.get(key)
        record = self._record(key, plan, generation, seen)
        if before is not None and before.record == record:
            return record
        self._take(written_steps(record, self.place()))
        return record

    def advance(self, key: str, plan: ProcessPlan, generation: int, seen: dict[str, Seen]) -> ProcessReport:
        """Take the next step towards a plan, and say how the process is. `seen` is of this moment."""
        life, now = self._lives.get(key, Life()), self._clock()
        try:
            place, before = self.place(), seen.get(key)
            wanted = hash_of(plan, place.facts.address)
            life = ssh_life.adjusted(life, wanted)
            self._check(plan)
            if before is None or not before.runs or before.launch != wanted:
                self._check_allowed(key, plan, place)
                if life.reason == ProcessReason.NOT_ALLOWED:
                    life = Life(wanted=wanted)
            record = self.write(key, plan, generation, seen)
            if before is not None and before.runs:
                life = ssh_life.noticed(life, before, now=now)
            action = ssh_life.next_action(before, life, plan, wanted, now=now)
            if action is Action.WATCH and before is not None:
                life = self._watch(record, place, before, life)
                return self._report(record, before, self._keep(key, life), wanted)
            if action in (Action.PREPARE, Action.STOP, Action.RESTART):
                return self._bring_about(action, record, place, before, life, wanted)
            return self._report(record, before, self._keep(key, life), wanted)
        except (NotNow, CommandRefused, SudoRefused) as error:
            failed = error if isinstance(error, NotNow) else NotNow(ProcessReason.LAUNCH_FAILED, error.message)
            self._keep(key, ssh_life.put_off(life, failed.reason, failed.message, now=now))
            return ssh_life.told(ProcessPhase.BACKING_OFF, failed.reason, failed.message, generation)

    def remove(self, key: str, seen: dict[str, Seen]) -> ProcessReport | None:
        """Take the next step towards no such process; None when it is gone."""
        place, before = self.place(), seen.get(key)
        if before is None:
            self._forget(key)
            return None
        life, now = self._lives.get(key, Life()), self._clock()
        action = ssh_life.next_action(before, life, None, "", now=now)
        if action is Action.WAIT:
            return ssh_life.told(ProcessPhase.STOPPING, life.reason, life.message, before.record.generation)
        try:
            if not before.record.removing:
                self._take(written_steps(before.record.model_copy(update={"removing": True}), place))
            if action is Action.STOP:
                life, done = self._drain(before, place, life)
                self._keep(key, life)
                if not done:
                    return ssh_life.told(ProcessPhase.STOPPING, "", "", before.record.generation)
            self._take(removal_steps(key, place))
        except NotNow as failed:
            self._keep(key, ssh_life.put_off(life, failed.reason, failed.message, now=now))
            return ssh_life.told(ProcessPhase.STOPPING, failed.reason, failed.message, before.record.generation)
        self._forget(key)
        return None

    def observe(self, key: str, seen: Seen) -> ProcessReport:
        """Say how a process is: it is asked, and no step is taken towards anything."""
        record, place = seen.record, self.place()
        wanted = hash_of(record.plan, place.facts.address)
        if record.removing:
            return ssh_life.told(ProcessPhase.STOPPING, "", "", record.generation)
        life = self._lives.get(key, Life())
        if seen.runs and seen.launch == wanted:
            life = self._keep(key, self._ask(record, place, seen, ssh_life.noticed(life, seen, now=self._clock())))
            if life.failures:
                # Nobody looks often enough here to wait for more failures in a row.
                life = replace(life, failures=UNHEALTHY_AFTER)
        return self._report(record, seen, life, wanted)

    def _bring_about(
        self, action: Action, record: Record, place: Place, before: Seen | None, life: Life, wanted: str
    ) -> ProcessReport:
        key = record.key
        fetching = self._fetch(record)
        if fetching is not None:
            self._keep(key, life)
            report = self._report(record, before, life, wanted) if before is not None else None
            # What runs by the plan before goes on until all is there for the new one.
            return ssh_life.downloading(fetching, record.generation, report, still_serves=life.ready)
        service = self._service(record, place)
        if action is Action.STOP and before is not None:
            life, done = self._drain(before, place, life)
            self._keep(key, life)
            if not done:
                return ssh_life.told(ProcessPhase.STOPPING, ProcessReason.REPLACING, "", record.generation)
        elif action is Action.PREPARE:
            record = self._with_free_port(record)
            service = self._service(record, place)
        started = Started(service, place, before if action is not Action.RESTART else None)
        try:
            secrets = secret_steps(record, self._secrets.of(key, record.plan), place)
        except (SecretUnavailable, MachineError) as error:
            raise NotNow(ProcessReason.SECRET_UNAVAILABLE, str(error)) from None
        except NotExpressible as error:
            raise NotNow(ProcessReason.PLAN_INVALID, str(error)) from None
        unit = unit_steps(service, place)
        self._take([*secrets, *written_steps(record, place), *unit, started])
        self._units.in_order(key, checksum(file_in(unit)))
        self._keep(key, Life(wanted=wanted))
        return ssh_life.told(ProcessPhase.STARTING, "", "", record.generation)

    def _watch(self, record: Record, place: Place, seen: Seen, life: Life) -> Life:
        self._tend(record, place, seen)
        if place.facts.os == "darwin" and self._awake.get(record.key) != seen.start:
            # An idle Mac sleeps, and with it what it serves.
            self._connection.shell(script("keep_awake"), what="keeping the Mac awake", arguments=[str(seen.pid)])
            self._awake[record.key] = seen.start
        life = replace(life, attempts=0, reason="", message="", wait_until=0.0, drain=None)
        return self._ask(record, place, seen, life)

    def _ask(self, record: Record, place: Place, seen: Seen, life: Life) -> Life:
        """Ask a process whether it serves, where that is due, and write down that it has proved itself."""
        if self._clock() < life.probe_at:
            return life
        failure = self._engines.health(record, place)
        life = ssh_life.checked(life, record.plan, failure, now=self._clock())
        if failure is None and not life.ready:
            failure = self._engines.completion(record, place)
            life = ssh_life.proved(life, failure, now=self._clock())
        if life.ready and seen.proved != seen.start:
            self._machine.write(place.layout.proved(record.key), f"{seen.start}\n".encode(), mode=0o600)
        return life

    def _tend(self, record: Record, place: Place, seen: Seen) -> None:
        """Bring unit and files of a running process in order: once, and where somebody changed the unit since."""
        changed = self._units.change(record.key, seen)
        if changed is None or (changed.words and not self._may_repair(record.key, changed.words, changed.is_news)):
            return
        unit, start = seen.unit, seen.start
        with suppress(NotNow):  # it serves; what is wrong with its unit is told when it has to be started again
            service = self._service(record, place)
            steps = unit_steps(service, place)
            self._take([*written_steps(record, place), *steps])
            unit = checksum(file_in(steps))
            if changed.restarted:
                self._take([Started(service, place, None)])
                start = ""
        self._units.in_order(record.key, unit, start)

    def _fetch(self, record: Record) -> FileState | None:
        """Have all files on the host; gives the one that is not there yet."""
        assert self._fetcher is not None
        for plan in files_of(record.plan).values():
            refused = self._fetcher.refusal(plan)
            if refused is not None:
                raise NotNow(*refused)
            state = self._fetcher.state(plan)
            if state.there:
                wrong = self._fetcher.verify_local(plan, state.path)
                if wrong is not None:
                    raise NotNow(*wrong)
                continue
            if not state.running:
                if state.failure is not None:
                    self._wait_or_retry(record.key, state.failure)
                self._fetcher.start(plan)
            return state
        return None

    def _wait_or_retry(self, key: str, failure: tuple[str, str]) -> None:
        """Let a failure that the host shows have its back-off first; after that it may be tried again."""
        if key in self._retrying or not self._lives.get(key, Life()).attempts:
            self._retrying.discard(key)
            raise NotNow(*failure)
        self._retrying.add(key)

    def _drain(self, seen: Seen, place: Place, life: Life) -> tuple[Life, bool]:
        """Ask once whether requests are under way in the process that runs; True: it may be stopped."""
        busy = self._engines.busy(seen.record, place)
        timeout_s = drain_timeout_of(seen.record.plan)
        if not life.ready and life.drain is None and not seen.proved:
            timeout_s = 0.0  # nobody was ever sent there
        return ssh_life.drained(life, busy, timeout_s, now=self._clock())

    def _with_free_port(self, record: Record) -> Record:
        """Give another port to a process whose own was taken while it did not run."""
        others = {each.record.port for key, each in self.look().items() if key != record.key}
        return record.model_copy(update={"port": self._port(record.key, others, preferred=record.port)})

    def _record(self, key: str, plan: ProcessPlan, generation: int, seen: dict[str, Seen]) -> Record:
        before = seen.get(key)
        if before is not None:
            port = before.record.port
        else:
            port = self._port(key, {each.record.port for each in seen.values()})
        return Record(key=key, plan=plan, generation=generation, port=port)

    def _port(self, key: str, promised: set[int], *, preferred: int | None = None) -> int:
        try:
            return free_port(self._connection, key, promised, preferred=preferred)
        except NoPortFree as error:
            raise NotNow(ProcessReason.LAUNCH_FAILED, str(error)) from error

    def _service(self, record: Record, place: Place) -> Service:
        plan = record.plan
        name = plan.argv[0] if plan.argv else ""
        assert self._binaries is not None
        binary = self._binaries.find(name)
        if not binary:
            if self._clock() - self._facts_at > RUNTIME_AGAIN_S:
                self.place(anew=True)
            raise NotNow(ProcessReason.RUNTIME_MISSING, f"`{name}` was not found on the host; install it there")
        known = self._binaries.flags(plan, binary)
        try:
            service = service_of(record, place, binary=binary, known_flags=known)
        except (FileMissing, LayoutInvalid, NotExpressible) as error:
            raise NotNow(ProcessReason.PLAN_INVALID, str(error)) from error
        strange = unknown(service.argv[1:], known)
        if strange:
            version = place.facts.versions.get(name) or "of unknown version"
            raise NotNow(ProcessReason.RUNTIME_TOO_OLD, f"{binary} ({version}) does not know {', '.join(strange)}")
        return service

    def _check(self, plan: ProcessPlan) -> None:
        if plan.runtime in SHARED or plan.daemon_model is not None:
            raise NotNow(
                ProcessReason.PLAN_INVALID, f"runtime `{plan.runtime}` takes an agent on the host; this one is over SSH"
            )

    def _check_allowed(self, key: str, plan: ProcessPlan, place: Place) -> None:
        """Refuse to start what the host's owner does not allow. What runs by this very plan goes on."""
        why = self._refusal(key, plan)
        if not why and place.machine.is_root and not self._connection.target.allow_root:
            why = (
                f"user `{place.machine.user}` of host `{self.host}` is root, and processes do not run as root: connect "
                "as another user (spec.ssh.user, with spec.ssh.sudo for system units), or set spec.ssh.allowRoot "
                "(`allowRoot` in a static fleet)"
            )
        if why:
            raise NotNow(ProcessReason.NOT_ALLOWED, why)

    def _take(self, steps: Sequence[Step]) -> None:
        for outcome in run_steps(steps, self._machine):
            if outcome.state is State.FAILED:
                hint = f"; {outcome.hint}" if outcome.hint else ""
                raise NotNow(ProcessReason.LAUNCH_FAILED, f"{outcome.title}: {outcome.detail}{hint}")

    def _report(self, record: Record, seen: Seen | None, life: Life, wanted: str) -> ProcessReport:
        words = ""
        if seen is not None and seen.active in ("failed", "activating"):
            words = self._engines.last_words(record.key, self.place())
        phase, reason, message = ssh_life.phase_of(seen, life, wanted, last_words=words)
        runs = seen is not None and seen.runs
        return ProcessReport(
            phase=phase,
            reason=reason,
            message=message,
            observed_generation=record.generation,
            pid=seen.pid if seen is not None and runs else None,
            port=record.port if runs else None,
            address=(self._address or self.place().facts.address) if runs else None,
            restarts=seen.restarts if seen is not None else 0,
            started_at=self._started_at(record.key, seen) if seen is not None and runs else None,
            ready=phase is ProcessPhase.READY,
        )

    def _started_at(self, key: str, seen: Seen) -> str:
        known = self._started.get(key)
        if known is None or known[0] != seen.start:
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            known = self._started[key] = (seen.start, now)
        return known[1]

    def _keep(self, key: str, life: Life) -> Life:
        self._lives[key] = life
        return life

    def _forget(self, key: str) -> None:
        self._lives.pop(key, None)
        self._units.forget(key)
        self._started.pop(key, None)
        self._awake.pop(key, None)
        self._retrying.discard(key)
