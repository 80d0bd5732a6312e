"""A service under systemd: the unit's text, and the steps that install and remove it.

The texts follow systemd.service(5), systemd.exec(5) and systemd.syntax(7), the exit codes systemctl(1). Queries need no
root; changes of a system unit do.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from agent.steps.files import Directory, File, NoFile
from agent.steps.machine import CommandFailed, Facts, Machine, MachineError, NotPermitted, checked
from agent.steps.service import MARK, NotExpressible, Service
from agent.steps.step import Change, Step

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\t": r"\t", "\r": r"\r"}
_RUNNING_STATES = ("initializing", "starting", "running", "degraded", "maintenance", "stopping")
_START_WINDOW_S = 300


def quoted(text: str) -> str:
    """Quote a value so that systemd reads it unchanged: quotes, C escapes, and `%%` for `%`."""
    escaped = "".join(_ESCAPES.get(c, c if c.isprintable() else _bytes_escaped(c)) for c in text)
    escaped = escaped.replace("%", "%%")
    return escaped if _PLAIN.fullmatch(escaped) else f'"{escaped}"'


def _bytes_escaped(character: str) -> str:
    return "".join(rf"\x{byte:02x}" for byte in character.encode())


def command_line(argv: tuple[str, ...]) -> str:
    """Return the value of ExecStart=, with `$` doubled in arguments so that systemd does not expand it."""
    program = argv[0]
    if "$" in program or not program.isprintable():
        raise NotExpressible(f"systemd has no way to write the path {program!r}; install the program elsewhere")
    return " ".join([quoted(program), *(quoted(argument).replace("$", "$$") for argument in argv[1:])])


def unit_text(service: Service, *, own_user: bool = False) -> str:
    """Return the unit. `own_user`: for the service manager of one user, which cannot change users.

    These options are not set on purpose:
    - NoNewPrivileges, and options that imply it, because CUDA creates its devices by a setuid helper
    - PrivateDevices
    - MemoryDenyWriteExecute, because GPU drivers compile code
    - PrivateTmp, because child processes that are kept would lose it
    """
    lines = [
        "# Made by herdsman; the next install or upgrade overwrites what is changed here.",
        "[Unit]",
        f"Description={_one_line(service.description)}",
    ]
    if not own_user:
        lines += ["Wants=network-online.target", "After=network-online.target"]
    if service.max_starts is None:
        lines.append("StartLimitIntervalSec=0")
    else:
        lines += [f"StartLimitIntervalSec={_START_WINDOW_S}", f"StartLimitBurst={service.max_starts}"]
    lines += [
        "",
        "[Service]",
        "Type=simple",
        f"ExecStart={command_line(service.argv)}",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in sorted(service.marked_environment.items())),
        *([f"EnvironmentFile={_specified(service.environment_file)}"] if service.environment_file else []),
        "Restart=always",
        f"RestartSec={service.restart_delay_s}",
        f"TimeoutStopSec={service.stop_timeout_s}",
        f"KillMode={'process' if service.keep_children else 'mixed'}",
    ]
    if service.log_to_file and service.log_file:
        lines += [f"Standard{which}=append:{_specified(service.log_file)}" for which in ("Output", "Error")]
    if service.keep_children:
        # If the kernel kills one model server for its memory, the agent and the other servers must continue.
        lines.append("OOMPolicy=continue")
    if service.user is not None and not own_user:
        lines.append(f"User={service.user}")
    if not own_user:
        lines += ["LimitNOFILE=65536", "LimitMEMLOCK=infinity"]
        if service.hardened:
            lines += ["ProtectSystem=full", "ProtectControlGroups=yes"]
    lines += ["UMask=0077", "", "[Install]", f"WantedBy={'default' if own_user else 'multi-user'}.target", ""]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")


def _specified(path: str) -> str:
    if not path.isprintable() or path != path.strip():
        raise NotExpressible(f"systemd has no way to write the path {path!r}")
    return path.replace("%", "%%")


def unit_path(name: str, facts: Facts, *, own_user: bool = False) -> str:
    """Return the path of the unit's file."""
    return f"{unit_directory(facts, own_user=own_user)}/{name}.service"


def unit_directory(facts: Facts, *, own_user: bool = False) -> str:
    """Return the directory of the units' files."""
    return f"{facts.home}/.config/systemd/user" if own_user else "/etc/systemd/system"


def install_steps(service: Service, facts: Facts, *, own_user: bool = False, at_boot: bool = True) -> list[Step]:
    """Return the steps that install and start a service, also after each boot.

    With `own_user` and without `at_boot`, it runs from the user's login to the logout.
    """
    manager = Systemd(facts, own_user)
    path = unit_path(service.name, facts, own_user=own_user)
    content = unit_text(service, own_user=own_user).encode()
    directory: list[Step] = [Directory(path.rpartition("/")[0], mode=None)] if own_user else []
    linger: list[Step] = [Lingering(facts.user)] if own_user and at_boot else []
    return [
        ManagerRuns(manager),
        *directory,
        File(path, content, sudo=not own_user, what="unit"),
        Loaded(manager, service.name, path, content),
        Enabled(manager, service.name),
        *linger,
        Running(manager, service.name, service.mark, service.settle_s),
    ]


