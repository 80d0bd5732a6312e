"""What `herdsman install` and `uninstall` share: the way to the cluster, how changes are shown, how errors are told."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import typer

from automation.cli.output import OutputFormat, complain, print_json, print_table, say
from automation.engine.port import Change, EngineFailed
from automation.install.comparison import Compared
from automation.install.installer import Comparison, Installer, InstallRefused, TakeOverNeeded
from automation.settings import default_state
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from tools.toolchain import ToolMissing

MOST_FIELDS = 6
_DONE = {"create": "created", "update": "changed", "replace": "replaced", "delete": "deleted"}


@dataclass(frozen=True)
class Connected:
    """A cluster, and who installs into it."""

    client: KubeClient
    installer: Installer


def connected(kubeconfig: str | None) -> Connected:
    """Connect. The engine's state is on this machine, beside the loop's own."""
    client = KubeClient.default(kubeconfig)
    return Connected(
        client, Installer(client, pathlib.Path(default_state().removeprefix("file://")).parent / "install")
    )


@contextlib.contextmanager
def errors_told() -> Iterator[None]:
    """Say what went wrong and what to do, and end with exit code 1."""
    try:
        yield
    except TakeOverNeeded as error:
        complain(str(error), hint="`--preview` shows what; `--take-over` changes them all the same")
    except InstallRefused as error:
        complain(str(error))
    except ToolMissing as error:
        complain(str(error), hint=error.remedy)
    except (KubeError, EngineFailed) as error:
        complain(str(error), hint="`herdsman doctor` looks at the cluster and at what you may do there")
    else:
        return
    raise typer.Exit(1)


def show_comparison(comparison: Comparison, output: OutputFormat) -> None:
    """Say what would change, field by field, and whose it is where it is not ours."""
    if output is OutputFormat.JSON:
        print_json([_as_json(each) for each in comparison.changed])
        return
    rows = [(_DONE[each.change.op], each.change.kind, _name(each), _detail(each)) for each in comparison.changed]
    if rows:
        print_table(("WOULD BE", "KIND", "NAME", "WHAT"), rows)
    same = len(comparison.all) - len(rows)
    say(f"{len(rows)} would change, {same} stay as they are.")
    if comparison.foreign:
        sys.stdout.flush()
        say("Somebody else's objects are changed with --take-over only.", err=True)


def _as_json(each: Compared) -> dict[str, object]:
    change = asdict(each.change)
    keys = ("op", "kind", "name", "fields", "refused")
    return {**{key: change[key] for key in keys}, "namespace": each.namespace, "holder": each.holder}


def _name(each: Compared) -> str:
    return f"{each.namespace}/{each.change.name}" if each.namespace else each.change.name


def _detail(each: Compared) -> str:
    fields = each.change.fields
    words = ", ".join(fields[:MOST_FIELDS])
    if len(fields) > MOST_FIELDS:
        words += f" and {len(fields) - MOST_FIELDS} more"
    if each.change.refused:
        words = f"refused: {each.change.refused}"
    return f"[held by {each.holder}] {words}" if each.holder else words


def show_changes(changes: Iterable[Change], output: OutputFormat) -> None:
    """Say what was done."""
    done = list(changes)
    if output is OutputFormat.JSON:
        keys = ("op", "kind", "name", "details")
        print_json([{key: value for key, value in asdict(change).items() if key in keys} for change in done])
        return
    for change in done:
        told = ", ".join(change.details[:MOST_FIELDS])
        say(f"{_DONE[change.op]} {change.kind} {change.name}" + (f": {told}" if told else ""))
    if not done:
        say("Everything is as it should be; nothing was changed.")
