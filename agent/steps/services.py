"""Steps for a service on either system: systemd on Linux, launchd on macOS."""

from __future__ import annotations

from agent.steps import launchd, systemd
from agent.steps.machine import Facts, MachineError
from agent.steps.service import Service
from agent.steps.step import Step


def install_steps(service: Service, facts: Facts, *, own_user: bool = False) -> list[Step]:
    """Return the steps that install and start a service, also after each boot.

    `own_user` selects the user's own service manager, which needs no root. Raises MachineError on macOS, which does not
    support it.
    """
    if facts.os == "darwin":
        if own_user:
            raise MachineError(launchd.REFUSED_AGENT, hint="install it as a system service; it still runs as its user")
        return launchd.install_steps(service)
    return systemd.install_steps(service, facts, own_user=own_user)


def removal_steps(service_name: str, label: str, facts: Facts, *, own_user: bool = False) -> list[Step]:
    """Return the steps that remove a service; `label` is launchd's name for it (`Service.label`)."""
    if facts.os == "darwin":
        return launchd.removal_steps(label)
    return systemd.removal_steps(service_name, facts, own_user=own_user)


def definition_path(service_name: str, label: str, facts: Facts, *, own_user: bool = False) -> str:
    """Return the path of the file that defines the service."""
    if facts.os == "darwin":
        return launchd.plist_path(label)
    return systemd.unit_path(service_name, facts, own_user=own_user)
