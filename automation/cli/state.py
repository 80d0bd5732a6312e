"""`herdsman state`: show, move, save, restore and unlock the Pulumi state.

Works on the backend directly, from any machine that reaches it, with or without a loop and a cluster. It deletes
nothing that it did not write. Exit codes: 0 done, 1 something was refused, failed or is wrong.
"""

from __future__ import annotations

import pathlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.output import OutputFormat, complain, print_json, print_table, report_checks, say
from automation.cli.state_access import (
    check_quiet,
    confirm,
    fail,
    names_of,
    opened,
    passphrase_of,
    print_transfers,
    progress_of,
    read_old_passphrase,
    settings_of,
)
from components import naming

if TYPE_CHECKING:
    from automation.state.transfer import Transfer

app = typer.Typer(no_args_is_help=True)

State = Annotated[str | None, typer.Option("--state", help="URL of the state. The default is $HERDSMAN_STATE.")]
PassphraseFile = Annotated[
    pathlib.Path | None,
    typer.Option(help="File with the passphrase. The default is $HERDSMAN_PASSPHRASE_FILE or $HERDSMAN_PASSPHRASE."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Continue even if a loop leads, or the target contains another state.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation.")]
Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig, to check whether a loop leads.")]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")]
Project = Annotated[str, typer.Option(help="Pulumi project of the stacks. For a static fleet, it is in Pulumi.yaml.")]
StackName = Annotated[
    str, typer.Argument(metavar="STACK", help="Name of the stack, as `herdsman state list` shows it.")
]


@app.command("list")
def list_(
    state: State = None,
    passphrase_file: PassphraseFile = None,
    output: Output = OutputFormat.TABLE,
    project: Project = naming.PROJECT,
) -> None:
    """List the stacks: one for each namespace, several for a large one."""
    from automation.state.checking import rows

    with opened(settings_of(state, passphrase_file), project=project) as backend:
        found = rows(backend, names_of(backend))
    if output is OutputFormat.JSON:
        print_json([asdict(row) for row in found])
    elif not found:
        complain("no stacks here yet", hint="a loop creates a stack at the first change in a namespace")
    else:
        columns = ("STACK", "RESOURCES", "WRITTEN", "KEY", "LOCKED BY", "SINCE", "PROBLEM")
        cells = [
            (r.name, str(r.resources), r.written[:19], r.key, r.locked_by, r.locked_since, r.problem.partition("\n")[0])
            for r in found
        ]
        print_table(columns, cells)


@app.command()
def doctor(
    state: State = None,
    passphrase_file: PassphraseFile = None,
    output: Output = OutputFormat.TABLE,
    project: Project = naming.PROJECT,
) -> None:
    """Check that the state can be reached, written and decrypted. Exit code 1 when a loop cannot work."""
    from automation.state.checking import check_state

    with opened(settings_of(state, passphrase_file), project=project) as backend:
        checks = check_state(backend)
    report_checks(checks, output)


