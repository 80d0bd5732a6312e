"""Steps to a service on whatever machine it is: systemd on Linux, launchd on macOS."""

from __future__ import annotations

from agent.steps import launchd, systemd
from agent.steps.machine import Facts, MachineError
from agent.steps.service import Service
from agent.steps.step import Step


def install_steps(service: Service, facts: Facts, *, own_user: bool = False) -> list[Step]:
    """List the steps to a service that runs, now and after each boot.

    `own_user`: under the user's own manager, which takes no root. Raises MachineError where there is no such thing.
    """
    if facts.os == "darwin":
        if own_user:
            raise MachineError(launchd.REFUSED_AGENT, hint="install it as a system service: it still runs as its user")
        return launchd.install_steps(service)
    return systemd.install_steps(service, facts, own_user=own_user)


def removal_steps(service_name: str, label: str, facts: Facts, *, own_user: bool = False) -> list[Step]:
    """List the steps to no such service; `label` is launchd's name for it (`Service.label`)."""
    if facts.os == "darwin":
        return launchd.removal_steps(label)
    return systemd.removal_steps(service_name, facts, own_user=own_user)


def definition_path(service_name: str, label: str, facts: Facts, *, own_user: bool = False) -> str:
    """Where the file is that says what is installed."""
    if facts.os == "darwin":
        return launchd.plist_path(label)
    return systemd.unit_path(service_name, facts, own_user=own_user)
