"""How the doctors speak: what they found, line by line, and whether the command fails for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from automation.cli.output import OutputFormat, print_json, print_table
from automation.console.finding import Finding


def tell_findings(findings: Sequence[Finding], output: OutputFormat, *, fatal: str = "missing") -> None:
    """Print findings; ends the command with exit code 1 when one of them is `fatal`."""
    if output is OutputFormat.JSON:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(finding.check, finding.state, finding.detail, finding.hint) for finding in findings]
        print_table(("CHECK", "STATE", "DETAIL", "WHAT TO DO"), rows, phase_column=1)
    if any(finding.state == fatal for finding in findings):
        raise typer.Exit(1)
