"""`herdsman local`: services of this machine, without a cluster. Calls `automation.local`."""

from __future__ import annotations

import ipaddress
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.stop_signals import STOP_SIGNALS, on_stop_signal
from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.output import OutputFormat, complain, print_json, print_table, say

if TYPE_CHECKING:
    from automation.local.folders import LocalFolders
    from automation.local.instance import Settings

app = typer.Typer(no_args_is_help=True)

EXIT_NOT_UP = 1


@app.command()
def up(
    listen: Annotated[
        str | None,
        typer.Option(
            help="Loopback address and port of the OpenAI API. The default is that of the last `local up`.",
            show_default="127.0.0.1:8080",
        ),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, with the log on the terminal, until Ctrl-C.")
    ] = False,
    at_login: Annotated[
        bool, typer.Option("--at-login", help="Start it now and at each login, by systemd or launchd.")
    ] = False,
    allowed_remote_host: Annotated[
        list[str] | None,
        typer.Option(help="Private host name or CIDR that models may come from. May be repeated.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Serve the Models and services of ~/.config/herdsman/local on this machine, without a cluster and without root.

    It runs in the background: an agent, which loads models at the first request and unloads idle ones, and the gateway,
    which serves the OpenAI API for all of them. A change of the folder is applied at once. A second `up` changes
    nothing.
    """
    from automation.local import background
    from automation.local.folders import LocalFolders
    from automation.local.instance import Settings, running_instance

    if foreground and at_login:
        raise typer.BadParameter("--foreground and --at-login exclude each other")
    folders = LocalFolders.of_user()
    if dry_run:
        found = running_instance(folders)
        address = listen or (Settings.read(folders.settings) or Settings()).listen
        _check_address(address)
        end_dry_run([] if found is not None else [f"serve the services of {folders.config} on http://{address}/v1"])
    try:
        folders.make()
    except OSError as error:
        complain(f"cannot make the folders of local mode: {error}")
        raise typer.Exit(1) from None
    last = Settings.read(folders.settings) or Settings()
    changes = {"listen": listen, "allowed_remote_hosts": tuple(allowed_remote_host) if allowed_remote_host else None}
    settings = last.model_copy(update={name: value for name, value in changes.items() if value is not None})
    _check_address(settings.listen)
    found = running_instance(folders)
    if found is not None and found.is_serving and not at_login:
        if settings != last:
            complain("local mode is running with other options", hint="run `herdsman local down` first")
            raise typer.Exit(1)
        say(f"Local mode is running already: {found.url}")
        return
    _check_tools()
    if foreground:
        _run_in_foreground(folders, settings)
        return
    if at_login:
        _install_login_item(folders, settings)
        started = background.wait_until_serving(folders)
        if started is None:
            complain("the login item was installed, but local mode does not answer", hint=f"see {folders.log}")
            raise typer.Exit(1)
    else:
        try:
            started = background.start(folders, background.command(settings.listen, settings.allowed_remote_hosts))
        except (background.NotStarted, OSError) as error:
            # Another `up` may have started it at the same time.
            other = background.wait_until_serving(folders) if running_instance(folders) is not None else None
            if other is None:
                complain(f"local mode did not start. {error}", hint=f"the log is {folders.log}")
                raise typer.Exit(1) from None
            started = other
    say(f"Serving the OpenAI API on {started.url}")
    say(f"  services: YAML files in {folders.config}")
    say(f"  log: {folders.log}; `herdsman local status` lists the services, `herdsman local down` ends it")


@app.command()
def status(
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Show whether local mode runs, its services, and the files with problems. Exit code 1 when it does not run."""
    from automation.local.folders import LocalFolders
    from automation.local.state import local_state

    state = local_state(LocalFolders.of_user())
    if output is OutputFormat.JSON:
        print_json(state.as_json())
    else:
        _print_state(state)
    if not state.is_up:
        raise typer.Exit(EXIT_NOT_UP)


@app.command()
def down(dry_run: DryRun = False) -> None:
    """End local mode and the models that it runs, and wait until they have ended. Files and models stay.

    A login item is removed, so that it does not start again.
    """
    from agent.steps.local import LocalMachine
    from automation.local import background, login_item
    from automation.local.folders import LocalFolders
    from automation.local.instance import running_instance

    folders = LocalFolders.of_user()
    was_up = running_instance(folders) is not None
    if dry_run:
        removed_item = ["remove the login item"] if login_item.is_installed(LocalMachine().facts) else []
        end_dry_run([*(["end local mode and the models that it runs"] if was_up else []), *removed_item])
    try:
        removed = login_item.remove()
    except login_item.LoginItemFailed as error:
        complain(str(error), hint=error.hint)
        raise typer.Exit(1) from None
    if not background.stop(folders):
        complain(f"local mode did not end within {background.STOP_S:g} s", hint=f"see {folders.log}")
        raise typer.Exit(1)
    if removed:
        say("Removed the login item")
    say("Local mode has ended" if was_up else "Local mode was not running")


def _check_address(listen: str) -> None:
    from gateway.listen_address import ListenAddress

    try:
        address = ListenAddress.parse(listen).address
    except ValueError as error:
        raise typer.BadParameter(f"--listen: {error}") from None
    if not ipaddress.ip_address(address).is_loopback:
        raise typer.BadParameter(
            f"--listen: {address} is reached by other machines, and local mode has neither TLS nor keys of clients; "
            "listen on 127.0.0.1, and let a proxy with both serve other machines"
        )


def _check_tools() -> None:
    """Say which programs are missing. Without Pulumi nothing can be applied; llama-server may not be needed."""
    from tools.toolchain import ToolMissing, locate

    try:
        locate("pulumi")
    except ToolMissing as missing:
        complain(f"`pulumi` {missing.why}", hint=missing.remedy)
        raise typer.Exit(1) from None
    try:
        locate("llama-server")
    except ToolMissing as missing:
        say(f"Warning: `llama-server` {missing.why}; GGUF models cannot load. {missing.remedy}", err=True)


def _locate(name: str) -> Path | None:
    from tools.toolchain import ToolMissing, locate

    try:
        return locate(name)
    except ToolMissing:
        return None


def _run_in_foreground(folders: LocalFolders, settings: Settings) -> None:
    """Run the instance in this process until a signal."""
    from automation.local.instance import Instance, InstanceLock, InUse

    os.umask(0o077)
    lock = InstanceLock(folders)
    try:
        lock.acquire()
    except (InUse, OSError) as error:
        complain(str(error), hint="`herdsman local status` shows it")
        raise typer.Exit(1) from None
    stopping = threading.Event()
    on_stop_signal(stopping.set, signals=(*STOP_SIGNALS, signal.SIGHUP))
    Instance.of_this_process().write(folders.instance)
    from automation.local.applying_process import start_applying, stop_process

    # Pulumi's libraries are loaded there while agent and gateway are loaded here.
    applying = start_applying()
    try:
        from agent.server.store import StoreInUse
        from automation.local.running import RunningLocal
        from automation.telemetry.logs import configure_logging

        configure_logging()
        try:
            running = RunningLocal(folders, settings, locate=_locate, applying=applying)
        except (OSError, StoreInUse) as error:
            stop_process(applying)
            where = f"cannot listen on {settings.listen}: " if isinstance(error, OSError) else ""
            complain(f"{where}{error}", hint="choose another address with --listen" if where else "")
            raise typer.Exit(1) from None
        try:
            settings.write(folders.settings)
            running.record().write(folders.instance)
            say(f"Serving the OpenAI API on {running.url}; services are YAML files in {folders.config}")
            running.run(stopping)
        finally:
            running.stop()
        if not stopping.is_set():
            raise typer.Exit(1)
    finally:
        folders.instance.unlink(missing_ok=True)
        lock.release()


def _install_login_item(folders: LocalFolders, settings: Settings) -> None:
    from automation.local import background, login_item

    try:
        login_item.check()
        # The lock is for one instance, so that of the login item must be the only one.
        if not background.stop(folders):
            complain("the running instance did not end", hint=f"see {folders.log}")
            raise typer.Exit(1)
        login_item.install(folders, background.command(settings.listen, settings.allowed_remote_hosts))
    except login_item.LoginItemFailed as error:
        complain(str(error), hint=error.hint)
        raise typer.Exit(1) from None


def _print_state(state: Any) -> None:
    if state.instance is None:
        say("Local mode is not running. `herdsman local up` starts it")
    elif not state.is_up:
        say(f"Local mode is starting (process {state.instance.pid})")
    else:
        say(f"Local mode serves the OpenAI API on {state.instance.url} (process {state.instance.pid})")
    say(f"  services: YAML files in {state.folders.config}")
    say(f"  log: {state.folders.log}")
    if state.services:
        say()
        rows = [
            (f"{each.namespace}/{each.name}", each.model or "-", each.phase, each.reason or "-", each.message or "-")
            for each in state.services
        ]
        print_table(("SERVICE", "MODEL", "PHASE", "REASON", "MESSAGE"), rows, phase_column=2)
    for problem in state.problems:
        say(f"{problem.file}: {problem.message}", err=True)
