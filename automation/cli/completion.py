"""`herdsman completion SHELL`: the script by which a shell completes commands, options and names of services.

The script calls `herdsman` with a variable set, and `main` then calls `complete` instead of a command.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from automation.cli.main import COMPLETION

PROGRAM = "herdsman"


class Shell(StrEnum):
    """The shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell: bash, zsh, fish or powershell.")]) -> None:
    """Print the script for completion in a shell: `source <(herdsman completion bash)`.

    It completes commands, options, and the names of services in the current namespace.
    """
    typer.echo(_typers().get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION, shell=shell.value))


def command_to_complete(environment: Mapping[str, str]) -> str:
    """Return the command whose words are completed; empty while the command itself is. Pure."""
    line = environment.get("_TYPER_COMPLETE_ARGS") or environment.get("COMP_WORDS", "")
    words = line.split()[1:]
    # A word at the end of the line is incomplete. bash tells the number of the word, the others keep the space.
    number = environment.get("COMP_CWORD", "")
    is_after = int(number) > 1 if number.isdecimal() else len(words) > 1 or line.endswith(" ")
    return words[0] if words and is_after else ""


def complete(app: typer.Typer) -> None:
    """Print what completes the words in the environment, and end the process."""
    _typers().completion_init()
    app(args=[], prog_name=PROGRAM, complete_var=COMPLETION)


def _typers() -> Any:
    """Import typer's module for completion. Typer exports its functions without types."""
    return importlib.import_module("typer.completion")


def service_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the services of the namespace whose names begin so; none where the place cannot be asked."""
    from automation.cli.place_options import open_place
    from automation.places.place import PlaceError

    given = context.params
    try:
        place = open_place(given.get("kubeconfig"), given.get("context"))
        found = place.services(given.get("namespace") or place.default_namespace)
    except (PlaceError, OSError):
        return []
    return [each.name for each in found if each.name.startswith(incomplete)]
