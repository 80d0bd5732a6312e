"""`herdsman tools`: install the programs that Herdsman runs, and list them. Calls `tools`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from automation.cli.output import OutputFormat, complain, print_json, print_table, say
from tools import build
from tools.toolchain import ToolMissing, find, override_variable
from tools.versions import NEEDED, TOOLS, Tool

app = typer.Typer(no_args_is_help=True)


@app.command()
def install(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Tools to install. The default is all tools that Herdsman needs."),
    ] = None,
) -> None:
    """Install missing tools. Existing ones are skipped, also suitable ones on PATH."""
    try:
        paths = build.ensure(names or NEEDED)
    except ToolMissing as missing:
        complain(f"`{missing.name}` {missing.why}", hint=missing.remedy)
        raise typer.Exit(1) from missing
    except build.BuildFailed as failed:
        complain(str(failed))
        raise typer.Exit(1) from failed
    for name, path in paths.items():
        # On stderr, because scripts read the paths from stdout.
        match find(TOOLS[name]).found_by:
            case "PATH":
                say(f"Herdsman uses the `{name}` that it found on PATH", err=True)
            case "override":
                say(f"Herdsman uses the `{name}` that {override_variable(name)} names", err=True)
        say(f"{name}  {path}")


@dataclass(frozen=True)
class _Row:
    name: str
    version: str
    state: str
    """`ok`, `missing` (a required tool), or `optional` (a missing tool that is not required)."""
    path: str | None
    found_by: str | None
    summary: str


@app.command("list")
def list_tools(
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """List the tools: version, state, path, and purpose."""
    rows = [_row(tool) for tool in TOOLS.values()]
    if output is OutputFormat.JSON:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ("NAME", "VERSION", "STATE", "PATH", "FOR"),
        [(row.name, row.version, row.state, row.path or "-", row.summary) for row in rows],
        phase_column=2,
    )


def _row(tool: Tool) -> _Row:
    try:
        located = find(tool)
    except ToolMissing:
        return _Row(tool.name, tool.version, "missing" if tool.needed else "optional", None, None, tool.summary)
    # A copy that the user installed may have another version than the one that would be built.
    version = tool.version if located.found_by == "cache" else "own"
    return _Row(tool.name, version, "ok", str(located.path), located.found_by, tool.summary)
