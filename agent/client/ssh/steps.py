"""The steps to one process on a host over SSH: directories, plan, model files, unit, a process started by it.

Each step looks before it acts, so that a second run finds all in order, and a preview touches nothing. Called by
`processes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.client.ssh.facts import SshFacts
from agent.client.ssh.fetch import Fetcher
from agent.client.ssh.layout import LAUNCH, Layout, Record, unit_name
from agent.client.ssh.observed import ObservedProcess
from agent.contract import FilePlan, ProcessPlan
from agent.processes import command_line
from agent.processes.command_line import launch_hash
from agent.processes.flags import translated_flags
from agent.steps import launchd, systemd
from agent.steps.files import Directory, File, NoFile
from agent.steps.machine import Facts, Machine, MachineError, checked
from agent.steps.service import Service, environment_file_text
from agent.steps.step import Change, Step
from program.desired.web_address import shown

MODEL = "model"
RESTART_DELAY_S = 2
MAX_STARTS = 6
"""Within five minutes; then systemd gives up, and the process is Failed until its plan changes."""


@dataclass(frozen=True)
class RemoteHost:
    """What the steps of all processes of a host share."""

    facts: SshFacts
    machine: Facts
    layout: Layout
    sudo: bool

    @property
    def own_user(self) -> bool:
        """Whether units belong to the user's own manager: nobody gave us root's rights."""
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


def files_of(plan: ProcessPlan) -> dict[str, FilePlan]:
    """Name all files of a plan."""
    return {**({MODEL: plan.file} if plan.file else {}), **(plan.files or {})}


def hash_of(plan: ProcessPlan, address: str) -> str:
    """Hash what a running process depends on, as the agent does."""
    return launch_hash(plan, address)


def service_of(record: Record, remote: RemoteHost, *, binary: str, known_flags: frozenset[str]) -> Service:
    """Say what the service manager is to run. Raises command_line.FileMissing, NotExpressible."""
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
    """List the steps to a plan that is written down on the host."""
    layout = remote.layout
    content = record.model_dump_json(by_alias=True).encode()
    # Not shown in a preview: the plan's own difference is, and better.
    return [Store(layout), File(layout.record(record.key), content, mode=0o600, secret=True, what="plan")]


def file_steps(plan: ProcessPlan, fetcher: Fetcher) -> list[Step]:
    """List the steps to model files that are on the host."""
    return [ModelFile(fetcher, each) for each in files_of(plan).values()]


def secret_steps(record: Record, values: Mapping[str, str], remote: RemoteHost) -> list[Step]:
    """List the steps to a file with the values of the secret variables, which nobody else on the host can read."""
    path = remote.layout.secrets(record.key)
    if not record.plan.secret_env:
        return [NoFile(path, what="no secret variables")]
    content = environment_file_text(values).encode()
    return [File(path, content, mode=0o600, secret=True, what="secret variables")]


def unit_steps(service: Service, remote: RemoteHost) -> list[Step]:
    """List the steps to a unit that the service manager knows and starts at boot. Raises MachineError."""
    if remote.facts.os == "darwin":
        if remote.own_user:
            raise MachineError(launchd.REFUSED_AGENT, hint="set `sudo: true`: the process still runs as its user")
        content = launchd.plist(service)
        mode = service.file_mode
        return [
            File(launchd.plist_path(service.label), content, mode=mode, owner="root", sudo=True, what="plist"),
            launchd.Allowed(service.label),
        ]
    if remote.facts.init != "systemd":
        raise MachineError("there is no systemd on the host", hint="run an agent there under whatever starts services")
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
    """Give the content of the unit's file that these steps write."""
    return next(step.content for step in steps if isinstance(step, File))


def removal_steps(key: str, remote: RemoteHost) -> list[Step]:
    """List the steps to no such process; its model files stay for others."""
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
    """The directories of the store, readable by nobody else. One step, since each question is a way there and back."""

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
    """A file of the plan is on the host. `do` only begins to fetch it: `processes` waits."""

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
            return Change(f"goes on fetching it: {state.done_bytes} of {state.total_bytes or '?'} bytes are there")
        return Change(f"fetches it from {shown(self.plan.source)}")

    def apply(self, _machine: Machine) -> None:
        self.fetcher.start(self.plan)


@dataclass(frozen=True)
class Started:
    """The process runs, started by this plan. What runs by the same plan under an older unit is left alone."""

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
            return Change("restarts it once no request is under way: its plan changed")
        return None

    def apply(self, machine: Machine) -> None:
        # The health check says whether it stays up; that takes longer than any step should.
        if self.remote.facts.os == "darwin":
            launchd.Running(self.service.label, self.service.mark, self.service.stop_timeout_s, settle_s=0.0).apply(
                machine
            )
        else:
            systemd.Running(self.remote.manager, self.service.name, self.service.mark, settle_s=0.0).apply(machine)
