"""The command line: `herdsman COMMAND`. Assembles the commands of this package. `exits` has the exit codes."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import cast

import typer

from agent.version import agent_version
from automation.cli import exits
from automation.cli.output import complain, say

EXIT_FAILED = exits.FAILED
EXIT_USAGE = exits.USAGE
EXIT_INTERRUPTED = exits.INTERRUPTED

# typer does not export click's UsageError. BadParameter, which it exports, derives from it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

GROUPS = {
    "bundle": "Carry models, manifests and images to machines without a network.",
    "cluster": "Run a local cluster for tests and demos.",
    "cache": "List, clear and fill the model caches.",
    "catalog": "Show models that Herdsman knows by a short id, and where they fit.",
    "host": "Manage the machines that run services.",
    "image": "Build the operator's image without Docker.",
    "agent": "Install and run the agent of a host.",
    "fleet": "Move services between the loop and a static fleet.",
    "local": "Serve models on this machine, without a cluster.",
    "key": "Make, list and revoke the keys of the gateway's clients, and replace those of engines.",
    "policy": "Check services against policies.",
    "provider": "Run Herdsman's Pulumi providers for the `pulumi` command.",
    "state": "List, check, move, back up, restore and unlock Pulumi's state.",
    "tools": "Install and list the tools that Herdsman runs.",
}
COMPLETION = "_HERDSMAN_COMPLETE"
"""The variable that a shell sets to complete a command line (`automation.cli.completion`)."""
EVERYDAY = {
    "deploy": "Deploy a model, or change a service: show what would change, write it, and wait for an answer.",
    "chat": "Talk to a service; a sleeping one is woken first.",
    "list": "List services with their state, model, replicas and context.",
    "ps": "List the services that run or start now, with the place where they run.",
    "status": "Show the state of a service, why it is not ready, and the next step.",
    "scale": "Change the number of a service's replicas.",
    "stop": "End all replicas of a service; `herdsman start` starts the same number again.",
    "start": "Start a stopped service again, with the replicas that it had.",
    "open": "Open a service's OpenAI API on this machine until Ctrl-C, and print its address.",
    "bench": (
        "Measure a service: time to the first token, tokens a second, and percentiles for several numbers of clients."
    ),
    "pull": "Download a model into the cache of its namespace, so that a service starts without a wait.",
    "queue": "List the services that wait for a GPU, memory, a host or an approval, in the order of the queue.",
    "console": "Serve the web console on 127.0.0.1: services, logs, queue, hosts, models, catalog and a chat.",
    "delete": "Delete services, and their Models where no other service uses them.",
}
"""The commands of the first panel of the help, for a cluster and for this machine alike."""
COMMANDS = {
    **EVERYDAY,
    "get": "List services of all dialects with their phase, place and endpoint; or Models.",
    "run": "Reconcile Models and InferenceServices until stopped.",
    "leaders": "List which loop leads which shard of the namespaces. Exit code 1 when a shard, or all, has no leader.",
    "describe": "Show one service: phase and reason, replicas, queue, memory, rollout, recent Events.",
    "history": (
        "List the versions of a service or resource, the newest first; `*` marks the one that equals its present spec."
    ),
    "rollback": "Write the spec of an earlier revision back, after a preview. Exit code 2: --dry-run found changes.",
    "export": "Print the deployment of the stack. `pulumi stack import --file …` imports it into a stack of that name.",
    "logs": "Show the log of a service's engine.",
    "inspect": "Show licence, chat template, layers and memory of a model, without downloading it.",
    "top": "Show the memory, processor time, tokens and slots that hosts and services use. `q` ends it.",
    "preview": "Show what would be created, changed, replaced, deleted, restarted and downloaded.",
    "approve": "Approve the pending change of a service or resource in mode Preview.",
    "drift": "List fields that other clients changed, and deleted objects. Changes nothing.",
    "render": "Print the Kubernetes objects for services of all dialects. Nothing is sent to a cluster.",
    "convert": "Print the services of files in another dialect. Nothing is sent to a cluster.",
    "adopt": "Take over services of LLMKube, KServe or llmaz, one by one. No pod restarts. Shows a preview first.",
    "crds": "Print the CustomResourceDefinitions: `herdsman crds | kubectl apply --server-side -f -`.",
    "monitoring": "Write Grafana dashboards and Prometheus alert rules: `herdsman monitoring -o DIR`.",
    "install": "Install, upgrade or change the operator.",
    "uninstall": "Remove the operator. Models, services, claims, CRDs and all running replicas stay as they are.",
    "gateway": "Serve the OpenAI API for all services: requests go to a replica of the model that they name.",
    "usage": "Show the requests, tokens and costs of the gateway's clients.",
    "completion": "Print the script for completion in a shell: `source <(herdsman completion bash)`.",
    "doctor": "Check cluster, loop, hosts, gateway, agent and local mode, and name what to do.",
}
"""Each command with the first paragraph of its docstring."""

_OPERATE = frozenset(
    {
        *("get", "describe", "history", "rollback", "logs", "top", "preview", "approve", "drift", "usage", "doctor"),
        *("host", "cache", "key", "policy", "leaders"),
    }
)

_EVERYDAY_GROUPS = frozenset({"catalog"})


def panel_of(name: str) -> str:
    """Return the panel of the help in which a command is listed."""
    if name in EVERYDAY or name in _EVERYDAY_GROUPS:
        return "Everyday"
    return "Operate" if name in _OPERATE else "Admin"


def _module(name: str) -> ModuleType:
    # By a name that is made here: the package `herdsman-agent` has only the modules that are imported by name.
    return importlib.import_module(f"automation.cli.{name}")


def function_of(name: str) -> Callable[..., object]:
    """Import the module of a command, and return its function. `list` is `list_`, as a builtin has the name."""
    module = _module(name)
    return cast("Callable[..., object]", getattr(module, name, None) or getattr(module, f"{name}_"))


def application(names: Iterable[str]) -> typer.Typer:
    """Build the command line with these commands and groups. Each is a module of this package with that name."""
    app = _empty()
    for name in names:
        if name in GROUPS:
            app.add_typer(_module(name).app, name=name, help=GROUPS[name], rich_help_panel=panel_of(name))
        else:
            app.command(name, rich_help_panel=panel_of(name))(function_of(name))
    _let_help_flow(app)
    return _with_version(app)


def _let_help_flow(app: typer.Typer) -> None:
    """Join the lines of each paragraph of the commands' help, so that it fills a terminal of any width."""
    for command in app.registered_commands:
        text = inspect.cleandoc(command.help or (command.callback.__doc__ if command.callback else "") or "")
        # Lists and examples keep their lines.
        command.help = re.sub(r"(?<=[^\n])\n(?=[^\s*-])", " ", text)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _let_help_flow(group.typer_instance)


