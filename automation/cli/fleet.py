"""`herdsman fleet`: move services between the loop and a static fleet; their pods keep running.

`take` writes files and releases the objects from the loop; then `pulumi up` imports them. `give` applies the files, the
loop adopts the objects, and the stack drops them from its state. `automation.adoption.moving` does the work. Exit
codes: 0 done, or possible (`--dry-run`); 1 nothing was done, or a step failed; the message says which.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
import yaml

from automation.cli.dry_run import OlderPreview
from automation.cli.output import complain, say
from automation.cli.service_lookup import VERSIONED_HELP, find_versioned, split_or_end
from kubeapi.json_types import Json

if TYPE_CHECKING:
    from automation.adoption.moving.move import Move
    from components.options import RenderOptions
    from kubeapi.client import KubeClient
    from program.desired.keys import ServiceKey
    from program.manifests import Document, Manifests

app = typer.Typer(no_args_is_help=True)
PULUMI_TIMEOUT_S = 300.0

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help=f"Services and resources. {VERSIONED_HELP}")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the services.")]
Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what the command would do, and which pods would restart.")
]


@app.command()
def take(
    names: Names,
    into: Annotated[
        Path,
        typer.Option(
            "--into", help="File to write. It may exist only if an earlier attempt of the same command wrote it."
        ),
    ],
    namespace: Namespace = None,
    dry_run: DryRun = False,
    preview: OlderPreview = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Move services from the loop to a static fleet: write them into a file, and release them from the loop.

    Afterwards name the file in the stack's config; `pulumi up` then adopts the objects.
    """
    from automation.adoption.moving.acting import release_to_fleet
    from automation.adoption.moving.planning import plan_take

    dry_run = dry_run or preview
    client, options = _client(kubeconfig), _options()
    crs = [_or_end(find_versioned, client, namespace, name) for name in dict.fromkeys(names)]
    moves = [_or_end(plan_take, client, cr, options=options) for cr in crs]
    _report(moves, "The loop releases {name}: {objects} stay unchanged", "The fleet takes over {name}: {objects}")
    documents = _without_repeats(document for move in moves for document in move.documents)
    text = yaml.safe_dump_all(documents, sort_keys=False, width=120, allow_unicode=True)
    if into.exists() and into.read_text() != text:
        complain(f"{into} exists already with other content; nothing was changed")
        raise typer.Exit(1)
    say(f"{'Would write' if dry_run else 'Wrote'} {into}; the stack's config needs:\n")
    say(yaml.safe_dump(_config(moves, into, options), sort_keys=False))
    if dry_run:
        return
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(text)
    for cr, move in zip(crs, moves, strict=True):
        _or_end(release_to_fleet, client, cr, move)
        done = f"Marked {move.name} for the fleet" if move.is_resource else f"The loop no longer manages {move.name}"
        say(f"{done}; adopt it with `pulumi up`")


