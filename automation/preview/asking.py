"""What people ask previews about: files that they would apply, and services as they stand in a cluster.

Called by `herdsman preview`. Finds out which services are concerned, and with which Models; `previewer` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from automation.preview.changes import Preview, ServicePreview
from automation.preview.files import Asked, FileRefused, as_written, asked
from automation.preview.live import PAGE, Live
from automation.preview.previewer import DIALECT, Previewer, Progress, Subject
from kubeapi import kinds
from kubeapi.client import PATH_NOT_FOUND, KubeClient
from kubeapi.errors import NotFound
from kubeapi.kinds import Kind
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.dialects.conditions import Reason
from program.dialects.llmkube.parse import draft_reference
from program.manifests import Document, Manifests

Json = dict[str, Any]
Name = tuple[str, str]
"""Namespace and name."""

FEW = 8
"""So many objects of a namespace are read one by one; of more, all."""


@dataclass
class _Crs:
    """Custom resources of one kind, as they are and as they would be."""

    kind: Kind
    live: dict[Name, Json] = field(default_factory=dict)
    asked: dict[Name, Asked] = field(default_factory=dict)
    refused: set[Name] = field(default_factory=set)
    unserved: bool = False
    """The cluster has no such kind yet."""

    def get(self, name: Name) -> Json | None:
        found = self.asked.get(name)
        return found.cr if found is not None else self.live.get(name)

    def is_edited(self, name: Name) -> bool:
        found = self.asked.get(name)
        return found is not None and found.changed


def preview_files(
    client: KubeClient, previewer: Previewer, manifests: Manifests, *, on_progress: Progress | None = None
) -> Preview:
    """Preview what `kubectl apply` of these documents would lead to. What they leave out is not deleted.

    Raises ApiError when the API server cannot be asked.
    """
    if manifests.errors:
        return Preview(errors=tuple(manifests.errors), notes=tuple(manifests.notes))
    errors: list[str] = []
    notes = list(manifests.notes)
    models, services = _Crs(kinds.MODELS), _Crs(kinds.INFERENCE_SERVICES)
    documents = {
        crs.kind: [d for d in manifests.documents if d.cr["kind"] == crs.kind.kind] for crs in (models, services)
    }
    changed_models_in = {document.namespace for document in documents[models.kind]}
    wanted_models = [
        (document.namespace, name) for document in documents[services.kind] for name in _models_of(document.cr)
    ]
    # Which services a changed Model concerns can only be told by all of its namespace.
    asks = [*_reads(client, services, _names(documents[services.kind]), whole=changed_models_in)]
    asks += _reads(client, models, [*_names(documents[models.kind]), *wanted_models], whole=set())
    live = Live(client, previewer.map)
    for answer in previewer.map(lambda ask: ask(), asks):
        notes += [answer] if answer and answer not in notes else []
    for crs in (models, services):
        errors += _try_out(client, previewer, crs, documents[crs.kind])
    touched = [
        name
        for name, cr in services.live.items()
        if name not in services.asked
        and name not in services.refused
        and any(models.is_edited((name[0], model)) for model in _models_of(cr))
    ]
    names = [*services.asked, *sorted(touched)]
    return _previewed(previewer, live, names, services, models, errors=errors, notes=notes, on_progress=on_progress)


def preview_live(
    client: KubeClient,
    previewer: Previewer,
    *,
    namespace: str | None,
    names: Sequence[str] = (),
    on_progress: Progress | None = None,
) -> Preview:
    """Preview what the loop would do now with services as they stand: with those named, or with all of a namespace, or
    of all of them (None). Raises ApiError when the API server cannot be asked.
    """
    models, services = _Crs(kinds.MODELS), _Crs(kinds.INFERENCE_SERVICES)
    if names and namespace is not None:
        asks = list(_reads(client, services, [(namespace, name) for name in names], whole=set()))
    else:
        asks = [_listing(client, services, namespace), _listing(client, models, namespace)]
    notes = [answer for answer in previewer.map(lambda ask: ask(), asks) if answer]
    if names:
        wanted = [(at, model) for (at, _), cr in services.live.items() for model in _models_of(cr)]
        _drain(previewer.map(lambda ask: ask(), list(_reads(client, models, wanted, whole=set()))))
    errors = [
        f"there is no InferenceService `{name}` in namespace `{namespace}`"
        for name in names
        if (namespace, name) not in services.live
    ]
    going = [name for name, cr in services.live.items() if "deletionTimestamp" in cr["metadata"]]
    notes += [f"{namespace}/{name} is being deleted" for namespace, name in going]
    found = sorted(name for name in services.live if name not in going)
    live = Live(client, previewer.map)
    return _previewed(previewer, live, found, services, models, errors=errors, notes=notes, on_progress=on_progress)


# --- reading ----------------------------------------------------------------------------------------------------------


def _reads(client: KubeClient, crs: _Crs, names: Iterable[Name], *, whole: set[str]) -> Iterable[Callable[[], str]]:
    """Say how to read custom resources: few by name, many by namespace."""
    by_namespace: dict[str, set[str]] = {namespace: set() for namespace in whole}
    for namespace, name in names:
        by_namespace.setdefault(namespace, set()).add(name)
    for namespace, wanted in sorted(by_namespace.items()):
        if namespace in whole or len(wanted) > FEW:
            yield _listing(client, crs, namespace)
        else:
            yield from (_reading(client, crs, (namespace, name)) for name in sorted(wanted))


def _reading(client: KubeClient, crs: _Crs, name: Name) -> Callable[[], str]:
    def read() -> str:
        try:
            crs.live[name] = client.get(crs.kind, *name)
        except NotFound as error:
            return _unserved(crs) if error.message == PATH_NOT_FOUND else ""
        return ""

    return read


def _listing(client: KubeClient, crs: _Crs, namespace: str | None) -> Callable[[], str]:
    def read() -> str:
        token: str | None = None
        while True:
            try:
                page = client.list(crs.kind, namespace, limit=PAGE, continue_token=token)
            except NotFound:
                return _unserved(crs)
            for cr in page["items"]:
                crs.live[cr["metadata"]["namespace"], cr["metadata"]["name"]] = cr
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return ""

    return read


def _unserved(crs: _Crs) -> str:
    crs.unserved = True
    return f"the cluster does not serve {crs.kind.kind} yet, so what it would say of it is not known: `herdsman crds`"


def _models_of(cr: Json) -> list[str]:
    """Name the Models of a service, which may be one that the API server has not looked at."""
    spec = cr.get("spec")
    named = (spec.get("modelRef"), draft_reference(cr)) if isinstance(spec, dict) else ()
    return sorted({name for name in named if name and isinstance(name, str)})


def _names(documents: Iterable[Document]) -> list[Name]:
    return [(document.namespace, document.name) for document in documents]


def _drain(answers: Iterable[object]) -> None:
    for _ in answers:
        pass


def _try_out(client: KubeClient, previewer: Previewer, crs: _Crs, documents: list[Document]) -> list[str]:
    """Dry-run all documents of a kind; give what the API server would not take."""

    def tried(document: Document) -> Asked | str:
        if crs.unserved:
            return as_written(document.cr)
        try:
            return asked(client, crs.kind, document.cr, crs.live.get((document.namespace, document.name)))
        except FileRefused as refused:
            return f"{document}: {refused}"

    errors = []
    for document, answer in zip(documents, previewer.map(tried, documents), strict=True):
        name = (document.namespace, document.name)
        if isinstance(answer, str):
            errors.append(answer)
            crs.refused.add(name)
        else:
            crs.asked[name] = answer
    return errors


# --- previewing -------------------------------------------------------------------------------------------------------


def _previewed(
    previewer: Previewer,
    live: Live,
    names: Sequence[Name],
    services: _Crs,
    models: _Crs,
    *,
    errors: list[str],
    notes: list[str],
    on_progress: Progress | None,
) -> Preview:
    subjects, without_model = [], []
    for name in names:
        cr = services.get(name)
        assert cr is not None
        model = (name[0], str((cr.get("spec") or {}).get("modelRef") or ""))
        draft = (name[0], draft_reference(cr))
        if models.refused & {model, draft}:
            without_model.append(_refused_model(name, model[1]))
            continue
        edited = services.is_edited(name) or any(models.is_edited(each) for each in (model, draft))
        drafted = models.get(draft) if draft[1] and draft != model else None
        subjects.append(Subject(cr, models.get(model), drafted, edited))
    previews = previewer.services(subjects, live, on_progress=on_progress)
    found = {(each.key.namespace, each.key.name): each for each in (*previews, *without_model)}
    return Preview(tuple(found[name] for name in names), tuple(errors), (*notes, *live.notes))


def _refused_model(name: Name, model: str) -> ServicePreview:
    why = f"Model `{model}` of the files would be refused"
    problem = Problem(reason=Reason.MODEL_NOT_READY, message=why, field="spec.modelRef")
    return ServicePreview(ServiceKey(DIALECT, *name), problem=problem)
