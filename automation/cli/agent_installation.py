"""An agent as a service of this machine: its record, and the steps that install and remove it.

Used by `automation.cli.agent_service`; the steps for systemd and launchd are those of `agent.steps`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pydantic import Field, ValidationError

from agent.contract import Wire
from agent.server.store import ID_FILE, RUN_FILE, TOKEN_FILE
from agent.steps import services
from agent.steps.files import Directory, File, NoFile
from agent.steps.machine import CommandFailed, Facts, Machine, MachineError, failure
from agent.steps.service import Service
from agent.steps.step import Change, Step
from automation.cli.local_agent import LocalApi, left_processes, log_words, service_pid

PATH = "/usr/local/bin:/opt/homebrew/bin:/usr/bin:/bin:/usr/sbin:/sbin"
STOP_TIMEOUT_S = 120
"""An agent that stops its processes drains them (30 s), ends them (30 s) and reports that."""
ANSWER_S = 60.0
"""Time in which a started agent must answer."""


class Installation(Wire):
    """The record of an installed agent, for an upgrade. It contains paths of secret files, and no secrets."""

    name: str
    user: str
    home: str
    own_user: bool = False
    """Under the user's instance of systemd."""
    host: str
    store: str
    arguments: tuple[str, ...]
    """The arguments after `agent run`."""
    environment: dict[str, str] = Field(default_factory=dict)
    files: tuple[str, ...] = ()
    has_api: bool = True

    def service(self, program: tuple[str, ...], version: str) -> Service:
        """Describe the service that runs `program` in this version. Another version gives another definition."""
        return Service(
            name=self.name,
            description=f"Herdsman agent of host {self.host}",
            argv=(*program, "agent", "run", *self.arguments),
            environment={"PATH": PATH, "HOME": self.home, **self.environment, "HERDSMAN_AGENT_VERSION": version},
            user=None if self.own_user else self.user,
            keep_children=True,
            stop_timeout_s=STOP_TIMEOUT_S,
            # An answer proves more than two seconds without an exit.
            settle_s=0.0 if self.has_api else 2.0,
            log_file=f"/Library/Logs/Herdsman/{self.name}/agent.log",
        )


def record_path(name: str, facts: Facts, *, own_user: bool) -> str:
    """Return the path of an installation's record."""
    if facts.os == "darwin":
        return f"/Library/Application Support/Herdsman/{name}.json"
    return f"{facts.home}/.config/herdsman/{name}.json" if own_user else f"/etc/herdsman/{name}.json"


def read_installation(machine: Machine, name: str, *, own_user: bool) -> Installation | None:
    """Read the record of an installation; None without one. Raises MachineError."""
    path = record_path(name, machine.facts, own_user=own_user)
    content = machine.read(path)
    if content is None:
        return None
    try:
        return Installation.model_validate_json(content)
    except ValidationError as error:
        raise MachineError(
            f"cannot read the installation in {path}: {error}", hint="install the agent again"
        ) from error


def install_steps(installed: Installation, facts: Facts, *, program: tuple[str, ...], version: str) -> list[Step]:
    """Return the steps to a running agent: for a first installation, for changed options and for an upgrade."""
    sudo = not installed.own_user
    service = installed.service(program, version)
    record = record_path(installed.name, facts, own_user=installed.own_user)
    content = json.dumps(installed.model_dump(mode="json", by_alias=True), indent=1, sort_keys=True) + "\n"
    manager, *bring_up = services.install_steps(service, facts, own_user=installed.own_user)
    return [
        manager,
        Runs(program, version, installed.user),
        *(Readable(path, installed.user) for path in installed.files),
        *(
            Directory(path, mode=None, owner=None if installed.own_user else installed.user, sudo=sudo, what="store")
            for path in _directories(installed)
        ),
        StoreIsOwn(installed.store, installed.user),
        Directory(record.rpartition("/")[0], mode=None, sudo=sudo),
        File(record, content.encode(), sudo=sudo, what="options"),
        *bring_up,
        *([Answers(installed, service, facts)] if installed.has_api else []),
    ]


def removal_steps(installed: Installation, facts: Facts, *, stop_processes: bool) -> list[Step]:
    """Return the steps that remove an agent. Models stay, and processes as well unless `stop_processes` is set."""
    service = installed.service(("/",), "")
    ask: list[Step] = [ProcessesGoAlong(installed)] if stop_processes else []
    sweep: list[Step] = [NoProcesses(installed.store)] if stop_processes else []
    record = record_path(installed.name, facts, own_user=installed.own_user)
    return [
        *ask,
        *services.removal_steps(service.name, service.label, facts, own_user=installed.own_user),
        *sweep,
        NoFile(record, sudo=not installed.own_user, what="no options"),
    ]


def _directories(installed: Installation) -> list[str]:
    """Return the store and its parent directories within the user's home: the user owns all of them."""
    store = PurePosixPath(installed.store)
    above = [each for each in store.parents if PurePosixPath(installed.home) in each.parents]
    return [*(str(each) for each in reversed(above)), str(store)]


@dataclass(frozen=True)
class Runs:
    """A check: the agent's user can run this version of Herdsman."""

    program: tuple[str, ...]
    version: str
    user: str

    @property
    def title(self) -> str:
        return f"herdsman {self.version} runs as {self.user}"

    def compare(self, machine: Machine) -> Change | None:
        said = machine.run(as_user(machine, self.user, [*self.program, "version"]), sudo=_other(machine, self.user))
        if said.code != 0:
            where = " ".join(self.program)
            raise CommandFailed(
                f"user `{self.user}` cannot run `{where}`: {said.complaint or f'it exited with code {said.code}'}",
                hint="install Herdsman where that user can read it (pipx install --global, or a virtual environment "
                "in /opt), or name another --user",
            )
        if said.text.strip() != self.version:
            raise CommandFailed(f"`{' '.join(self.program)}` is version {said.text.strip()}, not {self.version}")
        return None

    def apply(self, machine: Machine) -> None:
        """No step can change this."""


