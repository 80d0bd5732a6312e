"""Output of commands: tables and colours on a terminal, JSON with `-o json`, errors on stderr.

Every command prints by the functions below. They clean text of a cluster, a host or a file by `terminal_text`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from automation.console import terminal_text

if TYPE_CHECKING:
    from rich.text import Text
from dataclasses import asdict
from datetime import datetime

from automation.console.check import FATAL, Check
from kubeapi.json_types import Json

# rich is imported where it is used, so that commands that print plain text do not wait for it.


class OutputFormat(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    JSON = "json"


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines of text on stdout, or with `err` on stderr."""
    typer.echo(terminal_text.lines(text), err=err, nl=nl)


def say_painted(text: str) -> None:
    """Print text that contains colours, and whose parts are clean already (`automation.preview.report`)."""
    typer.echo(text)


def say_yaml(documents: Iterable[object]) -> None:
    """Print documents as YAML. On a terminal, a document with control characters is escaped to ASCII."""
    import yaml

    given = list(documents)

    def dumped(*, plain: bool) -> str:
        text: str = yaml.safe_dump_all(given, sort_keys=False, width=120, allow_unicode=plain)
        return text

    text = dumped(plain=True)
    typer.echo(text if terminal_text.is_clean(text) else dumped(plain=False), nl=False)


def styled(text: str, style: str = "") -> Text:
    """Make one line for a table or a sentence of rich, in a style; the text has no markup."""
    from rich.text import Text

    return Text(terminal_text.one_line(text), style=style)


def complain(message: str, *, hint: str = "") -> None:
    """Print an error on stderr and, with a hint, what to do."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text("Error: ", style="bold red") + Text(terminal_text.lines(message)))
    if hint:
        console.print(Text(f"  {terminal_text.lines(hint)}", style="dim"))


def print_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(terminal_text.json_text(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


_PHASE_STYLES = {
    "Ready": "green",
    "ok": "green",
    "Failed": "red",
    "failed": "red",
    "missing": "red",
    "changed": "yellow",
    "would-change": "yellow",
    "skipped": "dim",
    "warning": "yellow",
    "Stopped": "dim",
    "WaitingForGPU": "yellow",
    "Suspended": "dim",
    "Running": "green",
    "Warning": "yellow",
    "CrashLoopBackOff": "red",
    "ImagePullBackOff": "red",
    "ErrImagePull": "red",
    "OOMKilled": "red",
}


def phase_style(word: str) -> str:
    """Return the colour of a phase, state or type; empty for one without a colour."""
    return _PHASE_STYLES.get(word, "")


def size_text(size_bytes: float | None) -> str:
    """Format a size in at most six characters, in binary units: `544M`, `4.1G`, `1.5T`."""
    if size_bytes is None:
        return "-"
    size = size_bytes / 1024
    for unit in ("K", "M", "G"):
        if size < 999.5:
            return f"{size:.1f}{unit}" if size < 9.95 and unit != "K" else f"{size:.0f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


_FOLDED_WIDTH = 30
"""The least width of a last column that is folded."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, phase_column: int | None = None) -> None:
    """Print a plain table that stays readable without colours.

    On a terminal only the last column, which has the long texts, is folded. If the other columns do not fit, each row
    is one long line, which the terminal wraps. Nothing is cut.
    """
    if not _may_be_a_terminal():
        cleaned = [[terminal_text.one_line(cell) for cell in row] for row in (columns, *rows)]
        # rich knows the width of characters beyond ASCII. Its import takes a fifth of the start of `herdsman get`.
        if all(cell.isascii() for row in cleaned for cell in row):
            for line in plain_table(cleaned):
                typer.echo(line)
            return
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    widths = [max(len(terminal_text.one_line(row[index])) for row in (columns, *rows)) for index in range(len(columns))]
    for column, width in zip(columns[:-1], widths[:-1], strict=True):
        table.add_column(column, no_wrap=True, min_width=width)
    table.add_column(columns[-1], overflow="fold")
    for row in rows:
        cells = [styled(cell, phase_style(cell) if index == phase_column else "") for index, cell in enumerate(row)]
        table.add_row(*cells)
    gaps = 2 * len(columns)
    if console.is_terminal and console.width >= sum(widths[:-1]) + gaps + min(widths[-1], _FOLDED_WIDTH):
        console.print(table)
        return
    terminal = console.is_terminal
    console.width = max(400, sum(widths) + gaps)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        # The terminal would wrap the padding too.
        typer.echo(_PADDING.sub(_kept_codes, line) if terminal else line)


def _may_be_a_terminal() -> bool:
    """Return whether rich may take stdout for a terminal: it is one, or a variable of the environment says so."""
    return sys.stdout.isatty() or any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))


def plain_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of ASCII text, as rich prints it where no terminal is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)) for row in rows]


_PADDING = re.compile(r"(?: |\x1b\[[\d;]*m)+$")


def _kept_codes(padding: re.Match[str]) -> str:
    return padding[0].replace(" ", "")


def report_checks(checks: Sequence[Check], output: OutputFormat) -> None:
    """Print checks. Raises typer.Exit(1) when one of them is missing or has failed."""
    if output is OutputFormat.JSON:
        print_json([asdict(check) for check in checks])
    else:
        rows = [(check.check, check.state, check.detail, check.hint) for check in checks]
        print_table(("CHECK", "STATE", "DETAIL", "WHAT TO DO"), rows, phase_column=1)
    if any(check.state in FATAL for check in checks):
        raise typer.Exit(1)


def condition_of(status: Json, kind: str) -> Json:
    """Return a condition by its type; empty without one."""
    return next((dict(c) for c in status.get("conditions") or () if c["type"] == kind), {})


def age_text(metadata: Json, *, now: datetime) -> str:
    """Format the age of an object."""
    return duration_text((now - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds())


def duration_text(seconds: float) -> str:
    """Format a duration as kubectl does: by its largest unit."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{int(seconds // length_s)}{unit}"
    return f"{int(seconds)}s"
