"""The steps for one process on a host over SSH: directories, record, model files, unit, start.

Each step compares before it acts, so that a second run changes nothing and a preview never does. Called by `processes`
and `preparation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from agent.client.ssh.facts import SshFacts
from agent.client.ssh.fetch import Fetcher
from agent.client.ssh.layout import LAUNCH, Layout, Record, unit_name
from agent.client.ssh.observed import ObservedProcess
from agent.contract import FilePlan, ProcessPlan
from agent.processes import command_line
from agent.processes.command_line import launch_hash
from agent.processes.flags import translated_flags
from agent.processes.replacing import MODEL, files_of
from agent.steps import launchd, systemd
from agent.steps.files import Directory, File, NoFile
from agent.steps.machine import Facts, Machine, MachineError, checked
from agent.steps.service import Service, environment_file_text
from agent.steps.step import Change, Step
from program.desired.web_address import shown

RESTART_DELAY_S = 2
LOG_KEPT = 1 << 20
"""Bytes of a log that stay when it is shortened; `look.sh` keeps as many."""
MAX_STARTS = 6
"""Starts within five minutes before systemd gives up. The process is then Failed until its plan changes."""


@dataclass(frozen=True)
class RemoteHost:
    """The facts of a host that the steps of all its processes share."""

    facts: SshFacts
    machine: Facts
    layout: Layout
    sudo: bool

    @property
    def own_user(self) -> bool:
        """Whether units belong to the user's own service manager, because commands cannot run as root."""
        return not self.sudo and not self.machine.is_root

    @property
    def units(self) -> str:
        """The directory of the units' files."""
        if self.facts.os == "darwin":
            return launchd.DIRECTORY
        return systemd.unit_directory(self.machine, own_user=self.own_user)

    @property
    def manager(self) -> systemd.Systemd:
        return systemd.Systemd(self.machine, self.own_user)


def hash_of(plan: ProcessPlan, address: str) -> str:
    """Return the launch hash, as the agent calculates it."""
    return launch_hash(plan, address)


def service_of(record: Record, remote: RemoteHost, *, binary: str, known_flags: frozenset[str]) -> Service:
    """Return the service for the service manager. Raises command_line.FileMissing, NotExpressible."""
    plan = record.plan
    paths = {name: remote.layout.named(each) for name, each in files_of(plan).items()}
    model = paths.pop(MODEL, None)
    arguments = command_line.arguments(plan, address=remote.facts.address, port=record.port, model=model, files=paths)
    if plan.runtime == "llamacpp":
        arguments = translated_flags(arguments, known_flags)
    return Service(
        name=unit_name(record.key),
        description=f"{plan.service} of {record.key.partition('/')[0]}, run by Herdsman",
        argv=(binary, *arguments),
        environment={**plan.env, LAUNCH: hash_of(plan, remote.facts.address)},
        environment_file=remote.layout.secrets(record.key) if plan.secret_env else "",
        private_environment=bool(plan.env),
        user=None if remote.own_user or remote.machine.is_root else remote.machine.user,
        restart_delay_s=RESTART_DELAY_S,
        max_starts=MAX_STARTS,
        stop_timeout_s=max(1, int(plan.stop_grace_s)),
        log_file=remote.layout.log(record.key),
        **_TO_FILE,
    )


_TO_FILE = {"log_to_file": True} if "log_to_file" in Service.__dataclass_fields__ else {}


def written_steps(record: Record, remote: RemoteHost) -> list[Step]:
    """Return the steps that write the record of a plan on the host."""
    layout = remote.layout
    absent = {"earlier"} if record.earlier is None else None
    content = record.model_dump_json(by_alias=True, exclude=absent).encode()
    # A preview does not show this file, because it shows the difference of the plan itself.
    return [Store(layout), File(layout.record(record.key), content, mode=0o600, secret=True, what="plan")]


def file_steps(plan: ProcessPlan, fetcher: Fetcher) -> list[Step]:
    """Return the steps that download the model files."""
    return [ModelFile(fetcher, each) for each in files_of(plan).values()]


def secret_steps(record: Record, values: Mapping[str, str], remote: RemoteHost) -> list[Step]:
    """Return the steps that write the values of the secret variables to a file that only its owner can read."""
    path = remote.layout.secrets(record.key)
    if not record.plan.secret_env:
        return [NoFile(path, what="no secret variables")]
    content = environment_file_text(values).encode()
    return [File(path, content, mode=0o600, secret=True, what="secret variables")]