@dataclass(frozen=True)
class Readable:
    """A check: the agent's user can read a file that its options name."""

    path: str
    user: str

    @property
    def title(self) -> str:
        return f"{self.path} readable by {self.user}"

    def compare(self, machine: Machine) -> Change | None:
        argv = as_user(machine, self.user, ["test", "-r", self.path])
        said = machine.run(argv, sudo=_other(machine, self.user))
        if said.code == 1:
            there = machine.stat(self.path, sudo=_other(machine, self.user)) is not None
            what = f"user `{self.user}` may not read {self.path}" if there else f"{self.path} does not exist"
            hint = f"`chown {self.user} {self.path}`, or give that user a copy" if there else "name an existing file"
            raise MachineError(what, hint=hint)
        if said.code != 0:
            raise failure(argv, said)
        return None

    def apply(self, machine: Machine) -> None:
        """No step can change this."""


@dataclass(frozen=True)
class StoreIsOwn:
    """A check: the agent's user owns the files in the store. Otherwise the agent could not continue with them."""

    store: str
    user: str

    @property
    def title(self) -> str:
        return f"user {self.user} owns the store {self.store}"

    def compare(self, machine: Machine) -> Change | None:
        for name in (ID_FILE, TOKEN_FILE, RUN_FILE):
            there = machine.stat(f"{self.store}/{name}", sudo=_other(machine, self.user))
            if there is not None and there.owner != self.user:
                raise MachineError(
                    f"{self.store}/{name} belongs to user `{there.owner}`, not `{self.user}`: another agent ran with "
                    f"this store",
                    hint=f"stop that agent, then `chown -R {self.user} {self.store}`",
                )
        return None

    def apply(self, machine: Machine) -> None:
        """No step can change this."""


def as_user(machine: Machine, user: str, argv: list[str]) -> list[str]:
    """Return the command that runs `argv` as that user."""
    if not _other(machine, user):
        return argv
    if machine.facts.os == "darwin":
        return ["sudo", "-n", "-u", user, *argv]
    return ["runuser", "-u", user, "--", *argv]


def _other(machine: Machine, user: str) -> bool:
    return machine.facts.user != user


@dataclass(frozen=True)
class Answers:
    """A check: the agent that the service manager started answers."""

    installed: Installation
    service: Service
    facts: Facts

    @property
    def title(self) -> str:
        return f"agent of host {self.installed.host} answers"

    def compare(self, machine: Machine) -> Change | None:
        return None if self._answers(machine) else Change("waits for an answer")

    def apply(self, machine: Machine) -> None:
        end = time.monotonic() + ANSWER_S
        while not self._answers(machine):
            pid = service_pid(machine, self.service, own_user=self.installed.own_user)
            if time.monotonic() > end or not pid:
                what = f"has not answered within {ANSWER_S:.0f} s" if pid else "exits after its start"
                words = log_words(machine, self.service, own_user=self.installed.own_user)
                raise CommandFailed(f"the agent {what}" + (f"; its log: {words}" if words else ""), hint=self._hint())
            time.sleep(0.3)

    def _answers(self, machine: Machine) -> bool:
        pid = service_pid(machine, self.service, own_user=self.installed.own_user)
        api = LocalApi(self.installed.store, sudo=not self.installed.own_user)
        run = api.run(machine) if pid else None
        return run is not None and run.pid == pid and api.is_healthy(run)

    def _hint(self) -> str:
        if self.facts.os == "darwin":
            return f"read the log: {self.service.log_file}"
        return f"read the log: `journalctl {'--user-unit' if self.installed.own_user else '-u'} {self.service.name}`"


@dataclass(frozen=True)
class ProcessesGoAlong:
    """A running agent will stop its processes when it is stopped. It drains them and removes their endpoints first."""

    installed: Installation

    @property
    def title(self) -> str:
        return "agent stops its processes when it stops"

    def compare(self, machine: Machine) -> Change | None:
        run = self._api.run(machine)
        if run is None or run.http_port is None:
            return None
        ending = json.loads(self._api.request(machine, run, "GET", "/v1/ending"))
        return None if ending.get("processes") == "stop" else Change("requests this from the agent")

    def apply(self, machine: Machine) -> None:
        run = self._api.run(machine)
        if run is not None:
            self._api.request(machine, run, "PUT", "/v1/ending", {"processes": "stop"})

    @property
    def _api(self) -> LocalApi:
        return LocalApi(self.installed.store, sudo=not self.installed.own_user)


@dataclass(frozen=True)
class NoProcesses:
    """No process of the agent runs any more, also none that outlived the agent."""

    store: str
    grace_s: float = field(default=30.0)

    @property
    def title(self) -> str:
        return "no process of the agent runs"

    def compare(self, machine: Machine) -> Change | None:
        left = left_processes(machine, self.store)
        return Change(f"stops {', '.join(sorted(left))}") if left else None

    def apply(self, machine: Machine) -> None:
        from agent.server.processes.process import Handle

        for pid, mark in left_processes(machine, self.store).values():
            Handle(pid, mark).terminate(grace_s=self.grace_s)
