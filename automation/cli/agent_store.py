"""`herdsman agent store`: the models on this host's disk, their users, and which can be removed.

Works on the store's directory, with or without a running agent: the agent's state file names the models of its plans,
and locks of downloads are respected.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from agent.server.models.store_space import StoredModel, StoreSpace, named_by, stored_models
from agent.server.store import STATE_FILE, StateFile
from agent.sources.errors import FileError
from automation.cli.agent_options import default_store
from automation.cli.output import OutputFormat, complain, duration_text, print_json, print_table, say, size_text

app = typer.Typer(no_args_is_help=True)

StoreOption = Annotated[
    Path | None, typer.Option("--store", help="Directory of the agent's models.", show_default=False)
]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")]


@app.callback()
def store() -> None:
    """Show the models on this host's disk, and remove unused ones."""


@app.command("list")
def list_(directory: StoreOption = None, output: Output = OutputFormat.TABLE) -> None:
    """List the models in the store, the longest unused first."""
    root = _root(directory)
    try:
        models, named = stored_models(root), _named(root)
        usage = StoreSpace(root, lambda: named).usage()
    except FileError as error:
        _fail(error)
    now = time.time()
    if output is OutputFormat.JSON:
        print_json([_row(model, named, now) for model in models])
        return
    if models:
        print_table(
            ("KEY", "SIZE", "FILES", "LAST USED", "NEEDED"), [_cells(_row(model, named, now)) for model in models]
        )
    say(f"{size_text(usage.used_bytes)} in models, {size_text(usage.free_bytes)} free on the disk of {root}")


@app.command("prune")
def prune(
    directory: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove the models. Without it, only list them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the models, which is the default.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove every model that no plan of this host names, and downloads without progress for a week."""
    root = _root(directory)
    yes = yes and not dry_run
    try:
        kept = _named(root)
        chosen = [model for model in stored_models(root) if model.key not in kept]
        # Read again before each removal: the agent may have a new plan.
        gone = StoreSpace(root, lambda: _named(root)).prune() if yes else []
    except FileError as error:
        _fail(error)
    now = time.time()
    told = gone if yes else chosen
    if output is OutputFormat.JSON:
        print_json([_row(model, kept, now) for model in told])
        return
    if told:
        print_table(("KEY", "SIZE", "FILES", "LAST USED"), [_cells(_row(model, kept, now))[:4] for model in told])
    size = size_text(sum(model.size_bytes for model in told))
    say(
        f"{size} freed"
        if yes
        else f"{size} can be freed; add --yes to remove the models"
        if told
        else "nothing to remove"
    )


def _root(directory: Path | None) -> Path:
    root = (directory or default_store()).expanduser().absolute()
    if not root.is_dir():
        complain(f"{root} is not a store", hint="name the agent's store with --store")
        raise typer.Exit(1)
    return root


def _named(root: Path) -> frozenset[str]:
    """Return the models that the agent's state file names.

    Ends the command when it cannot be read: nothing may be removed then.
    """
    try:
        state = StateFile.model_validate_json((root / STATE_FILE).read_bytes())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValidationError) as error:
        complain(f"the agent's state in {root / STATE_FILE} cannot be read: {error}")
        raise typer.Exit(1) from None
    return named_by(state.processes.values(), root)


def _row(model: StoredModel, named: frozenset[str], now: float) -> dict[str, object]:
    return {
        "key": model.key,
        "sizeBytes": model.size_bytes,
        "files": list(model.files),
        "unfinished": len(model.partial),
        "unusedForSeconds": round(max(0.0, now - model.used_at)),
        "needed": model.key in named,
        "ours": model.ours,
    }


def _cells(row: dict[str, object]) -> list[str]:
    files, unfinished = row["files"], int(str(row["unfinished"]))
    assert isinstance(files, list)
    shown = [*files[:2], *([f"and {len(files) - 2} more"] if len(files) > 2 else [])]
    shown += [f"{unfinished} unfinished"] if unfinished else []
    return [
        str(row["key"]),
        size_text(int(str(row["sizeBytes"]))),
        ", ".join(shown),
        duration_text(float(str(row["unusedForSeconds"]))),
        "yes" if row["needed"] else "",
    ]


def _fail(error: FileError) -> NoReturn:
    complain(error.message)
    raise typer.Exit(1)
