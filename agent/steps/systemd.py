"""A service under systemd: the unit's text, and the steps that install and remove it.

Texts after systemd.service(5), systemd.exec(5) and systemd.syntax(7); exit codes after systemctl(1). Questions need no
rights; what changes a system unit asks for root's.
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
    """Write a value so that systemd reads it back as it is: quotes, C escapes, `%` for its specifiers."""
    escaped = "".join(_ESCAPES.get(c, c if c.isprintable() else _bytes_escaped(c)) for c in text)
    escaped = escaped.replace("%", "%%")
    return escaped if _PLAIN.fullmatch(escaped) else f'"{escaped}"'


def _bytes_escaped(character: str) -> str:
    return "".join(rf"\x{byte:02x}" for byte in character.encode())


def command_line(argv: tuple[str, ...]) -> str:
    """Write the value of ExecStart=. In arguments `$` starts a variable unless doubled; in the program's path never."""
    program = argv[0]
    if "$" in program or not program.isprintable():
        raise NotExpressible(f"systemd has no way to write the path {program!r}; install the program elsewhere")
    return " ".join([quoted(program), *(quoted(argument).replace("$", "$$") for argument in argv[1:])])


def unit_text(service: Service, *, own_user: bool = False) -> str:
    """Write the unit. `own_user`: for the manager of one user, who has no other to switch to.

    Left out on purpose: NoNewPrivileges, and whatever implies it, because CUDA makes its devices by a setuid helper;
    PrivateDevices; MemoryDenyWriteExecute (GPU drivers compile); PrivateTmp, which would go away under children that
    are kept.
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
        # The kernel taking one model server for its memory is no reason to stop the agent and with it the others.
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
    """Where the unit's file is."""
    return f"{unit_directory(facts, own_user=own_user)}/{name}.service"


def unit_directory(facts: Facts, *, own_user: bool = False) -> str:
    """Where the files of units are."""
    return f"{facts.home}/.config/systemd/user" if own_user else "/etc/systemd/system"


def install_steps(service: Service, facts: Facts, *, own_user: bool = False) -> list[Step]:
    """List the steps to a service that runs as described, now and after each boot."""
    manager = Systemd(facts, own_user)
    path = unit_path(service.name, facts, own_user=own_user)
    content = unit_text(service, own_user=own_user).encode()
    directory: list[Step] = [Directory(path.rpartition("/")[0], mode=None)] if own_user else []
    linger: list[Step] = [Lingering(facts.user)] if own_user else []
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
    """List the steps to no such service."""
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
    """What `systemctl show` tells of a unit."""

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
    """One manager: the system's, or the one of the machine's user."""

    facts: Facts
    own_user: bool = False

    @property
    def sudo(self) -> bool:
        """Whether changes need root's rights."""
        return not self.own_user

    def argv(self, *arguments: str) -> list[str]:
        """Give the command. A user's manager is found by a variable that su, cron and some SSH servers leave out."""
        if self.own_user:
            return ["env", f"XDG_RUNTIME_DIR=/run/user/{self.facts.uid}", "systemctl", "--user", *arguments]
        return ["systemctl", *arguments]

    def change(self, machine: Machine, *arguments: str, timeout_s: float = 150.0) -> None:
        """Run a command that changes something. Raises MachineError."""
        checked(machine, self.argv(*arguments), sudo=self.sudo, timeout_s=timeout_s)

    def state(self, machine: Machine, name: str) -> UnitState:
        """Look at a unit; one that does not exist has the load state `not-found`."""
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
        """Read which definition a process was started from; None when it is gone or was started from none of ours."""
        content = machine.read(f"/proc/{pid}/environ", sudo=self.sudo) or b""
        for pair in content.split(b"\0"):
            name, _, value = pair.partition(b"=")
            if name == MARK.encode():
                return value.decode("utf-8", "replace")
        return None

    def last_words(self, machine: Machine, name: str) -> str:
        """Give the last lines of a unit's journal, for an error; empty where it cannot be read."""
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
    """There is a systemd to ask at all."""

    manager: Systemd

    @property
    def title(self) -> str:
        return "systemd runs" + (f" for user {self.manager.facts.user}" if self.manager.own_user else "")

    def compare(self, machine: Machine) -> Change | None:
        asked = machine.run(self.manager.argv("is-system-running"))
        if asked.code == 127:
            raise MachineError("there is no systemctl on this machine", hint=_ELSEWHERE)
        if asked.text.strip() not in _RUNNING_STATES:
            said = asked.complaint or "no answer"
            who = f"the systemd of user `{self.manager.facts.user}`" if self.manager.own_user else "systemd"
            hint = "log in as that user, or `loginctl enable-linger` it" if self.manager.own_user else _ELSEWHERE
            raise MachineError(f"{who} does not run here: {said}", hint=hint)
        return None

    def apply(self, machine: Machine) -> None:
        """Nothing that a step could do."""


_ELSEWHERE = "run `herdsman agent run …` under whatever starts services here"


@dataclass(frozen=True)
class Loaded:
    """The manager knows the unit's file as it is on disk; `content` None: it knows no such unit."""

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
            raise MachineError(f"the unit `{self.name}` is masked: somebody wants it never to run", hint=f"`{unmask}`")
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
    # 1 and 4 are answers too: disabled, masked, not found.
    return machine.run(manager.argv("is-enabled", f"{name}.service")).text.strip()


@dataclass(frozen=True)
class Running:
    """The unit's process runs, started from this very definition."""

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
            return Change("starts it" if state.sub != "auto-restart" else "starts it: its last start failed")
        if self.manager.mark_of(machine, state.main_pid) != self.mark:
            return Change("restarts it: what runs was started from another definition")
        return None

    def apply(self, machine: Machine) -> None:
        unit = f"{self.name}.service"
        # A unit that ran into its start limit refuses to start until this.
        machine.run(self.manager.argv("reset-failed", unit), sudo=self.manager.sudo)
        self.manager.change(machine, "restart", unit)
        end = time.monotonic() + self.settle_s
        first = self.manager.state(machine, self.name)
        while True:
            state = self.manager.state(machine, self.name)
            if state.active != "active" or state.main_pid != first.main_pid:
                raise CommandFailed(self._why(machine, state), hint=f"`journalctl -u {unit}` says more")
            if time.monotonic() > end:
                return
            time.sleep(min(0.5, self.settle_s))

    def _why(self, machine: Machine, state: UnitState) -> str:
        words = " | ".join(line.strip() for line in self.manager.last_words(machine, self.name).splitlines()[-6:])
        how = f"it is {state.active} ({state.sub}, {state.result})" if state.active != "active" else "it started again"
        return f"`{self.name}` does not stay up: {how}" + (f"; it said: {words}" if words else "")


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
        return Change("forgets that it failed") if active == "failed" else None

    def apply(self, machine: Machine) -> None:
        unit = f"{self.name}.service"
        self.manager.change(machine, "stop", unit)
        machine.run(self.manager.argv("reset-failed", unit), sudo=self.manager.sudo)


@dataclass(frozen=True)
class Lingering:
    """A user's units run without the user being logged in."""

    user: str

    @property
    def title(self) -> str:
        return f"user {self.user} lingers"

    def compare(self, machine: Machine) -> Change | None:
        there = machine.stat(f"/var/lib/systemd/linger/{self.user}")
        return Change("lets its units run from boot on") if there is None else None

    def apply(self, machine: Machine) -> None:
        try:
            checked(machine, ["loginctl", "enable-linger", self.user])
        except CommandFailed as error:
            raise NotPermitted(error.message, hint=f"`sudo loginctl enable-linger {self.user}`") from error
