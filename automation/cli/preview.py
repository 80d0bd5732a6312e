"""`herdsman preview`: the effects of a change, or of the loop's next pass, before anything is changed.

Modules are imported when they are needed, so that the preview of one change starts fast.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from automation.cli.manifest_files import FILES, read_manifests
from automation.cli.output import complain, print_json, say, say_painted
from automation.cli.place_options import Context

if TYPE_CHECKING:
    from automation.preview.changes import Preview
    from components.policies.policy import Policies

EXIT_FAILED = 1
EXIT_CHANGED = 2
THREADS = 8
MANY = 20
"""From this number of objects on, the command shows a progress bar."""


class PreviewFormat(StrEnum):
    """The format of a printed preview."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def preview(
    files: Annotated[list[str] | None, FILES] = None,
    live: Annotated[
        list[str] | None,
        typer.Option(
            "--live",
            help="Show what the loop would do now for a service: NAME or KIND/NAME. For modelrouter/NAME, "
            "modelpool/NAME and loraadapter/NAME: the change that waits for an approval.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show what the loop would do now for all services of the namespace.")
    ] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the services, and of documents that name none.")
    ] = "default",
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="With --all: the services of all namespaces.")
    ] = False,
    output: Annotated[
        PreviewFormat, typer.Option("-o", "--output", help="text, json, or markdown for a pull request.")
    ] = PreviewFormat.TEXT,
    policies: Annotated[Path | None, typer.Option(help="Folder of policies to check.")] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
) -> None:
    """Show what would be created, changed, replaced, deleted, restarted and downloaded.

    Nothing is written or locked: the API server gets dry runs. Exit code 0: nothing would change. 2: something would.
    1: it failed, or the change would be refused.
    """
    everything = everything or all_namespaces
    if sum(map(bool, (files, live, everything))) != 1:
        raise typer.BadParameter("give one of -f FILE, --live NAME and --all")
    among = None if all_namespaces else namespace
    with _without_collector():
        from automation.preview.report import as_json, as_terminal_text, markdown
        from kubeapi.errors import KubeError

        try:
            found = _preview(files or [], live or [], among, namespace, policies, kubeconfig, context)
        except (KubeError, ValueError) as error:
            complain(str(error))
            raise typer.Exit(EXIT_FAILED) from None
    if output is PreviewFormat.JSON:
        print_json(as_json(found))
    elif output is PreviewFormat.MARKDOWN:
        say(markdown(found), nl=False)
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        say_painted(as_terminal_text(found, colour=colour))
    raise typer.Exit(exit_code(found))


def exit_code(found: Preview) -> int:
    """Return 0 when nothing would change, 2 when something would, 1 for an error or a refusal."""
    if found.refused:
        return EXIT_FAILED
    return EXIT_CHANGED if found.changed else 0


def _preview(
    files: list[str],
    names: list[str],
    among: str | None,
    namespace: str,
    policies: Path | None,
    kubeconfig: str | None,
    context: str | None,
) -> Preview:
    from automation.preview.loop_options import previewer_of_loop
    from automation.preview.requests import preview_files, preview_live
    from kubeapi.client import KubeClient

    manifests = read_manifests(files, namespace)
    with ExitStack() as stack:
        client = KubeClient.default(kubeconfig, context=context)
        stack.callback(client.close)
        rules = _policies(policies, stack)
        previewer = stack.enter_context(previewer_of_loop(client, policies=rules, threads=THREADS))
        on_progress = stack.enter_context(_progress())
        if files:
            return preview_files(client, previewer, manifests, on_progress=on_progress)
        return preview_live(client, previewer, namespace=among, names=names, on_progress=on_progress)


def _policies(folder: Path | None, stack: ExitStack) -> Policies | None:
    if folder is None:
        return None
    from components.policies.policy import PolicyUnreadable
    from components.policies.reading import load_policies

    try:
        found = load_policies(folder)
    except PolicyUnreadable as error:
        raise ValueError(str(error)) from None
    stack.callback(found.close)
    return found


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector during a preview: it takes a tenth of the time and frees almost nothing.

    A preview keeps its objects until its process ends.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on a terminal while many objects are dry-run; it disappears at the end."""
    if not sys.stderr.isatty():
        yield None
        return
    bar: Any = None
    task: Any = None

    def on_progress(done: int, total: int) -> None:
        nonlocal bar, task
        if total < MANY:
            return
        if bar is None:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bar.start()
            task = bar.add_task("Trying out", total=total)
        bar.update(task, completed=done)

    try:
        yield on_progress
    finally:
        if bar is not None:
            bar.stop()