def removal_steps(name: str, facts: Facts, *, own_user: bool = False) -> list[Step]:
    """Return the steps that remove a service."""
    manager = Systemd(facts, own_user)
    path = unit_path(name, facts, own_user=own_user)
    return [
        ManagerRuns(manager),
        Stopped(manager, name),
        Disabled(manager, name),
        NoFile(path, sudo=not own_user, what="no unit"),
        Loaded(manager, name, path, None),
    ]


@dataclass(frozen=True)
class UnitState:
    """The state of a unit, from `systemctl show`."""

    load: str
    active: str
    sub: str
    main_pid: int
    needs_reload: bool
    path: str
    result: str
    restarts: int


@dataclass(frozen=True)
class Systemd:
    """One service manager: the system's, or that of the machine's user."""

    facts: Facts
    own_user: bool = False

    @property
    def sudo(self) -> bool:
        """Whether changes need root."""
        return not self.own_user

    def argv(self, *arguments: str) -> list[str]:
        """Return a command. A user's manager needs a variable that su, cron and some SSH servers do not set."""
        if self.own_user:
            return ["env", f"XDG_RUNTIME_DIR=/run/user/{self.facts.uid}", "systemctl", "--user", *arguments]
        return ["systemctl", *arguments]

    def change(self, machine: Machine, *arguments: str, timeout_s: float = 150.0) -> None:
        """Run a command that changes something. Raises MachineError."""
        checked(machine, self.argv(*arguments), sudo=self.sudo, timeout_s=timeout_s)

    def state(self, machine: Machine, name: str) -> UnitState:
        """Return the state of a unit. A unit that does not exist has the load state `not-found`."""
        names = "LoadState,ActiveState,SubState,MainPID,NeedDaemonReload,FragmentPath,Result,NRestarts"
        said = checked(machine, self.argv("show", f"{name}.service", f"--property={names}"))
        values = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        return UnitState(
            load=values.get("LoadState", ""),
            active=values.get("ActiveState", ""),
            sub=values.get("SubState", ""),
            main_pid=_number(values.get("MainPID", "")),
            needs_reload=values.get("NeedDaemonReload") == "yes",
            path=values.get("FragmentPath", ""),
            result=values.get("Result", ""),
            restarts=_number(values.get("NRestarts", "")),
        )

    def mark_of(self, machine: Machine, pid: int) -> str | None:
        """Return the mark in a process's environment. None: the process has ended or has no mark."""
        content = machine.read(f"/proc/{pid}/environ", sudo=self.sudo) or b""
        for pair in content.split(b"\0"):
            name, _, value = pair.partition(b"=")
            if name == MARK.encode():
                return value.decode("utf-8", "replace")
        return None

    def last_words(self, machine: Machine, name: str) -> str:
        """Return the last lines of a unit's journal, or an empty string if it cannot be read."""
        which = ["--user-unit" if self.own_user else "--unit", f"{name}.service"]
        argv = ["journalctl", *which, "--lines=6", "--no-pager", "--output=cat"]
        try:
            return machine.run(argv, sudo=self.sudo).text if self.facts.is_root or self.own_user else ""
        except MachineError:
            return ""


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class ManagerRuns:
    """The machine has a running systemd."""

    manager: Systemd

    @property
    def title(self) -> str:
        return "systemd runs" + (f" for user {self.manager.facts.user}" if self.manager.own_user else "")

    def compare(self, machine: Machine) -> Change | None:
        asked = machine.run(self.manager.argv("is-system-running"))
        if asked.code == 127:
            raise MachineError("this machine has no systemctl", hint=_ELSEWHERE)
        if asked.text.strip() not in _RUNNING_STATES:
            said = asked.complaint or "no answer"
            who = f"the systemd of user `{self.manager.facts.user}`" if self.manager.own_user else "systemd"
            hint = (
                "log in as that user, or run `loginctl enable-linger` for it" if self.manager.own_user else _ELSEWHERE
            )
            raise MachineError(f"{who} does not run here: {said}", hint=hint)
        return None

    def apply(self, machine: Machine) -> None:
        """Do nothing: no step can install systemd."""


_ELSEWHERE = "run `herdsman agent run …` under the service manager of this machine"