def unit_steps(service: Service, remote: RemoteHost) -> list[Step]:
    """Return the steps that install a unit and enable it at boot. Raises MachineError, NotExpressible."""
    if remote.facts.os == "darwin":
        if remote.own_user:
            raise MachineError(
                launchd.REFUSED_AGENT, hint="set `sudo: true`; the process still runs as the user of the connection"
            )
        content = launchd.plist(service)
        mode = service.file_mode
        return [
            File(launchd.plist_path(service.label), content, mode=mode, owner="root", sudo=True, what="plist"),
            launchd.Allowed(service.label),
        ]
    if remote.facts.init != "systemd":
        raise MachineError("the host has no systemd", hint="run an agent there under the host's service manager")
    own_user, manager = remote.own_user, remote.manager
    path = systemd.unit_path(service.name, remote.machine, own_user=own_user)
    text = systemd.unit_text(service, own_user=own_user).encode()
    steps: list[Step] = []
    if own_user:
        steps.append(Directory(path.rpartition("/")[0], mode=None))
    steps += [
        File(path, text, mode=service.file_mode, sudo=not own_user, what="unit"),
        systemd.Loaded(manager, service.name, path, text),
        systemd.Enabled(manager, service.name),
    ]
    if own_user:
        steps.append(systemd.Lingering(remote.machine.user))
    return steps


def file_in(steps: list[Step]) -> bytes:
    """Return the content of the unit's file that these steps write."""
    return next(step.content for step in steps if isinstance(step, File))


def removal_steps(key: str, remote: RemoteHost) -> list[Step]:
    """Return the steps that remove a process. Its model files stay for other processes."""
    name, layout = unit_name(key), remote.layout
    notes: list[Step] = [
        NoFile(layout.secrets(key)),
        NoFile(layout.proved(key)),
        NoFile(layout.log(key)),
        NoFile(layout.record(key), what="no plan"),
    ]
    if remote.facts.os == "darwin":
        label = Service(name=name, description="", argv=("/",)).label
        return [launchd.Gone(label), NoFile(launchd.plist_path(label), sudo=True, what="no plist"), *notes]
    return [*systemd.removal_steps(name, remote.machine, own_user=remote.own_user), *notes]


@dataclass(frozen=True)
class Store:
    """The directories of the store, closed to other users. It is one step, to save round trips."""

    layout: Layout

    @property
    def title(self) -> str:
        return f"store {self.layout.root}"

    def compare(self, machine: Machine) -> Change | None:
        there = machine.run(["sh", "-c", 'for d; do [ -d "$d" ] || exit 1; done', "sh", *self.layout.directories])
        return None if there.code == 0 else Change("makes it")

    def apply(self, machine: Machine) -> None:
        checked(machine, ["sh", "-c", 'umask 077 && mkdir -p -- "$@"', "sh", *self.layout.directories])


@dataclass(frozen=True)
class ModelFile:
    """A file of the plan is on the host. `apply` only starts the download; `processes` waits for it."""

    fetcher: Fetcher
    plan: FilePlan

    @property
    def title(self) -> str:
        return f"model file {self.plan.cache_key}/{self.plan.file_name}"

    def compare(self, _machine: Machine) -> Change | None:
        refused = self.fetcher.refusal(self.plan)
        if refused is not None:
            raise MachineError(refused[1])
        state = self.fetcher.state(self.plan)
        if state.there:
            return None
        if state.running:
            return Change(
                f"continues the download: {state.done_bytes} of {state.total_bytes or '?'} bytes are on the host"
            )
        return Change(f"downloads it from {shown(self.plan.source)}")

    def apply(self, _machine: Machine) -> None:
        self.fetcher.start(self.plan)


@dataclass(frozen=True)
class Started:
    """The process of this plan runs.

    A process with the same launch hash is not restarted when only its unit changed.
    """

    service: Service
    remote: RemoteHost
    seen: ObservedProcess | None

    @property
    def title(self) -> str:
        return f"process {self.service.name} running"

    def compare(self, _machine: Machine) -> Change | None:
        if self.seen is None or not self.seen.runs:
            return Change("starts it")
        if self.seen.launch != self.service.environment[LAUNCH]:
            return Change("restarts it after its running requests: its plan changed")
        return None

    def apply(self, machine: Machine) -> None:
        # The health check shows later whether it stays up, because that takes longer than a step should.
        if self.remote.facts.os == "darwin":
            launchd.Running(self.service.label, self.service.mark, self.service.stop_timeout_s, settle_s=0.0).apply(
                machine
            )
        else:
            if not self.remote.own_user and not self.remote.machine.is_root:
                _own_log(machine, self.service.log_file)
            systemd.Running(self.remote.manager, self.service.name, self.service.mark, settle_s=0.0).apply(machine)


_NO_LOG = 44


def _own_log(machine: Machine, path: str) -> None:
    """Let the user of the connection read and write a log, which systemd would make as root.

    `look.sh`, which that user runs, shortens the log. Of a log that root has made, the end is kept.
    """
    looked = machine.run(["sh", "-c", f'[ -e "$1" ] || exit {_NO_LOG}; [ -r "$1" ] && [ -w "$1" ]', "sh", path])
    if looked.code == 0:
        return
    kept = b""
    if looked.code != _NO_LOG:
        with suppress(MachineError):  # a start matters more than an old log
            kept = machine.run(["tail", "-c", str(LOG_KEPT), "--", path], sudo=True).stdout
    machine.write(path, kept, mode=0o600)
