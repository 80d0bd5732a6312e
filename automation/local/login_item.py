"""The login item of local mode: a unit of the user's systemd, or a LaunchAgent. Needs no root.

`automation.cli.local` installs and removes it; the steps are those of the agent's services (`agent.steps`). A
LaunchAgent suffices here, because local mode serves on loopback only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.steps import launchd, systemd
from agent.steps.local import LocalMachine
from agent.steps.machine import Facts, Machine
from agent.steps.service import Service
from agent.steps.step import State, Step, run_steps
from automation.local.folders import PRIVATE_FILE, LocalFolders
from tools.toolchain import override_variable

NAME = "herdsman-local"
STOP_TIMEOUT_S = 150
"""As long as `herdsman local down` waits for the instance, and some more."""
_VARIABLES = (
    *("PATH", "HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HERDSMAN_CACHE"),
    *(override_variable(tool) for tool in ("pulumi", "llama-server")),
)


class LoginItemFailed(Exception):
    """The login item could not be installed or removed. `hint` says what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def login_service(folders: LocalFolders, argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Service:
    """Return the service that runs `argv` at each login. It gets no variable that could hold a secret."""
    return Service(
        name=NAME,
        description="Herdsman's local mode",
        argv=tuple(argv),
        environment={name: environment[name] for name in _VARIABLES if environment.get(name)},
        stop_timeout_s=STOP_TIMEOUT_S,
        settle_s=0.0,
        log_file=str(folders.log),
        log_to_file=True,
    )


def install_steps(service: Service, facts: Facts) -> list[Step]:
    """Return the steps that install and start the login item."""
    if facts.os == "darwin":
        return launchd.install_steps(service, launchd.Domain.of_user(facts))
    return systemd.install_steps(service, facts, own_user=True, at_boot=False)


def removal_steps(facts: Facts) -> list[Step]:
    """Return the steps that end and remove the login item."""
    if facts.os == "darwin":
        domain = launchd.Domain.of_user(facts)
        return launchd.removal_steps(_label(), stop_timeout_s=STOP_TIMEOUT_S, domain=domain)
    return systemd.removal_steps(NAME, facts, own_user=True)


def is_installed(facts: Facts) -> bool:
    """Return whether the user has the login item."""
    if facts.os == "darwin":
        return Path(launchd.plist_path(_label(), launchd.Domain.of_user(facts))).exists()
    return Path(systemd.unit_path(NAME, facts, own_user=True)).exists()


def check(machine: Machine | None = None) -> None:
    """Check that the user's service manager runs. Raises LoginItemFailed."""
    machine = machine or LocalMachine()
    _run(removal_steps(machine.facts)[:1], machine)


def install(folders: LocalFolders, argv: Sequence[str], machine: Machine | None = None) -> None:
    """Install and start the login item. Raises LoginItemFailed."""
    machine = machine or LocalMachine()
    # The service manager would make the file readable for others.
    os.close(os.open(folders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE))
    _run(install_steps(login_service(folders, argv), machine.facts), machine)


def remove(machine: Machine | None = None) -> bool:
    """End and remove the login item. Returns whether there was one. Raises LoginItemFailed."""
    machine = machine or LocalMachine()
    if not is_installed(machine.facts):
        return False
    _run(removal_steps(machine.facts), machine)
    return True


def _run(steps: Sequence[Step], machine: Machine) -> None:
    for number, outcome in enumerate(run_steps(steps, machine)):
        if outcome.state is State.FAILED:
            # The first step checks that there is a service manager; its hint is for agents of clusters.
            hint = outcome.hint if number else "start it by `herdsman local up` without --at-login"
            raise LoginItemFailed(f"{outcome.title}: {outcome.detail}", hint=hint)


def _label() -> str:
    return Service(name=NAME, description="", argv=("/",)).label