@dataclass(frozen=True)
class Loaded:
    """systemd has loaded the unit's file in its current version. `content` None: systemd has no such unit."""

    manager: Systemd
    name: str
    path: str
    content: bytes | None

    @property
    def title(self) -> str:
        return f"{'' if self.content is not None else 'no '}unit {self.name} known to systemd"

    def compare(self, machine: Machine) -> Change | None:
        on_disk = machine.stat(self.path, sudo=self.manager.sudo and self.manager.facts.is_root) is not None
        state = self.manager.state(machine, self.name)
        if self.content is None:
            stale = on_disk or (state.load == "loaded" and state.path == self.path)
        else:
            stale = not on_disk or machine.read(self.path) != self.content
            stale = stale or state.needs_reload or state.load != "loaded"
        return Change("daemon-reload") if stale else None

    def apply(self, machine: Machine) -> None:
        self.manager.change(machine, "daemon-reload")


@dataclass(frozen=True)
class Enabled:
    """The unit starts at boot."""

    manager: Systemd
    name: str

    @property
    def title(self) -> str:
        return f"unit {self.name} enabled"

    def compare(self, machine: Machine) -> Change | None:
        word = _enabled_word(self.manager, machine, self.name)
        if word.startswith("masked"):
            unmask = " ".join(self.manager.argv("unmask", f"{self.name}.service"))
            raise MachineError(f"the unit `{self.name}` is masked, which forbids every start", hint=f"`{unmask}`")
        return None if word == "enabled" else Change("enables it")

    def apply(self, machine: Machine) -> None:
        self.manager.change(machine, "enable", f"{self.name}.service")


@dataclass(frozen=True)
class Disabled:
    """The unit does not start at boot."""

    manager: Systemd
    name: str

    @property
    def title(self) -> str:
        return f"unit {self.name} disabled"

    def compare(self, machine: Machine) -> Change | None:
        return Change("disables it") if _enabled_word(self.manager, machine, self.name) == "enabled" else None

    def apply(self, machine: Machine) -> None:
        self.manager.change(machine, "disable", f"{self.name}.service")


def _enabled_word(manager: Systemd, machine: Machine, name: str) -> str:
    # Exit codes 1 and 4 are valid answers too: disabled, masked, not found.
    return machine.run(manager.argv("is-enabled", f"{name}.service")).text.strip()


@dataclass(frozen=True)
class Running:
    """The unit's process runs from this definition."""

    manager: Systemd
    name: str
    mark: str
    settle_s: float

    @property
    def title(self) -> str:
        return f"unit {self.name} running"

    def compare(self, machine: Machine) -> Change | None:
        state = self.manager.state(machine, self.name)
        if state.active != "active" or not state.main_pid:
            return Change("starts it" if state.sub != "auto-restart" else "starts it again: its last start failed")
        if self.manager.mark_of(machine, state.main_pid) != self.mark:
            return Change("restarts it: the running process has another definition")
        return None

    def apply(self, machine: Machine) -> None:
        unit = f"{self.name}.service"
        # A unit that has reached its start limit does not start before this command.
        machine.run(self.manager.argv("reset-failed", unit), sudo=self.manager.sudo)
        self.manager.change(machine, "restart", unit)
        end = time.monotonic() + self.settle_s
        first = self.manager.state(machine, self.name)
        while True:
            state = self.manager.state(machine, self.name)
            if state.active != "active" or state.main_pid != first.main_pid:
                raise CommandFailed(self._why(machine, state), hint=f"read the log: `journalctl -u {unit}`")
            if time.monotonic() > end:
                return
            time.sleep(min(0.5, self.settle_s))

    def _why(self, machine: Machine, state: UnitState) -> str:
        words = " | ".join(line.strip() for line in self.manager.last_words(machine, self.name).splitlines()[-6:])
        how = f"it is {state.active} ({state.sub}, {state.result})" if state.active != "active" else "it started again"
        return f"`{self.name}` exits after its start: {how}" + (f"; its log: {words}" if words else "")


@dataclass(frozen=True)
class Stopped:
    """The unit's process does not run."""

    manager: Systemd
    name: str

    @property
    def title(self) -> str:
        return f"unit {self.name} stopped"

    def compare(self, machine: Machine) -> Change | None:
        active = self.manager.state(machine, self.name).active
        if active in ("active", "activating", "reloading", "deactivating"):
            return Change("stops it")
        return Change("resets its failed state") if active == "failed" else None

    def apply(self, machine: Machine) -> None:
        unit = f"{self.name}.service"
        self.manager.change(machine, "stop", unit)
        machine.run(self.manager.argv("reset-failed", unit), sudo=self.manager.sudo)


@dataclass(frozen=True)
class Lingering:
    """A user's units run while the user is not logged in."""

    user: str

    @property
    def title(self) -> str:
        return f"user {self.user} lingers"

    def compare(self, machine: Machine) -> Change | None:
        there = machine.stat(f"/var/lib/systemd/linger/{self.user}")
        return Change("allows its units to run from boot on") if there is None else None

    def apply(self, machine: Machine) -> None:
        try:
            checked(machine, ["loginctl", "enable-linger", self.user])
        except CommandFailed as error:
            raise NotPermitted(error.message, hint=f"`sudo loginctl enable-linger {self.user}`") from error
