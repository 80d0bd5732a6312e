"""`herdsman fleet`: move services between the loop and a static fleet; what runs is not touched.

`take` writes files and has the loop let go, then `pulumi up` adopts what stands there. `give` applies what is in the
files, the loop adopts, and the stack forgets. The work is done in `automation.moving`.
Exit codes: 0 done, or could be done (`--preview`); 1 nothing was done, or a step failed; the message says which.
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

from automation.cli.finding import find_service
from automation.cli.output import complain

if TYPE_CHECKING:
    from automation.moving import Move
    from components.options import RenderOptions
    from kubeapi.client import KubeClient

Object = dict[str, Any]
app = typer.Typer(no_args_is_help=True)
PULUMI_TIMEOUT_S = 300.0

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="InferenceServices.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Their namespace.")]
Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig.")]
Preview = Annotated[
    bool, typer.Option("--preview", help="Only say what would be done, and whether pods would restart.")
]


@app.command()
def take(
    names: Names,
    into: Annotated[Path, typer.Option("--into", help="File to write: new, or one that an earlier try has written.")],
    namespace: Namespace = None,
    preview: Preview = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """From the loop to a static fleet: write the services into a file, and have the loop let go of them.

    Afterwards name the file in the stack's config, and `pulumi up` adopts what stands there.
    """
    from automation.moving import plan_take
    from automation.moving import take as let_go

    client, options = _client(kubeconfig), _options()
    crs = [_movable(find_service(client, namespace, name)) for name in dict.fromkeys(names)]
    moves = [_asking(plan_take, client, cr, options=options) for cr in crs]
    _tell(moves, "The loop lets go of {name}: {objects} stay as they are")
    documents = _once(document for move in moves for document in move.documents)
    text = yaml.safe_dump_all(documents, sort_keys=False, width=120, allow_unicode=True)
    if into.exists() and into.read_text() != text:
        complain(f"{into} exists already and says something else; nothing was done")
        raise typer.Exit(1)
    typer.echo(f"{'Would write' if preview else 'Wrote'} {into}; the stack's config needs:\n")
    typer.echo(yaml.safe_dump(_config(moves, into, options), sort_keys=False))
    if preview:
        return
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(text)
    for cr, move in zip(crs, moves, strict=True):
        _asking(let_go, client, cr, move)
        typer.echo(f"{move.name} belongs to nobody now; `pulumi up` adopts it")


@app.command()
def give(
    names: Names,
    files: Annotated[list[str], typer.Option("--filename", "-f", help="File, folder or pattern with their manifests.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="For documents that name none.")] = "default",
    stack: Annotated[
        str, typer.Option("--stack", help="Have this stack forget them; else the command is printed.")
    ] = "",
    cwd: Annotated[Path, typer.Option("--cwd", help="Folder of the stack's Pulumi.yaml.")] = Path(),
    preview: Preview = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """From a static fleet to the loop: apply the services, wait until the loop has adopted them, have the stack forget.

    Afterwards take their documents out of the fleet's files: a `pulumi up` that still means them is refused.
    """
    from automation.moving import give as hand_over
    from automation.moving import plan_give
    from program.manifests import Manifests

    manifests = Manifests(namespace)
    for each in files:
        manifests.read(each)
    services = {d.name: d for d in manifests.documents if d.cr["kind"] == "InferenceService" and d.name in names}
    others = {d.name: d for dialect in manifests.dialects for d in manifests.services_of(dialect)}
    problems = [
        *manifests.errors,
        *(
            f"{others[name]} cannot move while it runs: only InferenceServices can"
            if name in others
            else f"InferenceService `{name}` is not in the files"
            for name in names
            if name not in services
        ),
    ]
    if problems:
        for problem in problems:
            complain(problem)
        raise typer.Exit(1)
    client, options = _client(kubeconfig), _options()
    moves = []
    for document in services.values():
        models = {
            d.name: d.cr for d in manifests.documents if d.cr["kind"] == "Model" and d.namespace == document.namespace
        }
        moves.append(_asking(plan_give, client, document.cr, models, options=options))
    _tell(moves, "The loop adopts {name}: {objects} stay as they are")
    deployment = _exported(stack, cwd) if stack else None
    urns = [urn for move in moves for urn in _asking(_urns, move, deployment)]
    if preview:
        for urn in urns:
            typer.echo(f"Stack {stack} would forget {urn}")
        return
    for move in moves:
        _asking(hand_over, client, move)
        typer.echo(f"{move.name} is the loop's now")
    if urns:
        _pulumi("state", "delete", "--yes", "--force", "--target-dependents", "--stack", stack, *urns, cwd=cwd)
        typer.echo(f"Stack {stack} has forgotten {len(urns)} resources; take the documents out of its files")
    elif not stack:
        names_given = shlex.join(names)
        typer.echo(f"The stack knows them still: `herdsman fleet forget {names_given} -n {namespace} --stack STACK`")


@app.command()
def forget(
    names: Names,
    stack: Annotated[str, typer.Option("--stack", help="The stack that is to forget them.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Their namespace.")] = "default",
    cwd: Annotated[Path, typer.Option("--cwd", help="Folder of the stack's Pulumi.yaml.")] = Path(),
    preview: Preview = False,
) -> None:
    """Take services out of a stack's state; nothing in the cluster changes."""
    from automation.moving import Move
    from program.desired.keys import ServiceKey

    deployment = _exported(stack, cwd)
    urns = [urn for name in names for urn in _asking(_urns, Move(ServiceKey("llmkube", namespace, name)), deployment)]
    for urn in urns:
        typer.echo(f"{'Would forget' if preview else 'Forgets'} {urn}")
    if urns and not preview:
        _pulumi("state", "delete", "--yes", "--force", "--target-dependents", "--stack", stack, *urns, cwd=cwd)


