"""Prints the checks of the doctors as a table or as JSON, and ends the command when one of them failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from automation.cli.output import OutputFormat, print_json, print_table
from automation.console.check import Check


def report_checks(checks: Sequence[Check], output: OutputFormat, *, fatal: str = "missing") -> None:
    """Print checks. Raises typer.Exit(1) when one of them has the state `fatal`."""
    if output is OutputFormat.JSON:
        print_json([asdict(check) for check in checks])
    else:
        rows = [(check.check, check.state, check.detail, check.hint) for check in checks]
        print_table(("CHECK", "STATE", "DETAIL", "WHAT TO DO"), rows, phase_column=1)
    if any(check.state == fatal for check in checks):
        raise typer.Exit(1)
