"""Finds the services of KServe and llmaz that a preview affects, and how each would be in the cluster.

Called by `requests` where files or a cluster have any. What they refer to (OpenModels, BackendRuntimes, configs) is
tried out first; a service that is not among the files is concerned where it looks at what would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from automation.preview.custom_resources import CustomResources, Name, dry_run_documents, listing, names_of, reads
from automation.preview.lookup import Identity, PreviewLookup
from automation.preview.previewer import Previewer, Subject
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.discovery import served
from kubeapi.errors import Forbidden
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import DesiredError
from program.desired.keys import ServiceKey
from program.dialects.registry import DIALECT_KINDS, DIALECTS, dialect_named, dialect_of, is_part_of_another, kind_text
from program.manifests import Document, Manifests

SHARED_NAMESPACES = ("", "kserve", "llmaz-system")
"""Where configs and settings lie that concern services of all namespaces; empty for kinds of the whole cluster."""


@dataclass
class AffectedServices:
    """The services of KServe and llmaz that a preview affects."""

    subjects: list[Subject] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def affected_by_files(client: KubeClient, previewer: Previewer, manifests: Manifests) -> AffectedServices:
    """Find the services that documents affect. Raises ApiError when the API server cannot be asked."""
    found = AffectedServices()
    by_kind = _by_kind(manifests.referred)
    of_services = {
        dialect: _by_kind(manifests.services_of(dialect), DIALECT_KINDS[dialect]) for dialect in manifests.dialects
    }
    shelves = [(CustomResources(kind), documents) for kind, documents in by_kind.items()]
    services = [
        (dialect, CustomResources(kind), documents)
        for dialect, groups in of_services.items()
        for kind, documents in groups.items()
    ]
    everything = [*shelves, *((crs, documents) for _, crs, documents in services)]
    asks = [ask for crs, documents in everything for ask in reads(client, crs, names_of(documents), whole=set())]
    found.notes += dict.fromkeys(answer for answer in previewer.map(lambda ask: ask(), asks) if answer)
    for crs, documents in everything:
        found.errors += dry_run_documents(client, previewer, crs, documents)
    look = PreviewLookup(
        client,
        asked={_identity(crs.kind, name): each.cr for crs, _ in shelves for name, each in crs.asked.items()},
        refused=frozenset(_identity(crs.kind, name) for crs, _ in shelves for name in crs.refused),
        manifests=manifests,
    )
    changed = {_identity(crs.kind, name) for crs, _ in shelves for name, each in crs.asked.items() if each.changed}
    changed |= _edited_settings(client, manifests)
    in_files = set()
    for dialect, crs, _ in services:
        in_files |= {ServiceKey(dialect, *name) for name in (*crs.asked, *crs.refused)}
        for each in crs.asked.values():
            edited = each.changed or bool(changed & _looked_at(dialect, each.cr, look))
            found.subjects.append(Subject(each.cr, edited=edited, dialect=dialect, look=look))
    found.subjects += services_that_refer_to(client, previewer, look, changed, in_files)
    found.notes += look.notes
    return found


def find_services(
    client: KubeClient, previewer: Previewer, *, namespace: str | None, names: Sequence[tuple[str | None, str]] = ()
) -> AffectedServices:
    """Find services in the cluster: those named, by dialect or by their name alone, or all of a namespace, or of all
    (None). Raises ApiError when the API server cannot be asked, or refuses to tell of a dialect that is named.
    """
    found, look = AffectedServices(), PreviewLookup(client)
    shelves = {dialect: CustomResources(kind) for dialect, kind in DIALECT_KINDS.items()}
    hidden: dict[str, Forbidden] = {}

    def attempt(dialect: str, ask: Callable[[], str]) -> None:
        """Read; of a dialect that is not installed there is nothing."""
        try:
            ask()
        except Forbidden as error:
            if dialect in {said for said, _ in names}:
                raise
            hidden[dialect] = error

    asks: list[tuple[str, Callable[[], str]]] = []
    for dialect, crs in shelves.items():
        if names and namespace is not None:
            own = [(namespace, name) for said, name in names if said in (None, dialect)]
            asks += [(dialect, ask) for ask in reads(client, crs, own, whole=set())]
        else:
            asks.append((dialect, listing(client, crs, namespace)))
    for _ in previewer.map(lambda each: attempt(*each), asks):
        pass
    found.notes += _left_out(client, hidden)
    for dialect, crs in shelves.items():
        for (where, name), cr in sorted(crs.live.items()):
            if is_part_of_another(cr) and (dialect, name) not in names:
                continue
            if "deletionTimestamp" in cr["metadata"]:
                found.notes.append(f"{kind_text(dialect)} {where}/{name} is being deleted")
                continue
            found.subjects.append(Subject(cr, edited=False, dialect=dialect, look=look))
    return found


def _left_out(client: KubeClient, hidden: Mapping[str, Forbidden]) -> list[str]:
    """Say which services may not be read. The API server refuses to tell of a kind also where it does not serve it."""
    if not hidden:
        return []
    known = served(lambda path: client.request("GET", path), [DIALECT_KINDS[dialect] for dialect in hidden])
    return [
        f"may not read {DIALECT_KINDS[dialect].plural}, so they are left out: {error.message}"
        for dialect, error in hidden.items()
        if known.get(DIALECT_KINDS[dialect], True)
    ]


# --- what changed documents concern -----------------------------------------------------------------------------------


def services_that_refer_to(
    client: KubeClient, previewer: Previewer, look: PreviewLookup, changed: set[Identity], but: set[ServiceKey]
) -> list[Subject]:
    """Find the services that refer to changed objects, without those in `but`."""
    subjects = []
    for dialect, kind in DIALECT_KINDS.items():
        refers_to = {(each.group, each.kind) for each in DIALECTS[dialect].refers_to}
        concerned = {each for each in changed if each[:2] in refers_to}
        if not concerned:
            continue
        everywhere = any(each.namespace in SHARED_NAMESPACES for each in concerned)
        places: list[str | None] = [None] if everywhere else [*sorted({each.namespace for each in concerned})]
        crs = CustomResources(kind)
        for _ in previewer.map(lambda ask: ask(), [listing(client, crs, place) for place in places]):
            pass
        for name, cr in sorted(crs.live.items()):
            going = "deletionTimestamp" in cr["metadata"] or is_part_of_another(cr)
            if going or ServiceKey(dialect, *name) in but:
                continue
            if concerned & _looked_at(dialect, cr, look):
                subjects.append(Subject(cr, edited=True, dialect=dialect, look=look))
    return subjects


def find_references(client: KubeClient, cr: Json) -> list[Json]:
    """Read what a service of a dialect refers to, as far as it exists. Raises ApiError."""
    look = PreviewLookup(client)
    _looked_at(dialect_of(cr), cr, look)
    return look.found()


def _edited_settings(client: KubeClient, manifests: Manifests) -> set[Identity]:
    """Find the ConfigMaps of the files that say something else than those of the cluster.

    They are taken as they are written: not everybody who may preview may write them.
    """
    as_it_stands, found = PreviewLookup(client), set()
    for document in manifests.config_maps:
        live = as_it_stands(kinds.CONFIG_MAPS, document.namespace, document.name) or {}
        if (live.get("data") or {}) != (document.cr.get("data") or {}):
            found.add(Identity.of(document.cr))
    return found


def _looked_at(dialect: str, cr: Json, look: PreviewLookup) -> set[Identity]:
    look.seen = set()
    with suppress(DesiredError):  # what it looked at counts, and the preview says what is wrong
        dialect_named(dialect).parse(cr, look)
    return look.seen


def _by_kind(documents: Iterable[Document], kind: Kind | None = None) -> dict[Kind, list[Document]]:
    """Sort documents by kind, each in the version in which it is written."""
    found: dict[Kind, list[Document]] = {}
    for document in documents:
        own = kind or _REFERRED[str(document.cr["kind"])]
        found.setdefault(replace(own, api_version=str(document.cr["apiVersion"])), []).append(document)
    return found


_REFERRED = {kind.kind: kind for kind in (kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.LLM_CONFIGS)}


def _identity(kind: Kind, name: Name) -> Identity:
    return Identity(kind.group, kind.kind, *name)
