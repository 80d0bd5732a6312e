"""`herdsman monitoring`: Grafana dashboards and Prometheus alert rules, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from automation.cli.output import complain, say
from automation.telemetry.monitoring.documents import documents


def monitoring(
    directory: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory to write into. Without it, the names are listed.")
    ] = None,
) -> None:
    """Write Grafana dashboards and Prometheus alert rules: `herdsman monitoring -o DIR`."""
    for name, text in documents().items():
        if directory is None:
            say(name)
            continue
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            complain(f"cannot write {path}: {error.strerror or error}", hint="name another directory with -o")
            raise typer.Exit(1) from None
        say(str(path))