def overview() -> typer.Typer:
    """Build the command line that only lists the commands and groups. It imports none of their modules.

    It serves the help and refuses unknown commands. No command line without a command's name at its start calls one.
    """
    app = _empty()
    for name, purpose in COMMANDS.items():
        app.command(name, help=purpose, rich_help_panel=panel_of(name))(_listed)
    for name, purpose in GROUPS.items():
        group = typer.Typer()
        group.callback()(_listed)
        app.add_typer(group, name=name, help=purpose, rich_help_panel=panel_of(name))
    return _with_version(app)


def _listed() -> None:
    raise AssertionError("the overview has no commands to call")


def _empty() -> typer.Typer:
    app = typer.Typer(
        name="herdsman",
        help="Serve LLMs on Kubernetes, Macs and Linux hosts, reconciled by Pulumi programs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def herdsman(
        version: bool = typer.Option(
            False, "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ) -> None:
        """Serve LLMs on Kubernetes, Macs and Linux hosts, reconciled by Pulumi programs."""

    return app


def _with_version(app: typer.Typer) -> typer.Typer:
    @app.command("version", rich_help_panel="Admin")
    def version() -> None:
        """Print the version."""
        _print_version(True)

    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        say(agent_version())
        raise typer.Exit(0)


def main() -> None:
    """Run the command line; the console script `herdsman`."""
    if COMPLETION in os.environ:
        completion = _module("completion")
        name = completion.command_to_complete(os.environ)
        completion.complete(application((name,)) if name in COMMANDS or name in GROUPS else overview())
    code = invoke(sys.argv[1:])
    # The interpreter would search all objects for cycles at its end, which takes 0.05 s after the preview of a fleet.
    gc.freeze()
    sys.exit(code)


def invoke(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    # click skips `--`, so the next word is the command.
    first = next((word for word in arguments if word != "--"), "")
    # Only the requested command is imported. All modules together take a second of CPU, and a loop or an agent would
    # keep them in memory.
    if first in COMMANDS or first in GROUPS:
        app = application((first,))
    else:
        app = application(()) if first == "version" else overview()
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
    except PermissionError as error:
        if error.filename is None:
            raise
        complain(f"{error.filename}: {error.strerror}", hint="run the command as the user who owns the file")
        return EXIT_FAILED
    return result if isinstance(result, int) else 0
