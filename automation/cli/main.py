"""The command line: `herdsman COMMAND`. Wires the commands of this package together; the work is done elsewhere.

Exit codes: 0 done, 1 failed, 64 wrong usage (EX_USAGE of sysexits.h), 130 interrupted.
"""

from __future__ import annotations

import sys
from importlib import metadata

import typer

from automation.cli import agent, cluster, crds, doctor, get, render, run, tools
from automation.cli.output import complain

EXIT_FAILED = 1
EXIT_USAGE = 64
EXIT_INTERRUPTED = 130

# typer keeps click's UsageError to itself; BadParameter, which it does export, derives from it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="herdsman",
    help="Serve LLMs on Kubernetes, Macs and Linux hosts, reconciled by Pulumi programs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cluster.app, name="cluster", help="A local control plane to try things on.")
app.add_typer(agent.app, name="agent", help="The agent that runs processes on a host.")
app.add_typer(tools.app, name="tools", help="The tools that Herdsman runs: install and list them.")
app.command("run")(run.run)
app.command("crds")(crds.crds)
app.command("render")(render.render)
app.command("get")(get.get)
app.command("doctor")(doctor.doctor)


@app.command("version")
def version() -> None:
    """Print the version."""
    print(metadata.version("herdsman"))


def main() -> None:
    """Run the command line; the console script `herdsman`."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        result = app(arguments, standalone_mode=False)
    except UsageError as error:
        # An empty command line shows the help by an error without a message.
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        if message:
            complain(message, hint="see `herdsman --help`")
        return EXIT_USAGE
    except typer.Exit as stop:
        return int(stop.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILED
    return result if isinstance(result, int) else 0
