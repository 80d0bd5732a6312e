"""Previews of files that a user would apply, and of services as they are in the cluster.

Called by `herdsman preview`. Finds the services that are affected, and tries the files out; `previewer` previews them.
A service that is not among the files is affected where it looks up what would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from automation.preview.changes import Preview, ResourcePreview
from automation.preview.custom_resources import (
    FEW,
    AppliedDocument,
    CustomResources,
    Name,
    dry_run_documents,
    list_request,
    names_of,
    read_requests,
)
from automation.preview.live import Ask, Live
from automation.preview.lookup import Identity, PreviewLookup
from automation.preview.previewer import Previewer, Progress
from automation.preview.rendering import Subject
from automation.preview.report import name_text
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.discovery import served
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from program.dialects.registry import (
    DIALECTS,
    INPUT_KINDS,
    KINDS,
    LLMKUBE,
    REFERRER_KINDS,
    is_part_of_another,
    key_of,
    kind_text,
    qualified,
    split_name,
    split_referrer,
)
from program.manifests import Document, Manifests

SHARED_NAMESPACES = ("", "kserve", "llmaz-system")
"""Namespaces with configs and settings that concern services of all namespaces; empty for cluster-scoped kinds."""


def preview_files(
    client: KubeClient, previewer: Previewer, manifests: Manifests, *, on_progress: Progress | None = None
) -> Preview:
    """Preview `kubectl apply` of these documents. Objects that the documents leave out are not deleted.

    Raises ApiError when the API server cannot be asked.
    """
    if manifests.errors:
        manifests.note_unused()
        return Preview(errors=tuple(manifests.errors), notes=tuple(manifests.notes))
    affected = _affected_by_files(client, previewer.map, manifests)
    found = _preview(client, previewer, affected, on_progress)
    if affected.referrers:
        found = _with_resources(found, client, previewer, affected, of_files=True)
    manifests.note_unused()
    left_out = [note for note in manifests.notes if note not in found.notes]
    return replace(found, notes=(*found.notes, *left_out))


def _with_resources(
    found: Preview, client: KubeClient, previewer: Previewer, affected: _Affected, *, of_files: bool
) -> Preview:
    """Add the previews of ModelRouters, ModelPools and LoRAAdapters: of files, or of those in the cluster."""
    from automation.preview.resources import preview_resource, with_mode

    look = affected.look
    assert look is not None
    namespaces = _namespaces(client, affected.referrers) if of_files or previewer.has_policies else {}

    def shown_of(applied: AppliedDocument) -> ResourcePreview:
        metadata = namespaces.get(applied.cr["metadata"]["namespace"], {})
        preview = preview_resource(look, applied)
        if of_files:
            preview = with_mode(preview, applied.cr, metadata.get("annotations") or {})
        return replace(preview, violations=previewer.check_resource(applied.cr, metadata.get("labels") or {}))

    shown = tuple(map(shown_of, affected.referrers))
    notes = dict.fromkeys((*found.notes, *look.notes))
    return replace(found, resources=shown, notes=tuple(notes))


def _namespaces(client: KubeClient, applied: Iterable[AppliedDocument]) -> dict[str, Json]:
    """Return the metadata of the namespaces of resources. A namespace that the user may not read is left out."""
    found: dict[str, Json] = {}
    for namespace in {each.cr["metadata"]["namespace"] for each in applied}:
        with suppress(NotFound, Forbidden):
            found[namespace] = client.get(kinds.NAMESPACES, None, namespace)["metadata"]
    return found


def preview_live(
    client: KubeClient,
    previewer: Previewer,
    *,
    namespace: str | None,
    names: Sequence[str] = (),
    on_progress: Progress | None = None,
) -> Preview:
    """Preview the changes that the loop would make to services now, and the held back changes of resources.

    `names` are `NAME` or `KIND/NAME`; without names all services of `namespace` are previewed, or of all namespaces
    (None), and all ModelRouters, ModelPools and LoRAAdapters with such a change. Raises ApiError when the API server
    cannot be asked, ValueError for a word that is no kind.
    """
    of_resources = [each for each in map(split_referrer, names) if each is not None]
    split = [split_name(name) for name in names if split_referrer(name) is None]
    affected = _Affected()
    if split or not names:
        affected = _find_services(client, previewer.map, namespace=namespace, names=split)
        affected.errors += _misnamed(split, affected, namespace)
    found = _preview(client, previewer, affected, on_progress)
    if of_resources or not names:
        from automation.preview import live_resources

        if of_resources:
            resources = live_resources.find_resources(client, namespace, of_resources)
        else:
            resources = live_resources.find_changed_resources(client, namespace)
        affected.referrers, affected.look = resources.found, resources.look
        found = _with_resources(found, client, previewer, affected, of_files=False)
        shown = tuple(map(live_resources.as_held, found.resources, (each.cr for each in resources.found)))
        errors, notes = (*found.errors, *resources.errors), (*found.notes, *resources.notes())
        found = replace(found, resources=shown, errors=errors, notes=notes)
    return found


def services_that_refer_to(
    client: KubeClient, ask: Ask, look: PreviewLookup, changed: set[Identity], but: set[ServiceKey]
) -> list[Subject]:
    """Find the services that refer to changed objects, without those in `but`."""
    subjects = []
    for dialect, info in DIALECTS.items():
        refers_to = {(each.group, each.kind) for each in info.refers_to}
        concerned = {each for each in changed if each[:2] in refers_to}
        if not concerned:
            continue
        everywhere = any(each.namespace in SHARED_NAMESPACES for each in concerned)
        places: list[str | None] = [None] if everywhere else [*sorted({each.namespace for each in concerned})]
        crs = CustomResources(info.kind)
        _run(ask, [list_request(client, crs, place) for place in places])
        found = [
            cr
            for name, cr in sorted(crs.live.items())
            if ServiceKey(dialect, *name) not in but
            and "deletionTimestamp" not in cr["metadata"]
            and not is_part_of_another(cr)
        ]
        look.prefetch(found, ask)
        subjects += [Subject(cr, look) for cr in found if concerned & look.references_of(cr)]
    return subjects


def find_references(client: KubeClient, cr: Json) -> list[Json]:
    """Read the existing objects that a service refers to. Raises ApiError."""
    look = PreviewLookup(client)
    look.references_of(cr)
    return look.found()


@dataclass
class _Affected:
    """The services that a preview affects."""

    subjects: list[Subject] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    """The names of services that are being deleted. They are not previewed."""
    referrers: list[AppliedDocument] = field(default_factory=list)
    """The ModelRouters, ModelPools and LoRAAdapters of the files that the API server accepts."""
    look: PreviewLookup | None = None
    """The lookup with the files; None for a preview without files."""


def _preview(client: KubeClient, previewer: Previewer, affected: _Affected, on_progress: Progress | None) -> Preview:
    live, subjects = Live(client, previewer.map), affected.subjects
    previews = previewer.preview_services(subjects, live, on_progress=on_progress)
    of_lookups = [note for each in subjects for note in each.look.notes]
    notes = dict.fromkeys((*previewer.notes, *affected.notes, *live.notes, *of_lookups))
    return Preview(previews, tuple(affected.errors), tuple(notes))


def _run(ask: Ask, reads: Iterable[Callable[[], str]]) -> list[str]:
    """Run requests, several at once; return their messages, each once."""
    return list(dict.fromkeys(note for note in ask(lambda read: read(), list(reads)) if note))


# --- files ------------------------------------------------------------------------------------------------------------


def _affected_by_files(client: KubeClient, ask: Ask, manifests: Manifests) -> _Affected:
    """Dry-run the documents, and find the services that they affect."""
    affected = _Affected()
    inputs = [(CustomResources(kind), each) for kind, each in _by_kind(manifests.referred).items()]
    services = [
        (dialect, CustomResources(kind), each)
        for dialect in DIALECTS
        for kind, each in _by_kind(manifests.services_of(dialect)).items()
    ]
    referrers = [(CustomResources(kind), each) for kind, each in _by_kind(manifests.take_referrers()).items()]
    everything = [*inputs, *((crs, documents) for _, crs, documents in services), *referrers]
    asks = (read for crs, documents in everything for read in read_requests(client, crs, names_of(documents)))
    affected.notes += _run(ask, asks)
    refused = {id(crs): dry_run_documents(client, ask, crs, documents) for crs, documents in (*inputs, *referrers)}
    look = PreviewLookup(
        client,
        applied={
            _identity(crs.kind, name): each.cr for crs, _ in (*inputs, *referrers) for name, each in crs.applied.items()
        },
        refused=frozenset(_identity(crs.kind, name) for crs, _ in inputs for name in crs.refused),
        manifests=manifests,
    )
    for _, crs, documents in services:
        ahead = {"then": look.parse_ahead} if len(documents) > FEW else {}
        refused[id(crs)] = dry_run_documents(client, ask, crs, documents, **ahead)
    affected.errors += [error for crs, _ in everything for error in refused[id(crs)]]
    changed = {_identity(crs.kind, name) for crs, _ in inputs for name, each in crs.applied.items() if each.changed}
    changed |= _edited_config_maps(client, manifests)
    asked = [each for _, crs, _ in services for each in crs.applied.values()]
    in_files = {ServiceKey(dialect, *name) for dialect, crs, _ in services for name in (*crs.applied, *crs.refused)}
    look.prefetch([each.cr for each in asked], ask)
    subjects = [
        Subject(each.cr, look, edited=each.changed or bool(changed & look.references_of(each.cr))) for each in asked
    ]
    subjects += services_that_refer_to(client, ask, look, changed, in_files)
    order = list(DIALECTS)
    affected.subjects = sorted(subjects, key=lambda each: order.index(each.key.dialect))
    affected.referrers = [each for crs, _ in referrers for each in crs.applied.values()]
    affected.look = look
    return affected


def _edited_config_maps(client: KubeClient, manifests: Manifests) -> set[Identity]:
    """Find the ConfigMaps of the files that differ from those of the cluster.

    They count as they are written, without a dry run: not everyone who may preview may write them.
    """
    in_cluster, found = PreviewLookup(client), set()
    for document in manifests.config_maps:
        live = in_cluster(kinds.CONFIG_MAPS, document.namespace, document.name) or {}
        if (live.get("data") or {}) != (document.cr.get("data") or {}):
            found.add(Identity.of(document.cr))
    return found


def _by_kind(documents: Iterable[Document]) -> dict[Kind, list[Document]]:
    """Sort documents by kind, each in the version in which it is written."""
    known = {(kind.group, kind.kind): kind for kind in (*INPUT_KINDS, *KINDS.values(), *REFERRER_KINDS)}
    found: dict[Kind, list[Document]] = {}
    for document in documents:
        identity = Identity.of(document.cr)
        kind = replace(known[identity.group, identity.kind], api_version=str(document.cr["apiVersion"]))
        found.setdefault(kind, []).append(document)
    return found


def _identity(kind: Kind, name: Name) -> Identity:
    return Identity(kind.group, kind.kind, *name)


# --- services in the cluster ------------------------------------------------------------------------------------------


def _find_services(
    client: KubeClient, ask: Ask, *, namespace: str | None, names: Sequence[tuple[str | None, str]]
) -> _Affected:
    """Find services in the cluster, and the reasons why some cannot be previewed.

    `names` are read by dialect or by name alone. Without names all services of `namespace` are found, or of all
    namespaces (None). Raises ApiError when InferenceServices, or services of a dialect that is named, may not be read.
    """
    affected, look = _Affected(), PreviewLookup(client)
    found = {dialect: CustomResources(kind) for dialect, kind in KINDS.items()}
    hidden: dict[str, Forbidden] = {}

    def reading(dialect: str, read: Callable[[], str]) -> Callable[[], str]:
        def attempt() -> str:
            try:
                return read()
            except Forbidden as error:
                if dialect == LLMKUBE or dialect in {given for given, _ in names}:
                    raise
                hidden[dialect] = error
                return ""

        return attempt

    asks: list[Callable[[], str]] = []
    for dialect, crs in found.items():
        if names and namespace is not None:
            own = [(namespace, name) for given, name in names if given in (None, dialect)]
            asks += [reading(dialect, read) for read in read_requests(client, crs, own)]
        else:
            asks.append(reading(dialect, list_request(client, crs, namespace)))
    unserved = _run(ask, asks)
    affected.notes += _left_out(client, hidden)
    for dialect, crs in found.items():
        for (_, name), cr in sorted(crs.live.items()):
            if is_part_of_another(cr) and (dialect, name) not in names:
                continue
            if "deletionTimestamp" in cr["metadata"]:
                affected.notes.append(f"{name_text(key_of(cr))} is being deleted")
                affected.deleted.add(name)
                continue
            affected.subjects.append(Subject(cr, look, edited=False))
    if not affected.subjects and found[LLMKUBE].unserved:
        affected.notes[:0] = unserved[:1]  # the CRDs of the other dialects are not Herdsman's to install
    look.prefetch([each.cr for each in affected.subjects], ask)
    return affected


def _left_out(client: KubeClient, hidden: Mapping[str, Forbidden]) -> Iterator[str]:
    """Name the kinds that may not be read. The API server forbids a kind also where it does not serve it."""
    if not hidden:
        return
    known = served(lambda path: client.request("GET", path), [KINDS[dialect] for dialect in hidden])
    for dialect, error in hidden.items():
        if known.get(KINDS[dialect], True):
            yield f"may not read {KINDS[dialect].plural}, so the preview omits them: {error.message}"


def _misnamed(names: Sequence[tuple[str | None, str]], affected: _Affected, namespace: str | None) -> Iterator[str]:
    """Return an error for each name that fits no service, or several."""
    keys = [each.key for each in affected.subjects]
    for dialect, name in names:
        dialects = [key.dialect for key in keys if key.name == name and dialect in (None, key.dialect)]
        if not dialects and name not in affected.deleted:
            yield f"no {kind_text(dialect or LLMKUBE)} `{name}` in namespace `{namespace}`"
        elif len(dialects) > 1:
            yield f"`{name}` means several services: write {' or '.join(qualified(each, name) for each in dialects)}"
