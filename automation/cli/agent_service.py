"""`herdsman agent install | upgrade | uninstall | status`: the agent as a service of this machine.

Each command may be repeated; correct parts are not changed. Exit codes: 0 done, or nothing to do; 1 failed; 2 something
would change (`--dry-run` only); 64 wrong usage.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from agent.steps import systemd
from agent.steps.launchd import REFUSED_AGENT, job_state
from agent.steps.local import LocalMachine
from agent.steps.machine import Machine, MachineError
from agent.steps.service import NotExpressible
from agent.steps.services import definition_path
from agent.steps.step import Outcome, State, Step, is_changed, is_failed, run_steps
from agent.version import agent_version
from automation.cli.agent_installation import Installation, install_steps, read_installation, removal_steps
from automation.cli.agent_options import OptionsWrong, settled
from automation.cli.agent_run import run_command
from automation.cli.local_agent import LocalApi, left_processes, service_pid, user_home
from automation.cli.output import OutputFormat, complain, print_json, print_table, say

EXIT_WOULD_CHANGE = 2
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY", "ACCESS_KEY")
"""Variables with such names are refused, because every user of the machine can read a service's definition."""

Name = Annotated[str, typer.Option("--name", help="Name of the agent's service, if the machine has several.")]
OwnUser = Annotated[
    bool,
    typer.Option(
        "--user-unit/--system", help="Use your user's systemd, without root. The default is the machine's systemd."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")]
DEFAULT_NAME = "herdsman-agent"


def this_machine() -> Machine:
    """Return the machine that the commands work on."""
    return LocalMachine()


def install(
    context: typer.Context,
    name: Name = DEFAULT_NAME,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", help="User that the agent runs as. The default is the user who calls sudo.", show_default=False
        ),
    ] = None,
    own_user: OwnUser = False,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", help="Environment variable of the agent, as NAME=VALUE. Put secrets into a file instead."
        ),
    ] = None,
    dry_run: DryRun = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run the agent as a service, now and after each boot; or change its options.

    Takes the options of this command and all options of `herdsman agent run`; --host is required. Each installation
    sets all options: an omitted option returns to its default.
    """
    machine = this_machine()
    prepared = prepare(
        machine, context.args, name=name, user=user, own_user=own_user, environment=env or (), dry_run=dry_run
    )
    steps = install_steps(prepared, machine.facts, program=program(), version=agent_version())
    _finish(steps, machine, dry_run=dry_run, output=output)


def prepare(
    machine: Machine,
    arguments: Sequence[str],
    *,
    name: str,
    user: str | None,
    own_user: bool,
    environment: Sequence[str] = (),
    dry_run: bool = False,
) -> Installation:
    """Check the options of an installation, and change nothing. `arguments` are those of `agent run`.

    Raises typer.Exit after a message, and usage errors.
    """
    _refuse_wrong_manager(machine, own_user)
    try:
        who = _user(machine, user, own_user=own_user, dry_run=dry_run)
        home = user_home(machine, who)
        options = settled(run_command(), arguments, home=home, of_user=who)
        installed = Installation(
            name=name,
            user=who,
            home=home,
            own_user=own_user,
            host=options.host,
            store=options.store,
            arguments=options.arguments,
            environment=_environment(list(environment)),
            files=options.files,
            has_api=options.has_api,
        )
        install_steps(installed, machine.facts, program=program(), version=agent_version())
    except (OptionsWrong, MachineError) as error:
        _fail(str(error), error.hint)
    except NotExpressible as error:
        raise typer.BadParameter(str(error)) from None
    return installed


def carry_out(installed: Installation, machine: Machine) -> None:
    """Make what `prepare` returned, and print the steps. Raises typer.Exit with a failed step."""
    steps = install_steps(installed, machine.facts, program=program(), version=agent_version())
    _perform(steps, machine, dry_run=False, output=OutputFormat.TABLE)


def upgrade(
    name: Name = DEFAULT_NAME,
    own_user: OwnUser = False,
    dry_run: DryRun = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Upgrade an installed agent to this version of Herdsman, with its present options.

    Restarts the agent only when something differs. Its processes keep running.
    """
    machine = this_machine()
    try:
        installed = _installed(machine, name, own_user)
        steps = install_steps(installed, machine.facts, program=program(), version=agent_version())
    except MachineError as error:
        _fail(str(error), error.hint)
    _finish(steps, machine, dry_run=dry_run, output=output)


