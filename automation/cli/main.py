"""The command line: `herdsman COMMAND`. Assembles the commands of this package.

Exit codes: 0 done, 1 failed, 64 wrong usage (EX_USAGE of sysexits.h), 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

import typer

from automation.cli.output import complain, say

EXIT_FAILED = 1
EXIT_USAGE = 64
EXIT_INTERRUPTED = 130

# typer does not export click's UsageError. BadParameter, which it exports, derives from it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

GROUPS = {
    "cluster": "Run a local cluster for tests and demos.",
    "cache": "List, clear and fill the model caches.",
    "host": "Manage the machines that run services.",
    "image": "Build the operator's image without Docker.",
    "agent": "Install and run the agent of a host.",
    "fleet": "Move services between the loop and a static fleet.",
    "policy": "Check services against policies.",
    "provider": "Run Herdsman's Pulumi providers for the `pulumi` command.",
    "state": "List, check, move, back up, restore and unlock Pulumi's state.",
    "tools": "Install and list the tools that Herdsman runs.",
}
COMMANDS = (
    "run",
    "get",
    "leaders",
    "describe",
    "history",
    "rollback",
    "export",
    "logs",
    "top",
    "preview",
    "approve",
    "drift",
    "render",
    "convert",
    "adopt",
    "crds",
    "monitoring",
    "install",
    "uninstall",
    "doctor",
)


def application(names: Iterable[str]) -> typer.Typer:
    """Build the command line with these commands and groups. Each is a module of this package with that name."""
    app = typer.Typer(
        name="herdsman",
        help="Serve LLMs on Kubernetes, Macs and Linux hosts, reconciled by Pulumi programs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def herdsman() -> None:
        """Serve LLMs on Kubernetes, Macs and Linux hosts, reconciled by Pulumi programs."""

    for name in names:
        module = importlib.import_module(f"automation.cli.{name}")
        if name in GROUPS:
            app.add_typer(module.app, name=name, help=GROUPS[name])
        else:
            app.command(name)(getattr(module, name))

    @app.command("version")
    def version() -> None:
        """Print the version."""
        from importlib import metadata

        say(metadata.version("herdsman"))

    return app


def main() -> None:
    """Run the command line; the console script `herdsman`."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    everything = (*COMMANDS, *GROUPS)
    first = arguments[0] if arguments else ""
    # Only the requested command is imported. A loop or an agent would otherwise keep all other commands' modules in
    # memory.
    app = application((first,) if first in everything else () if first == "version" else everything)
    try:
        result = app(arguments, standalone_mode=False)
    except UsageError as error:
        # An empty command line shows the help, by an error without a message.
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