@app.command()
def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="URL of the present state.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="URL of the new state.")],
    force: Force = False,
    passphrase_file: PassphraseFile = None,
    from_passphrase_file: Annotated[
        pathlib.Path | None, typer.Option(help="File with the passphrase of FROM, if it differs from that of TO.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    output: Output = OutputFormat.TABLE,
    project: Project = naming.PROJECT,
    dry_run: DryRun = False,
) -> None:
    """Copy all stacks to another backend and verify them. FROM stays as it is; the command can be repeated."""
    from automation.state.transfer import check_free, count, for_each, put, read

    there, wanted = settings_of(source, from_passphrase_file or passphrase_file), settings_of(target, passphrase_file)
    if there.state.rstrip("/") == wanted.state.rstrip("/"):
        raise typer.BadParameter("FROM and TO are the same")
    check_quiet(wanted, kubeconfig, force=force)
    if dry_run:
        with opened(there, project=project) as old:
            end_dry_run([f"copy stack {name} to {target}" for name in sorted(names_of(old))])
    with (
        opened(there, project=project) as old,
        opened(wanted, make=True, old_passphrase=passphrase_of(there), project=project) as new,
    ):
        names = names_of(old)

        def copy(name: str) -> Transfer:
            if not force:
                check_free(old, name)
            export = read(old, name)
            result = put(new, name, export, force=force)
            if count(read(old, name)) != count(export):
                return type(result)(name, "failed", message="the stack changed during the copy; run the command again")
            return result

        with progress_of(f"Moving to {new.url.shown}", len(names)) as done:
            results = for_each(names, copy, done)
        shown = old.url.shown
    print_transfers(results, output)
    if output is OutputFormat.TABLE:
        say(f"{shown[0]} is unchanged. Start the loop with the new state, and keep the old one for a while.")


@app.command()
def backup(
    file: Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="Archive to write, such as state.tar.gz.")],
    state: State = None,
    passphrase_file: PassphraseFile = None,
    output: Output = OutputFormat.TABLE,
    project: Project = naming.PROJECT,
) -> None:
    """Write all stacks into one file, with checksums and without the passphrase. The loop may run meanwhile."""
    from automation.state import archive
    from automation.state.transfer import Export, Transfer, count, for_each, read

    exports: dict[str, Export] = {}

    def copy(name: str) -> Transfer:
        exports[name] = read(backend, name)
        return Transfer(name, "copied", count(exports[name]))

    with opened(settings_of(state, passphrase_file), project=project) as backend:
        names = names_of(backend)
        with progress_of(f"Reading {backend.url.shown}", len(names)) as done:
            results = for_each(names, copy, done)
        if all(result.result != "failed" for result in results):
            try:
                archive.write(file, exports, source=backend.url.shown)
            except OSError as error:
                fail(f"`{file}` cannot be written: {error}")
    print_transfers(results, output, nothing_done="no backup was written")
    if output is OutputFormat.TABLE:
        say(f"Wrote {file}. The passphrase is not in it: store it elsewhere.")


@app.command()
def restore(
    file: Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="An archive of `herdsman state backup`.")],
    state: State = None,
    force: Force = False,
    passphrase_file: PassphraseFile = None,
    kubeconfig: Kubeconfig = None,
    output: Output = OutputFormat.TABLE,
    project: Project = naming.PROJECT,
    dry_run: DryRun = False,
) -> None:
    """Restore the stacks of a backup and verify them. The whole file is checked before anything is written."""
    from automation.state import archive
    from automation.state.transfer import check_free, for_each, put

    try:
        exports = archive.read(file)
    except archive.ArchiveBroken as error:
        fail(str(error), hint="nothing was restored")
    settings = settings_of(state, passphrase_file)
    check_quiet(settings, kubeconfig, force=force)
    if dry_run:
        end_dry_run([f"restore stack {name}" for name in sorted(exports)])
    with opened(settings, make=True, project=project) as backend:
        there = names_of(backend)

        def replace(name: str) -> Transfer:
            if name in there and not force:
                check_free(backend, name)
            return put(backend, name, exports[name], force=force)

        with progress_of(f"Restoring to {backend.url.shown}", len(exports)) as done:
            results = for_each(exports, replace, done)
    print_transfers(results, output)


@app.command()
def unlock(
    stack: StackName,
    state: State = None,
    passphrase_file: PassphraseFile = None,
    yes: Yes = False,
    project: Project = naming.PROJECT,
    dry_run: DryRun = False,
) -> None:
    """Release a lock that a dead process left on a stack. Shows its holder, and asks."""
    from automation.engine.port import EngineFailed, Stack
    from automation.engine.stack_cli import Run

    with opened(settings_of(state, passphrase_file), project=project) as backend:
        try:
            holder = backend.states.holder(Stack(stack), Run(60.0))
            if holder is None:
                say(f"{stack} is not locked")
                return
            by, since = holder
            if dry_run:
                end_dry_run([f"release the lock of {by} since {since} on stack {stack}"])
            confirm(f"{stack} is locked by {by} since {since}. Has that process ended?", yes=yes)
            backend.states.unlock(Stack(stack), Run(60.0))
        except EngineFailed as error:
            fail(str(error))
    say(f"Released the lock of {by}; a loop continues within 30 s")