def _movable(cr: Object) -> Object:
    """Give a service back that can move. Those of other dialects can be in a fleet, but not go from hand to hand."""
    from automation.service_kinds import LLMKUBE, dialect_of_cr, kind_text

    dialect = dialect_of_cr(cr)
    if dialect != LLMKUBE:
        _end(
            f"{kind_text(dialect)} `{cr['metadata']['name']}` cannot move while it runs: only InferenceServices can. "
            "Delete it, keeping its YAML, and name that in the stack's config"
        )
    return cr


def _client(kubeconfig: str | None) -> KubeClient:
    from kubeapi.client import KubeClient
    from kubeapi.errors import KubeError

    try:
        return KubeClient.default(kubeconfig)
    except KubeError as error:
        _end(str(error))


def _options() -> RenderOptions:
    """What the loop renders with: the operator's settings, where this environment has them."""
    from automation.settings import Settings
    from automation.settings_for import render_options

    return render_options(Settings())


def _asking(act: Any, *arguments: Any, **named: Any) -> Any:
    """Call what may fail for reasons that the user can do something about."""
    from automation.moving import MoveFailed
    from kubeapi.errors import KubeError
    from program.desired.errors import DesiredError

    try:
        return act(*arguments, **named)
    except (MoveFailed, KubeError, DesiredError) as error:
        _end(str(error))


def _tell(moves: list[Move], words: str) -> None:
    """Say what would be done. Ends the command when anything stands in the way."""
    for move in moves:
        objects = ", ".join(f"{obj['kind']} {obj['metadata']['name']}" for obj in move.objects)
        if not move.problems:
            typer.echo(words.format(name=move.name, objects=objects))
        for note in move.notes:
            typer.echo(f"  {note}")
    problems = [f"{move.name}: {problem}" for move in moves for problem in move.problems]
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(1)


def _once(documents: Iterable[Object]) -> list[Object]:
    found: dict[tuple[str, str, str], Object] = {}
    for each in documents:
        found.setdefault((each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]), each)
    return sorted(found.values(), key=lambda each: each["kind"] != "Model")


def _config(moves: list[Move], into: Path, options: RenderOptions) -> Object:
    """Say what a stack must be told to render the same."""
    from pydantic.alias_generators import to_camel

    from components.options import RenderOptions

    namespaces = sorted({move.key.namespace for move in moves})
    config: Object = {"herdsman:manifests": [str(into)], "herdsman:namespace": namespaces[0]}
    if extensions := sorted(set().union(*(move.extensions for move in moves))):
        config["herdsman:extensions"] = extensions
    standard = RenderOptions()
    if said := {
        to_camel(name): value
        for name in RenderOptions.model_fields
        if name != "installed" and (value := getattr(options, name)) != getattr(standard, name)
    }:
        config["herdsman:options"] = said
    return {"config": config}


def _urns(move: Move, deployment: Object | None) -> list[str]:
    from automation.moving import urns_of

    return urns_of(move, deployment) if deployment is not None else []


def _exported(stack: str, cwd: Path) -> Object:
    exported: Object = json.loads(_pulumi("stack", "export", "--stack", stack, cwd=cwd))
    return exported.get("deployment") or {}


def _pulumi(*arguments: str, cwd: Path) -> str:
    """Run the user's Pulumi, which knows the stack's backend and secrets."""
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
