"""The options of `herdsman agent run` for an installed service: checked, complete and in one form.

Used by `automation.cli.agent_service`. The command itself (`agent_run.run_command`) defines the options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORE = ".local/share/herdsman/agent"
"""The default of --store, under the home of the agent's user."""


class OptionsWrong(Exception):
    """The given options are not valid for an installed agent. `hint` names valid ones."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class RunOptions:
    """The arguments after `herdsman agent run`, and the facts that an installation needs of them."""

    arguments: tuple[str, ...]
    host: str
    store: str
    files: tuple[str, ...]
    """Files that the agent's user must be able to read."""
    has_api: bool


def settled(
    command: Any, given: Sequence[str], *, home: str, environment: Mapping[str, str] = os.environ, of_user: str = ""
) -> RunOptions:
    """Check options by the rules of `command` (`agent run`), and complete them for an agent that runs as a service.

    Paths become absolute. Store and kubeconfig are always set, because a service has neither the caller's directory nor
    the caller's environment. Raises OptionsWrong, and the command's usage errors.
    """
    context = command.make_context("herdsman agent run", list(given))
    values: dict[str, Any] = dict(context.params)
    values["keep_processes"] = True
    values["store"] = values["store"] or Path(home) / STORE
    if str(values["plan_source"]) == "kubernetes":
        values["kubeconfig"] = Path(values["kubeconfig"] or _usual_kubeconfig(home, environment, of_user))
    arguments: list[str] = []
    files: list[str] = []
    for parameter in command.params:
        value = values.get(parameter.name)
        if value is None or value == parameter.default or value == [] or parameter.name == "help":
            continue
        option = next(name for name in parameter.opts if name.startswith("--"))
        if value is True:
            arguments.append(option)
            continue
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, Path):
                each = each.expanduser().absolute()
                if parameter.name != "store":
                    files.append(str(each))
            arguments.append(f"{option}={each}")
    store = values["store"].expanduser().absolute()
    return RunOptions(tuple(arguments), str(values["host"]), str(store), tuple(files), values["http_port"] >= 0)


def _usual_kubeconfig(home: str, environment: Mapping[str, str], user: str) -> str:
    named = [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    if len(named) == 1:
        return named[0]
    usual = Path(home) / ".kube" / "config"
    if usual.exists() and not named:
        return str(usual)
    who = f" in the home of `{user}`" if user else ""
    wrong = "$KUBECONFIG contains several files" if named else f"there is no .kube/config{who}"
    raise OptionsWrong(
        f"the agent needs a kubeconfig, but {wrong}",
        hint="name a file with --kubeconfig, or let a program send the plan over HTTP: --plan-source http",
    )


def default_store() -> Path:
    """Return the default store of an agent."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "herdsman" / "agent"
