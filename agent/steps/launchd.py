"""A service under launchd: the property list, and the steps that install and remove it.

The keys follow launchd.plist(5), commands and exit codes launchctl(1) and `launchctl error`. A service is a
LaunchDaemon. Only one that serves nobody but the user, on loopback, may be a LaunchAgent in the user's domain: since
macOS 15 LaunchAgents silently get no access to the local network (EHOSTUNREACH, errno 65), and they end when the user
logs out.
"""

from __future__ import annotations

import plistlib
import re
import time
from dataclasses import dataclass
from typing import Any

from agent.steps.files import Directory, File, NoFile
from agent.steps.machine import CommandFailed, Facts, Finished, Machine, MachineError, checked, failure
from agent.steps.service import MARK, NotExpressible, Service
from agent.steps.step import Change, Step

DIRECTORY = "/Library/LaunchDaemons"
NO_SUCH_PROCESS = 3
IN_PROGRESS = 36
"""bootout: the job is being stopped and is still loaded."""
IO_ERROR = 5
"""bootstrap: the plist is invalid, or the previous job is still being unloaded."""
ALREADY_IN_PROGRESS = 37
NOT_FOUND = 113
EX_CONFIG = 78
CONFIG_HINT = "launchd cannot start it: check that its program, its user and the directory of its log exist"
DISABLED = 119
REFUSED_AGENT = (
    "a LaunchAgent is cut off from the local network since macOS 15 (errno 65, no route to host) and ends at logout"
)


@dataclass(frozen=True)
class Domain:
    """Where launchd keeps a job: the system, or the session of one user."""

    name: str = "system"
    directory: str = DIRECTORY
    """The directory of the property lists."""
    sudo: bool = True

    @staticmethod
    def of_user(facts: Facts) -> Domain:
        """Return the domain of the user's session, which needs no root."""
        return Domain(f"gui/{facts.uid}", f"{facts.home}/Library/LaunchAgents", sudo=False)


SYSTEM = Domain()
_TRIES = 10
_TRY_DELAY_S = 1.0


def plist(service: Service) -> bytes:
    """Return the property list. Raises NotExpressible for control characters, which the format does not support."""
    keys: dict[str, Any] = {
        "Label": service.label,
        "ProgramArguments": [*_reading(service.environment_file), *service.argv],
        "EnvironmentVariables": service.marked_environment,
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": max(service.restart_delay_s, 1),
        "ExitTimeOut": service.stop_timeout_s,
        # Otherwise launchd ends every process of the job's group with the job.
        "AbandonProcessGroup": service.keep_children,
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": 65536},
        "HardResourceLimits": {"NumberOfFiles": 65536},
        "Umask": 0o077,
    }
    if service.user is not None:
        keys["UserName"] = service.user
    if service.log_file:
        keys["StandardOutPath"] = keys["StandardErrorPath"] = service.log_file
    try:
        return plistlib.dumps(keys, sort_keys=True)
    except ValueError as error:
        raise NotExpressible(f"a property list cannot contain an argument of `{service.name}`: {error}") from error


def _reading(environment_file: str) -> list[str]:
    """Return a command prefix that reads variables from a file, for which launchd has no key."""
    if not environment_file:
        return []
    return ["/bin/sh", "-c", 'set -a; . "$0" && set +a && exec "$@"', environment_file]


def plist_path(service_label: str, domain: Domain = SYSTEM) -> str:
    """Return the path of the property list."""
    return f"{domain.directory}/{service_label}.plist"


def install_steps(service: Service, domain: Domain = SYSTEM) -> list[Step]:
    """Return the steps that install and start a service, also after each boot, or at each login of the user."""
    log: list[Step] = []
    if service.log_file:
        log.append(
            Directory(
                service.log_file.rpartition("/")[0],
                mode=0o700,
                owner=service.user,
                sudo=domain.sudo,
                what="log directory",
            )
        )
    owner = "root" if domain.sudo else None
    path = plist_path(service.label, domain)
    return [
        ManagerRuns(domain),
        *log,
        *([] if domain.sudo else [Directory(domain.directory, mode=None)]),
        File(path, plist(service), owner=owner, sudo=domain.sudo, what="plist"),
        Allowed(service.label, domain),
        Running(service.label, service.mark, service.stop_timeout_s, service.settle_s, domain),
    ]


def removal_steps(label: str, *, stop_timeout_s: int = 60, domain: Domain = SYSTEM) -> list[Step]:
    """Return the steps that remove a service."""
    path = plist_path(label, domain)
    return [ManagerRuns(domain), Gone(label, stop_timeout_s, domain), NoFile(path, sudo=domain.sudo, what="no plist")]


@dataclass(frozen=True)
class JobState:
    """The state of a loaded job, from `launchctl print`."""

    running: bool
    pid: int
    mark: str
    last_exit: str
    """As launchctl prints it: `0`, `78: EX_CONFIG`, `(never exited)`, or empty."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of the job's last process. None: no process has ended yet."""
        found = re.match(r"-?\d+(?=:|$)", self.last_exit)
        return int(found.group()) if found else None


def job_state(machine: Machine, label: str, domain: Domain = SYSTEM) -> JobState | None:
    """Return the state of a job, or None if it is not loaded. Raises MachineError."""
    argv = ["launchctl", "print", f"{domain.name}/{label}"]
    asked = machine.run(argv)
    if asked.code == NOT_FOUND:
        return None
    if asked.code != 0:
        raise failure(argv, asked)

    def value(pattern: str) -> str:
        found = re.search(pattern, asked.text, re.MULTILINE)
        return found.group(1).strip() if found else ""

    pid = value(r"^\tpid = (\d+)$")
    return JobState(
        running=value(r"^\tstate = (.+)$") == "running",
        pid=int(pid) if pid else 0,
        mark=value(rf"^\t\t{MARK} => (\S+)$"),
        last_exit=value(r"^\tlast exit code = (.+)$"),
    )