def uninstall(
    name: Name = DEFAULT_NAME,
    own_user: OwnUser = False,
    stop_processes: Annotated[
        bool, typer.Option("--stop-processes", help="Also drain and stop its processes. Without it they keep running.")
    ] = False,
    dry_run: DryRun = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove the agent's service. Models, logs and tokens stay in its store."""
    machine = this_machine()
    try:
        installed = read_installation(machine, name, own_user=own_user)
        if installed is None:
            # The leftovers of an incomplete removal are removed as well.
            facts = machine.facts
            installed = Installation(
                name=name, user=facts.user, home=facts.home, own_user=own_user, host="", store="/", arguments=()
            )
            stop_processes = False
        steps = removal_steps(installed, machine.facts, stop_processes=stop_processes)
    except MachineError as error:
        _fail(str(error), error.hint)
    _finish(steps, machine, dry_run=dry_run, output=output, last=lambda: _report_left(machine, installed, output))


def status(name: Name = DEFAULT_NAME, own_user: OwnUser = False, output: Output = OutputFormat.TABLE) -> None:
    """Show whether the agent is installed, runs and answers, and what it runs. Exit code 1 when it does not answer."""
    machine = this_machine()
    try:
        installed = _installed(machine, name, own_user)
        told = _status(machine, installed)
    except MachineError as error:
        _fail(str(error), error.hint)
    if output is OutputFormat.JSON:
        print_json(told)
    else:
        print_table(("WHAT", "IS"), [(key, _text(value)) for key, value in told.items() if value not in (None, "")])
    if not told["answers"]:
        raise typer.Exit(1)


def _status(machine: Machine, installed: Installation) -> dict[str, Any]:
    service = installed.service(program(), agent_version())
    facts, own_user = machine.facts, installed.own_user
    pid = service_pid(machine, service, own_user=own_user)
    if facts.os == "darwin":
        job = job_state(machine, service.label)
        state = "not loaded" if job is None else "running" if job.running else f"exited with {job.last_exit}"
    else:
        unit = systemd.Systemd(facts, own_user).state(machine, service.name)
        state = f"{unit.active} ({unit.sub})" + (f", {unit.restarts} restarts" if unit.restarts else "")
    api = LocalApi(installed.store)
    run, processes, problem = None, None, ""
    try:
        run = api.run(machine) if pid else None
        if run is not None and run.http_port is not None:
            report = json.loads(api.request(machine, run, "GET", "/v1/report"))
            processes = dict(Counter(each["phase"] for each in report["processes"].values()))
    except MachineError as error:
        problem = error.message
    answers = run is not None and (run.http_port is None or api.is_healthy(run))
    return {
        "host": installed.host,
        "service": definition_path(service.name, service.label, facts, own_user=own_user),
        "state": state,
        "pid": pid or None,
        "user": installed.user,
        "store": installed.store,
        "version": run.version if run is not None else None,
        "upgrade": f"to {agent_version()}: `herdsman agent upgrade`"
        if run and run.version != agent_version()
        else None,
        "plan": run.plan_source if run is not None else None,
        "api": f"http://127.0.0.1:{run.http_port}" if run is not None and run.http_port else None,
        "endpoint": run.endpoint if run is not None else None,
        "answers": answers,
        "processes": processes,
        "problem": problem or None,
    }


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {phase}" for phase, count in sorted(value.items())) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def program() -> tuple[str, ...]:
    """Return the command that runs this installation of Herdsman."""
    beside = Path(sys.executable).with_name("herdsman")
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-m", "automation.cli")


def _user(machine: Machine, given: str | None, *, own_user: bool, dry_run: bool) -> str:
    facts = machine.facts
    caller = os.environ.get("SUDO_USER", "")
    if own_user:
        if facts.is_root and caller and caller != "root":
            raise MachineError(
                "--user-unit installs into the systemd of the calling user, and the caller is root",
                hint="run it without sudo",
            )
        if given not in (None, facts.user):
            raise MachineError(
                f"--user-unit runs as `{facts.user}`, not as `{given}`", hint="omit --user-unit or --user"
            )
        return facts.user
    if not facts.is_root and not dry_run:
        raise MachineError(
            "only root can install a service of the machine",
            hint=f"`sudo {' '.join(program())} agent install …`"
            + ("" if facts.os == "darwin" else ", or --user-unit for a service of your user"),
        )
    if given:
        return given
    if facts.is_root and caller in ("", "root"):
        raise MachineError(
            "the user that the agent runs as is missing",
            hint="add --user NAME; for an agent that runs as root, add `--user root`",
        )
    return caller if facts.is_root else facts.user


def _environment(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"--env `{name}` is not NAME=VALUE")
        if any(word in name.upper() for word in SECRET_WORDS) or re.search(r"://[^/@]*:[^/@]*@", value):
            raise typer.BadParameter(
                f"--env {name}: every user of the machine can read a service's definition; put the value into a file "
                f"and name it with --credentials"
            )
        found[name] = value
    return found


def _refuse_wrong_manager(machine: Machine, own_user: bool) -> None:
    if own_user and machine.facts.os == "darwin":
        _fail(REFUSED_AGENT, "omit --user-unit: a LaunchDaemon also runs the agent as the user that --user names")


def _installed(machine: Machine, name: str, own_user: bool) -> Installation:
    installed = read_installation(machine, name, own_user=own_user)
    if installed is None:
        other = machine.facts.os == "linux" and read_installation(machine, name, own_user=not own_user) is not None
        raise MachineError(
            f"no agent `{name}` is installed here",
            hint=f"an agent of this name is installed "
            f"{'for the machine: --system' if own_user else 'for your user: --user-unit'}"
            if other
            else "`herdsman agent install --host NAME …`, or give another --name",
        )
    return installed


def _finish(
    steps: list[Step], machine: Machine, *, dry_run: bool, output: OutputFormat, last: Any = lambda: None
) -> None:
    outcomes = _perform(steps, machine, dry_run=dry_run, output=output)
    last()
    if dry_run and is_changed(outcomes):
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _perform(steps: list[Step], machine: Machine, *, dry_run: bool, output: OutputFormat) -> list[Outcome]:
    try:
        outcomes = run_steps(steps, machine, dry_run=dry_run)
    except KeyboardInterrupt:
        complain("interrupted before the end; run the same command again to finish")
        raise
    failed = is_failed(outcomes)
    if output is OutputFormat.JSON:
        print_json({"failed": failed, "changed": is_changed(outcomes), "steps": [asdict(each) for each in outcomes]})
    else:
        _print(outcomes, dry_run=dry_run)
    if failed:
        wrong = next(each for each in outcomes if each.state is State.FAILED)
        _fail(wrong.detail, wrong.hint)
    return outcomes


def _print(outcomes: list[Outcome], *, dry_run: bool) -> None:
    rows = [(each.state.value, each.title, "" if each.state is State.FAILED else each.detail) for each in outcomes]
    print_table(("STATE", "STEP", "DETAIL"), rows, phase_column=0)
    for each in outcomes:
        if dry_run and each.diff:
            say(f"\n{each.diff}", nl=False)


def _report_left(machine: Machine, installed: Installation, output: OutputFormat) -> None:
    left = left_processes(machine, installed.store) if installed.host else {}
    if left and output is OutputFormat.TABLE:
        say(
            f"Still running, without an agent: {', '.join(sorted(left))}\n"
            f"The next agent with the store {installed.store} adopts them"
        )


def _fail(message: str, hint: str) -> NoReturn:
    complain(message, hint=hint)
    raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Register the commands in `herdsman agent`."""
    # Options of `agent run` are passed on, and checked against that command.
    app.command("install", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(install)
    app.command("upgrade")(upgrade)
    app.command("uninstall")(uninstall)
    app.command("status")(status)