@app.command()
def give(
    names: Names,
    files: Annotated[
        list[str], typer.Option("--filename", "-f", help="File, folder or pattern with the manifests of the services.")
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of documents that name none.")
    ] = "default",
    stack: Annotated[
        str,
        typer.Option(
            "--stack",
            help="Stack to remove the services from. Without this option, the command that removes them is printed.",
        ),
    ] = "",
    cwd: Annotated[Path, typer.Option("--cwd", help="Folder of the stack's Pulumi.yaml.")] = Path(),
    dry_run: DryRun = False,
    preview: OlderPreview = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Move services from a static fleet to the loop: apply them, wait for the loop, update the stack.

    Afterwards remove their documents from the fleet's files: a `pulumi up` that still includes them is refused.
    """
    from automation.adoption.moving.acting import give_to_loop
    from automation.adoption.moving.planning import plan_give
    from program.manifests import Manifests

    manifests = Manifests(namespace)
    for each in files:
        manifests.read(each)
    services = _find_documents(manifests, names)
    dry_run = dry_run or preview
    client, options = _client(kubeconfig), _options()
    moves = [_or_end(plan_give, client, document, manifests, options=options) for document in services]
    _report(moves, "The loop adopts {name}: {objects} stay unchanged", "The fleet leaves {name}: {objects} stays")
    deployment = _exported(stack, cwd) if stack else None
    urns = [urn for move in moves for urn in _or_end(_urns, move.key, deployment)]
    if dry_run:
        for urn in urns:
            say(f"Stack {stack} would forget {urn}")
        return
    for move in moves:
        _or_end(give_to_loop, client, move)
        say(f"{move.name} belongs to no fleet now" if move.is_resource else f"The loop manages {move.name} now")
    if urns:
        _pulumi("state", "delete", "--yes", "--force", "--target-dependents", "--stack", stack, *urns, cwd=cwd)
        say(f"Stack {stack} has forgotten {len(urns)} resources; remove the documents of the services from its files")
    elif not stack:
        names_given = shlex.join(names)
        say(f"Remove them from the stack too: `herdsman fleet forget {names_given} -n {namespace} --stack STACK`")


@app.command()
def forget(
    names: Names,
    stack: Annotated[str, typer.Option("--stack", help="Stack to remove the services from.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the services.")] = "default",
    cwd: Annotated[Path, typer.Option("--cwd", help="Folder of the stack's Pulumi.yaml.")] = Path(),
    dry_run: DryRun = False,
    preview: OlderPreview = False,
) -> None:
    """Remove services from a stack's state. Nothing in the cluster changes."""
    dry_run = dry_run or preview
    deployment = _exported(stack, cwd)
    urns = [urn for name in dict.fromkeys(names) for urn in _urns_by_name(name, namespace, deployment)]
    for urn in urns:
        say(f"{'Would forget' if dry_run else 'Forgetting'} {urn}")
    if urns and not dry_run:
        _pulumi("state", "delete", "--yes", "--force", "--target-dependents", "--stack", stack, *urns, cwd=cwd)


def _find_documents(manifests: Manifests, names: list[str]) -> list[Document]:
    """Find services among a fleet's files. Ends the command with all problems when there are any."""
    from program.dialects.registry import KINDS, REFERRERS, kind_text, qualified, referrer_of, split_referrer

    found: dict[str, Document] = {}
    problems = list(manifests.errors)
    resources = manifests.take_referrers()
    for given in names:
        if (split := split_referrer(given)) is not None:
            chosen = [each for each in resources if (referrer_of(each.cr), each.name) == split]
            found |= {str(document): document for document in chosen}
            problems += [] if chosen else [f"{REFERRERS[split[0]].kind} `{split[1]}` is not in the files"]
            continue
        dialect, name = split_or_end(given)
        meant = {
            each: document
            for each in ([dialect] if dialect else KINDS)
            for document in manifests.services_of(each)
            if document.name == name
        }
        if not meant:
            problems.append(f"{kind_text(dialect) if dialect else 'service'} `{name}` is not in the files")
        elif len(meant) > 1:
            problems.append(f"`{name}` means several services: write {' or '.join(qualified(d, name) for d in meant)}")
        for document in meant.values():
            found[str(document)] = document
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(1)
    return list(found.values())


def _urns_by_name(given: str, namespace: str, deployment: Json) -> list[str]:
    """Find the URNs of a service in a stack by `NAME` or `KIND/NAME`; none for a service that the stack lacks."""
    from program.desired.keys import ServiceKey
    from program.dialects.registry import KINDS, qualified, split_referrer

    if (split := split_referrer(given)) is not None:
        return list(_or_end(_urns, ServiceKey(split[0], namespace, split[1]), deployment))
    dialect, name = split_or_end(given)
    keys = [ServiceKey(each, namespace, name) for each in ([dialect] if dialect else KINDS)]
    known = {key: urns for key in keys if (urns := _or_end(_urns, key, deployment))}
    if len(known) > 1:
        _end(f"`{name}` means several services: write {' or '.join(qualified(key.dialect, name) for key in known)}")
    return [urn for urns in known.values() for urn in urns]


def _client(kubeconfig: str | None) -> KubeClient:
    from kubeapi.client import KubeClient
    from kubeapi.errors import KubeError

    try:
        return KubeClient.default(kubeconfig)
    except KubeError as error:
        _end(str(error))


def _options() -> RenderOptions:
    """Return the loop's rendering options, by the operator's settings in this environment."""
    from automation.settings import Settings
    from automation.startup.options import render_options

    return render_options(Settings())


def _or_end(act: Any, *arguments: Any, **named: Any) -> Any:
    """Call a function. Ends the command with the message of an error that the user can correct."""
    from automation.adoption.moving.move import MoveFailed
    from kubeapi.errors import KubeError
    from program.desired.errors import DesiredError

    try:
        return act(*arguments, **named)
    except (MoveFailed, KubeError, DesiredError) as error:
        _end(str(error))


def _report(moves: list[Move], words: str, of_resources: str) -> None:
    """Print what would change: `words` for each service, `of_resources` for each resource.

    Ends the command with all problems when there are any.
    """
    for move in moves:
        objects = ", ".join(f"{obj['kind']} {obj['metadata']['name']}" for obj in move.objects)
        if not move.problems:
            said = of_resources if move.is_resource else words
            say(said.format(name=move.name, objects=objects))
        for note in move.notes:
            say(f"  {note}")
    problems = [f"{move.name}: {problem}" for move in moves for problem in move.problems]
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(1)


def _without_repeats(documents: Iterable[Json]) -> list[Json]:
    """Return each document once; the objects that services refer to come before the services."""
    from program.dialects.registry import dialect_of

    found: dict[tuple[str, str, str], Json] = {}
    for each in documents:
        metadata = each["metadata"]
        found.setdefault((each["kind"], metadata.get("namespace", ""), metadata["name"]), each)
    return sorted(found.values(), key=lambda each: bool(dialect_of(each)))


def _config(moves: list[Move], into: Path, options: RenderOptions) -> Json:
    """Return the config with which a stack renders the same."""
    from pydantic.alias_generators import to_camel

    from components.options import RenderOptions
    from program.dialects.registry import LLMKUBE

    namespaces = sorted({move.key.namespace for move in moves})
    config: Json = {"herdsman:manifests": [str(into)], "herdsman:namespace": namespaces[0]}
    extensions = sorted(set().union(*(move.extensions for move in moves)))
    # Without this key a service of another dialect gets all objects that it requests, also of kinds that this cluster
    # lacks.
    if extensions or any(move.key.dialect != LLMKUBE and not move.is_resource for move in moves):
        config["herdsman:extensions"] = extensions
    standard = RenderOptions()
    if changed := {
        to_camel(name): value
        for name in RenderOptions.model_fields
        if name != "installed" and (value := getattr(options, name)) != getattr(standard, name)
    }:
        config["herdsman:options"] = changed
    return {"config": config}


def _urns(key: ServiceKey, deployment: Json | None) -> list[str]:
    from automation.adoption.moving.acting import urns_of

    return urns_of(key, deployment) if deployment is not None else []


def _exported(stack: str, cwd: Path) -> Json:
    exported: Json = json.loads(_pulumi("stack", "export", "--stack", stack, cwd=cwd))
    return exported.get("deployment") or {}


def _pulumi(*arguments: str, cwd: Path) -> str:
    """Run the user's Pulumi, which has the stack's backend and secrets, and return its output."""
    from tools import toolchain

    try:
        command = [str(toolchain.locate("pulumi")), "--non-interactive", "--color=never", *arguments]
        environment = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"}
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PULUMI_TIMEOUT_S, check=False
        )
    except (toolchain.ToolMissing, OSError, subprocess.TimeoutExpired) as error:
        _end(f"cannot run `pulumi {arguments[0]} {arguments[1]}`: {error}")
    if done.returncode != 0:
        _end(f"`pulumi {arguments[0]} {arguments[1]}` failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def _end(message: str) -> NoReturn:
    complain(message)
    raise typer.Exit(1)