@app.command()
def repair(
    stack: StackName,
    state: State = None,
    passphrase_file: PassphraseFile = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Make an unreadable stack again. Objects stay: the next change of each service adopts them."""
    from automation.engine.port import EngineFailed, Stack, StateUnreadable
    from automation.engine.stack_cli import Run

    with opened(settings_of(state, passphrase_file)) as backend:
        try:
            try:
                export = backend.states.export(Stack(stack), Run(60.0))
            except StateUnreadable as error:
                if dry_run:
                    end_dry_run([f"start stack {stack} with an empty state, and keep a copy of the unreadable one"])
                confirm(
                    f"{error.message}\nStart {stack} with an empty state? A copy of the unreadable state is kept.",
                    yes=yes,
                )
                backend.states.rebuild(Stack(stack), Run(60.0))
            else:
                fail(f"there is no stack `{stack}`" if export is None else f"{stack} is readable; nothing was changed")
        except EngineFailed as error:
            fail(str(error))
    say(f"{stack} is empty now; the loop adopts the objects of each service at its next change")


@app.command()
def rekey(
    state: State = None,
    passphrase_file: PassphraseFile = None,
    old_passphrase_file: Annotated[
        pathlib.Path | None, typer.Option(help="File with the present passphrase of the stacks.")
    ] = None,
    force: Force = False,
    kubeconfig: Kubeconfig = None,
    output: Output = OutputFormat.TABLE,
    dry_run: DryRun = False,
) -> None:
    """Encrypt all stacks with the given passphrase. Without the old passphrase, only stacks without secrets."""
    from automation.engine.port import Stack
    from automation.engine.stack_cli import Run
    from automation.engine.stack_states import opens, resealed
    from automation.state.transfer import PATIENCE_S, Transfer, check_free, count, for_each, read

    settings = settings_of(state, passphrase_file)
    check_quiet(settings, kubeconfig, force=force)
    old = read_old_passphrase(old_passphrase_file) if old_passphrase_file else None
    with opened(settings, old_passphrase=old) as backend:
        if dry_run:
            exports = {name: read(backend, name) for name in sorted(names_of(backend))}
            sealed = [name for name, export in exports.items() if not opens(export, backend.keeper)]
            end_dry_run([f"encrypt stack {name} with the given passphrase" for name in sealed])

        def seal(name: str) -> Transfer:
            check_free(backend, name)
            export = read(backend, name)
            if opens(export, backend.keeper):
                return Transfer(name, "same", count(export))
            backend.states.replace(Stack(name), resealed(export, backend.keeper), Run(PATIENCE_S))
            return Transfer(name, "copied", count(export))

        names = names_of(backend)
        with progress_of("Sealing", len(names)) as done:
            results = for_each(names, seal, done)
    print_transfers(results, output)


@app.command()
def prune(
    state: State = None,
    passphrase_file: PassphraseFile = None,
    force: Force = False,
    kubeconfig: Kubeconfig = None,
    output: Output = OutputFormat.TABLE,
    dry_run: DryRun = False,
) -> None:
    """Delete Pulumi's history of all runs, which takes two files for each in a bucket or table. States stay."""
    from automation.engine.port import Stack
    from automation.engine.stack_cli import Run
    from automation.state.transfer import PATIENCE_S, check_free, for_each, put, read

    settings = settings_of(state, passphrase_file)
    check_quiet(settings, kubeconfig, force=force)
    with opened(settings) as backend:
        if dry_run:
            end_dry_run([f"delete the history of stack {name}" for name in sorted(names_of(backend))])

        def renew(name: str) -> Transfer:
            check_free(backend, name)
            export = read(backend, name)
            # If the process is killed between the two steps, the state is lost; like an unreadable one, it is made
            # again from the live objects.
            backend.states.remove(Stack(name), Run(PATIENCE_S))
            return put(backend, name, export, force=True)

        names = names_of(backend)
        with progress_of("Pruning", len(names)) as done:
            results = for_each(names, renew, done)
    print_transfers(results, output)