@dataclass(frozen=True)
class ManagerRuns:
    """The machine has launchd."""

    domain: Domain = SYSTEM

    @property
    def title(self) -> str:
        return "launchd runs"

    def compare(self, machine: Machine) -> Change | None:
        argv = ["launchctl", "print-disabled", self.domain.name]
        asked = machine.run(argv)
        if asked.code == 127:
            raise MachineError("this machine has no launchctl", hint="launchctl exists only on a Mac")
        if asked.code != 0:
            raise failure(argv, asked)
        return None

    def apply(self, machine: Machine) -> None:
        """Do nothing: no step can install launchd."""


@dataclass(frozen=True)
class Allowed:
    """The job is not disabled. launchd keeps this setting after the job was removed."""

    label: str
    domain: Domain = SYSTEM

    @property
    def title(self) -> str:
        return f"job {self.label} enabled"

    def compare(self, machine: Machine) -> Change | None:
        said = checked(machine, ["launchctl", "print-disabled", self.domain.name])
        # Newer systems print `disabled`, older ones `true`.
        off = re.search(rf'"{re.escape(self.label)}" => (disabled|true)\b', said)
        return Change("enables it") if off else None

    def apply(self, machine: Machine) -> None:
        checked(machine, ["launchctl", "enable", f"{self.domain.name}/{self.label}"], sudo=self.domain.sudo)


@dataclass(frozen=True)
class Running:
    """The job is loaded from this definition, and runs."""

    label: str
    mark: str
    stop_timeout_s: int
    settle_s: float
    domain: Domain = SYSTEM

    @property
    def title(self) -> str:
        return f"job {self.label} running"

    def compare(self, machine: Machine) -> Change | None:
        state = job_state(machine, self.label, self.domain)
        if state is None:
            return Change("loads and starts it")
        if state.mark != self.mark:
            return Change("loads and starts it again: the running process has another definition")
        if not state.running:
            return Change("starts it")
        return None

    def apply(self, machine: Machine) -> None:
        state = job_state(machine, self.label, self.domain)
        if state is not None and state.mark != self.mark:
            take_down(machine, self.label, self.stop_timeout_s, self.domain)
            state = None
        if state is None:
            self._bootstrap(machine)
        else:
            checked(
                machine, ["launchctl", "kickstart", "-k", f"{self.domain.name}/{self.label}"], sudo=self.domain.sudo
            )
        self._settle(machine, fresh=state is None)

    def _bootstrap(self, machine: Machine) -> None:
        domain = self.domain
        argv = ["launchctl", "bootstrap", domain.name, plist_path(self.label, domain)]
        for _ in range(_TRIES):
            ended = machine.run(argv, sudo=domain.sudo)
            if ended.code not in (IO_ERROR, ALREADY_IN_PROGRESS):
                break
            if job_state(machine, self.label, self.domain) is not None:
                return
            time.sleep(_TRY_DELAY_S)
        if ended.code == DISABLED:
            enable = f"{'sudo ' if domain.sudo else ''}launchctl enable {domain.name}/{self.label}"
            raise CommandFailed(f"launchd refuses `{self.label}`: it is disabled", hint=f"`{enable}`")
        if ended.code != 0:
            raise failure(argv, ended)

    def _settle(self, machine: Machine, *, fresh: bool) -> None:
        first, end = 0, time.monotonic() + self.settle_s
        while True:
            state = job_state(machine, self.label, self.domain)
            if state is None:
                raise CommandFailed(
                    f"`{self.label}` was loaded and has disappeared", hint="`log show --last 5m` shows the reason"
                )
            late = time.monotonic() > end
            first = first or state.pid
            ended = (first and state.pid != first) or (fresh and state.exit_code is not None)
            if ended or (late and not state.running):
                why = f"`{self.label}` exits after its start (last exit code: {state.last_exit or 'none'})"
                raise CommandFailed(why, hint=CONFIG_HINT if state.exit_code == EX_CONFIG else "read its log")
            if late:
                return
            time.sleep(min(0.5, self.settle_s))


@dataclass(frozen=True)
class Gone:
    """The job is not loaded."""

    label: str
    stop_timeout_s: int = 60
    domain: Domain = SYSTEM

    @property
    def title(self) -> str:
        return f"job {self.label} stopped"

    def compare(self, machine: Machine) -> Change | None:
        return None if job_state(machine, self.label, self.domain) is None else Change("stops and unloads it")

    def apply(self, machine: Machine) -> None:
        take_down(machine, self.label, self.stop_timeout_s, self.domain)


def take_down(machine: Machine, label: str, stop_timeout_s: int, domain: Domain = SYSTEM) -> None:
    """Unload a job and wait until it is gone, because an earlier bootstrap would fail with an I/O error."""
    argv = ["launchctl", "bootout", f"{domain.name}/{label}"]
    ended: Finished = machine.run(argv, sudo=domain.sudo, timeout_s=stop_timeout_s + 30.0)
    if ended.code not in (0, NO_SUCH_PROCESS, IN_PROGRESS, NOT_FOUND):
        raise failure(argv, ended)
    end = time.monotonic() + stop_timeout_s + 10.0
    while job_state(machine, label, domain) is not None:
        if time.monotonic() > end:
            raise CommandFailed(f"`{label}` is still loaded {stop_timeout_s + 10} s after the request to stop")
        time.sleep(0.2)
