"""`herdsman rollback NAME`: write an earlier version of a service back into its custom resource, after a preview.

Writes only the custom resource (and, on request, its Models). The loop applies it like any other edit, and records a
new revision.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from automation.cache.service_index import models_of as named_models
from automation.cli.dry_run import DryRun, OlderPreview
from automation.cli.output import OutputFormat, complain, print_json, say, say_painted
from automation.cli.place_options import Context
from automation.cli.service_lookup import VERSIONED_HELP, find_versioned
from automation.history.reading import models_of, revisions_of
from automation.history.revision import (
    NothingToRestore,
    Revision,
    changed_models,
    choose_revision,
    data_of,
    reference_of,
    restore,
)
from automation.preview.report import name_text
from components.rendered import fingerprint_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeError
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.registry import INPUT_KINDS, LLMKUBE, dialect_of, key_of, kind_of, referrer_of

FIELD_MANAGER = "herdsman-rollback"
TRIES = 10


@dataclass(frozen=True)
class _Plan:
    """The objects that a rollback would write."""

    revision: Revision
    service: Json
    models: tuple[Json, ...] = ()
    notes: tuple[str, ...] = ()


def rollback(
    name: Annotated[str, typer.Argument(help=VERSIONED_HELP)],
    to: Annotated[
        int | None,
        typer.Option(
            "--to", help="Revision to write. The default is the last applied one that differs from the current spec."
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the service, if several namespaces have the name."),
    ] = None,
    with_models: Annotated[
        bool,
        typer.Option(
            "--with-models",
            help="Also restore the objects that the service refers to, such as Models, to their "
            "specs of that revision.",
        ),
    ] = False,
    dry_run: DryRun = False,
    preview: OlderPreview = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table (text) or json.")] = OutputFormat.TABLE,
) -> None:
    """Write the spec of an earlier revision back, after a preview. Exit code 2: --dry-run found changes."""
    dry_run = dry_run or preview
    try:
        client = KubeClient.default(kubeconfig, context=context)
        service = find_versioned(client, namespace, name)
        models = models_of(client, service)
        plan = _plan(client, service, models, to=to, with_models=with_models)
        shown = _preview(client, plan, service)
        as_terminal_text = output is OutputFormat.TABLE
        if as_terminal_text:
            _tell(plan, shown)
        if not dry_run and not _agreed(yes=yes, revision=plan.revision):
            raise typer.Exit(1)
        if not dry_run:
            _write(client, plan, [service, *models])
    except NothingToRestore as nothing:
        complain(str(nothing))
        raise typer.Exit(1) from None
    except Conflict:
        complain(f"`{name}` was edited during the command; nothing else was written", hint="run the command again")
        raise typer.Exit(1) from None
    except (KubeError, ValueError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if not as_terminal_text:
        from automation.preview.report import as_json

        print_json({"revision": plan.revision.number, "written": not dry_run, "preview": as_json(shown)})
    elif not dry_run:
        namespace = service["metadata"]["namespace"]
        command = f"kubectl get {name} -n {namespace}" if referrer_of(service) else f"herdsman get {name}"
        say(f"Wrote revision {plan.revision.number}; `{command}` shows the progress")
    if dry_run and shown.changed:
        raise typer.Exit(2)


def _plan(client: KubeClient, service: Json, models: list[Json], *, to: int | None, with_models: bool) -> _Plan:
    """Find out which objects to write. Raises NothingToRestore and KubeError."""
    revision = choose_revision(revisions_of(client, service), service, models, to)
    others = changed_models(revision, models)
    notes = [
        f"{_referred(name)} existed at that revision and was deleted since"
        for name, spec in others.items()
        if spec is None
    ]
    changed = {name: spec for name, spec in others.items() if spec is not None}
    if changed and not with_models:
        names = ", ".join(map(_referred, changed))
        notes.append(f"{names} had another spec at that revision; --with-models restores it too")
    written: tuple[Json, ...] = ()
    if with_models:
        written = tuple(
            {**model, "spec": changed[reference_of(model)]} for model in models if reference_of(model) in changed
        )
        notes += _users(client, service, written)
    return _Plan(revision, restore(service, revision), written, tuple(notes))


def _referred(reference: str) -> str:
    """Format a name that `reference_of` returned."""
    kind, slash, name = reference.partition("/")
    return f"{kind} `{name}`" if slash else f"Model `{reference}`"


def _users(client: KubeClient, service: Json, written: tuple[Json, ...]) -> list[str]:
    """Return a note for each other service that a change of the referred objects affects."""
    metadata = service["metadata"]
    if dialect_of(service) != LLMKUBE:
        from automation.preview.lookup import Identity, PreviewLookup
        from automation.preview.requests import services_that_refer_to

        changed = {Identity.of(each) for each in written}
        found = services_that_refer_to(client, map, PreviewLookup(client), changed, {key_of(service)})
        return [f"{name_text(each.key)} uses a restored object too and changes with it" for each in found]
    names = {model["metadata"]["name"] for model in written}
    notes = []
    for other in client.list(kinds.INFERENCE_SERVICES, metadata["namespace"])["items"]:
        shared = named_models(other) & names
        if shared and other["metadata"]["name"] != metadata["name"]:
            notes.append(
                f"InferenceService `{other['metadata']['name']}` uses Model `{min(shared)}` too and changes with it"
            )
    return notes


def _preview(client: KubeClient, plan: _Plan, live: Json) -> Any:
    # Imported here: the renderers are needed only for a service that is affected.
    from automation.preview.changes import Preview
    from automation.preview.lookup import Identity, PreviewLookup
    from automation.preview.loop_options import previewer_of_loop
    from automation.preview.rendering import Subject

    if referrer_of(live):
        from automation.preview.custom_resources import AppliedDocument
        from automation.preview.resources import preview_resource

        look = PreviewLookup(client, applied={Identity.of(plan.service): plan.service})
        changed = plan.revision.digest != fingerprint_of(data_of(live, ()))
        return Preview(resources=(preview_resource(look, AppliedDocument(plan.service, live, changed=changed)),))
    look = PreviewLookup(client, applied={Identity.of(each): each for each in plan.models})
    with previewer_of_loop(client) as previewer:
        return Preview(previewer.preview_services([Subject(plan.service, look)]))


def _tell(plan: _Plan, shown: Any) -> None:
    from automation.preview.report import as_terminal_text

    say(f"Revision {plan.revision.number}, applied {plan.revision.recorded_at}:")
    say_painted(as_terminal_text(shown, colour=sys.stdout.isatty()))
    for note in plan.notes:
        say(f"Note: {note}", err=True)


def _agreed(*, yes: bool, revision: Revision) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        complain(
            "cannot ask for a confirmation: standard input is not a terminal",
            hint="add --yes to write without a question, or --dry-run to only look",
        )
        return False
    return typer.confirm(f"Write revision {revision.number}?")


def _write(client: KubeClient, plan: _Plan, read: list[Json]) -> None:
    """Replace the objects as they were `read`. An edit in between is a Conflict, so no edit is lost."""
    referred = {kind.kind: kind for kind in INPUT_KINDS}
    writes = [(referred[model["kind"]], model) for model in plan.models]
    originals = {each["metadata"]["uid"]: each for each in read}
    for kind, obj in (*writes, (kind_of(plan.service), plan.service)):
        _replace(client, kind, obj, originals[obj["metadata"]["uid"]])


def _replace(client: KubeClient, kind: Kind, obj: Json, original: Json) -> None:
    """Write an object. A status update of the loop makes a new version as well; then the write is repeated."""
    metadata = obj["metadata"]
    place = (metadata.get("namespace"), metadata["name"])
    for _ in range(TRIES):
        try:
            client.request(
                "PUT",
                kind.path(*place),
                query={"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"},
                body={**obj, "metadata": metadata},
            )
            return
        except Conflict:
            now = client.get(kind, *place)
            if _written_by_people(now) != _written_by_people(original):
                raise
            metadata = {**metadata, "resourceVersion": now["metadata"]["resourceVersion"]}
    raise Conflict(409, "Conflict", "the object changed at each attempt to write it")


def _written_by_people(obj: Json) -> Json:
    """Return an object without its status and without what the API server writes."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("managedFields", "resourceVersion")}
    left_out = ("apiVersion", "kind", "status")  # the items of a list have no kind
    return {**{key: value for key, value in obj.items() if key not in left_out}, "metadata": metadata}
