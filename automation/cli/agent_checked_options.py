"""The options of an agent that its checks use: those of a command line, or those of the installed agent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from automation.cli.agent_installation import read_installation
from automation.cli.agent_options import STORE
from automation.cli.agent_run import run_command
from automation.cli.agent_service import this_machine
from program.desired.errors import SpecInvalid
from program.desired.quantities import bytes_of


@dataclass(frozen=True)
class CheckedOptions:
    """The options of an agent that the checks use."""

    host: str
    store: Path
    kubeconfig: str | None
    is_kubernetes: bool
    system_namespace: str
    namespaces: tuple[str, ...]
    http_address: str
    http_port: int
    certificate: Path | None
    address: str | None
    memory_bytes: int | None
    memory_fraction: float | None
    engine_user: str | None
    as_root: bool
    """Whether the agent runs as root, or would."""


def checked_options(given: Sequence[str], name: str, *, own_user: bool) -> tuple[CheckedOptions, bool]:
    """Return the options to check, and whether they are those of an installed agent.

    Without given options they are those of the installed agent `name`, or the defaults if none is installed. Raises
    MachineError, and the usage errors of `agent run`.
    """
    arguments, installed = list(given), None
    if not arguments:
        installed = read_installation(this_machine(), name, own_user=own_user)
        arguments = list(installed.arguments) if installed is not None else []
    if not any(each == "--host" or each.startswith("--host=") for each in arguments):
        arguments += ["--host", "doctor"]
    values: Mapping[str, Any] = run_command().make_context("herdsman agent doctor", arguments).params
    found = CheckedOptions(
        host=values["host"],
        store=(values["store"] or Path.home() / STORE).expanduser().absolute(),
        kubeconfig=str(values["kubeconfig"]) if values["kubeconfig"] else None,
        is_kubernetes=str(values["plan_source"]) == "kubernetes",
        system_namespace=values["system_namespace"],
        namespaces=tuple(values["namespace"] or ()),
        http_address=values["http_address"],
        http_port=values["http_port"],
        certificate=values["tls_cert"],
        address=values["address"],
        memory_bytes=_bytes(values["memory_budget"]),
        memory_fraction=values["memory_fraction"],
        engine_user=values["engine_user"],
        as_root=installed.user == "root" if installed is not None else os.geteuid() == 0,
    )
    return found, installed is not None


def _bytes(text: str | None) -> int | None:
    try:
        return bytes_of(text, field="--memory-budget")
    except SpecInvalid as error:
        raise typer.BadParameter(str(error)) from None
