"""The scope `agent` of `herdsman doctor`, and its older name `herdsman agent doctor`.

The checks find faults of this machine and of the agent's options, and name remedies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from agent.steps.machine import MachineError
from automation.cli.agent_checked_options import checked_options
from automation.cli.agent_cluster_checks import cluster_checks
from automation.cli.agent_machine_checks import machine_checks
from automation.cli.agent_macos_checks import macos_checks
from automation.cli.agent_service import DEFAULT_NAME, Name, OwnUser
from automation.cli.output import OutputFormat, complain, report_checks
from automation.console.check import Check


def agent_checks(given: Sequence[str], *, name: str = DEFAULT_NAME, own_user: bool = False) -> Iterator[Check]:
    """Check this machine for an agent with these options of `agent run`; without options, for the installed agent.

    Raises MachineError, and the usage errors of `agent run`.
    """
    options, installed = checked_options(given, name, own_user=own_user)
    yield from machine_checks(options, running=installed)
    if options.is_kubernetes:
        yield from cluster_checks(options)
    yield from macos_checks()


def doctor(
    context: typer.Context,
    name: Name = DEFAULT_NAME,
    own_user: OwnUser = False,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Check this machine for an agent. Exit code 1 when something that it needs is wrong.

    Takes every option of `herdsman agent run`. Without options, it checks the options of the installed agent.
    """
    try:
        checks = list(agent_checks(context.args, name=name, own_user=own_user))
    except MachineError as error:
        complain(str(error), hint=error.hint)
        raise typer.Exit(1) from None
    report_checks(checks, output)


def register(app: typer.Typer) -> None:
    """Register the older name in `herdsman agent`, which the help does not list."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("doctor", hidden=True, context_settings=settings)(doctor)
