"""Previews of files that a user would apply, and of services as they are in the cluster.

Called by `herdsman preview`. Finds the services that are affected, and their Models; `previewer` previews them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from automation.preview.changes import Preview, ServicePreview
from automation.preview.custom_resources import CustomResources, Name, dry_run_documents, listing, names_of, reads
from automation.preview.live import Live
from automation.preview.previewer import DIALECT, Previewer, Progress, Subject
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.dialects.llmkube.parse.service import draft_reference
from program.dialects.registry import kind_text, qualified, split_name
from program.dialects.status.conditions import Reason
from program.manifests import Manifests

if TYPE_CHECKING:
    from automation.preview.dialect_requests import AffectedServices


def preview_files(
    client: KubeClient, previewer: Previewer, manifests: Manifests, *, on_progress: Progress | None = None
) -> Preview:
    """Preview `kubectl apply` of these documents. Objects that the documents leave out are not deleted.

    Raises ApiError when the API server cannot be asked.
    """
    if manifests.errors:
        manifests.note_unused()
        return Preview(errors=tuple(manifests.errors), notes=tuple(manifests.notes))
    errors: list[str] = []
    notes = list(manifests.notes)
    models, services = CustomResources(kinds.MODELS), CustomResources(kinds.INFERENCE_SERVICES)
    documents = {
        crs.kind: [d for d in manifests.documents if d.cr["kind"] == crs.kind.kind] for crs in (models, services)
    }
    changed_models_in = {document.namespace for document in documents[models.kind]}
    wanted_models = [
        (document.namespace, name) for document in documents[services.kind] for name in _models_of(document.cr)
    ]
    # Which services a changed Model concerns can only be told by all of its namespace.
    asks = [*reads(client, services, names_of(documents[services.kind]), whole=changed_models_in)]
    asks += reads(client, models, [*names_of(documents[models.kind]), *wanted_models], whole=set())
    live = Live(client, previewer.map)
    for answer in previewer.map(lambda ask: ask(), asks):
        notes += [answer] if answer and answer not in notes else []
    for crs in (models, services):
        errors += dry_run_documents(client, previewer, crs, documents[crs.kind])
    services_that_refer_to = [
        name
        for name, cr in services.live.items()
        if name not in services.asked
        and name not in services.refused
        and any(models.is_edited((name[0], model)) for model in _models_of(cr))
    ]
    names = [*services.asked, *sorted(services_that_refer_to)]
    others = None
    if manifests.dialects or manifests.referred or manifests.config_maps:
        # Imported here: a preview of LLMKube's services should not wait for other dialects.
        from automation.preview.dialect_requests import affected_by_files

        others = affected_by_files(client, previewer, manifests)
    asking = _Request(previewer, live, services, models, others, on_progress)
    found = asking.previewed(names, errors=errors, notes=notes)
    manifests.note_unused()
    left_out = [note for note in manifests.notes if note not in found.notes]
    return replace(found, notes=(*found.notes, *left_out))


def preview_live(
    client: KubeClient,
    previewer: Previewer,
    *,
    namespace: str | None,
    names: Sequence[str] = (),
    on_progress: Progress | None = None,
) -> Preview:
    """Preview what the loop would do now with services as they stand: with those named (`NAME` or `KIND/NAME`), or with
    all of a namespace, or of all of them (None).

    Raises ApiError when the API server cannot be asked, ValueError for a word that is no kind of service.
    """
    from automation.preview.dialect_requests import find_services

    models, services = CustomResources(kinds.MODELS), CustomResources(kinds.INFERENCE_SERVICES)
    said = [split_name(name) for name in names]
    if names and namespace is not None:
        own = [(namespace, name) for dialect, name in said if dialect in (None, DIALECT)]
        asks = list(reads(client, services, own, whole=set()))
    else:
        asks = [listing(client, services, namespace), listing(client, models, namespace)]
    notes = [answer for answer in previewer.map(lambda ask: ask(), asks) if answer]
    if names:
        wanted = [(at, model) for (at, _), cr in services.live.items() for model in _models_of(cr)]
        _drain(previewer.map(lambda ask: ask(), list(reads(client, models, wanted, whole=set()))))
    others = find_services(client, previewer, namespace=namespace, names=said)
    if others.subjects and services.unserved:
        notes = []  # a cluster may have other dialects alone
    errors = _misnamed(said, services, others, namespace)
    going = [name for name, cr in services.live.items() if "deletionTimestamp" in cr["metadata"]]
    notes += [f"{namespace}/{name} is being deleted" for namespace, name in going]
    found = sorted(name for name in services.live if name not in going)
    asking = _Request(previewer, Live(client, previewer.map), services, models, others, on_progress)
    return asking.previewed(found, errors=errors, notes=notes)


def _misnamed(
    said: Sequence[tuple[str | None, str]], services: CustomResources, others: AffectedServices, namespace: str | None
) -> list[str]:
    """Say which names mean no service, and which mean several."""
    errors = []
    for dialect, name in said:
        own = (namespace, name) in services.live and dialect in (None, DIALECT)
        dialects = [DIALECT] if own else []
        dialects += [
            each.dialect for each in others.subjects if each.key.name == name and dialect in (None, each.dialect)
        ]
        if not dialects and not any(note.endswith(f"/{name} is being deleted") for note in others.notes):
            errors.append(f"there is no {kind_text(dialect or DIALECT)} `{name}` in namespace `{namespace}`")
        elif len(dialects) > 1:
            choices = " or ".join(qualified(each, name) for each in dialects)
            errors.append(f"`{name}` means several services: say {choices}")
    return errors


def _models_of(cr: Json) -> list[str]:
    """Name the Models of a service, which may be one that the API server has not looked at."""
    spec = cr.get("spec")
    named = (spec.get("modelRef"), draft_reference(cr)) if isinstance(spec, dict) else ()
    return sorted({name for name in named if name and isinstance(name, str)})


def _drain(answers: Iterable[object]) -> None:
    for _ in answers:
        pass


# --- previewing -------------------------------------------------------------------------------------------------------


@dataclass
class _Request:
    """What one preview needs."""

    previewer: Previewer
    live: Live
    services: CustomResources
    models: CustomResources
    others: AffectedServices | None
    """Services of the other dialects."""
    on_progress: Progress | None

    def previewed(self, names: Sequence[Name], *, errors: list[str], notes: list[str]) -> Preview:
        """Preview InferenceServices by name, and the others after them."""
        subjects, without_model = [], []
        for name in names:
            cr = self.services.get(name)
            assert cr is not None
            model = (name[0], str((cr.get("spec") or {}).get("modelRef") or ""))
            draft = (name[0], draft_reference(cr))
            if self.models.refused & {model, draft}:
                without_model.append(_refused_model(name, model[1]))
                continue
            edited = self.services.is_edited(name) or any(self.models.is_edited(each) for each in (model, draft))
            drafted = self.models.get(draft) if draft[1] and draft != model else None
            subjects.append(Subject(cr, self.models.get(model), drafted, edited))
        others = self.others.subjects if self.others is not None else []
        previews = self.previewer.services([*subjects, *others], self.live, on_progress=self.on_progress)
        found = {each.key: each for each in (*previews, *without_model)}
        if self.others is not None:
            errors, notes = [*errors, *self.others.errors], [*notes, *self.others.notes]
        keys = [*(ServiceKey(DIALECT, *name) for name in names), *(each.key for each in others)]
        looked = {note: None for each in others if each.look is not None for note in each.look.notes}
        every = dict.fromkeys((*self.previewer.notes, *notes, *self.live.notes, *looked))
        return Preview(tuple(found[key] for key in keys), tuple(errors), tuple(every))


def _refused_model(name: Name, model: str) -> ServicePreview:
    why = f"Model `{model}` of the files would be refused"
    problem = Problem(reason=Reason.MODEL_NOT_READY, message=why, field="spec.modelRef")
    return ServicePreview(ServiceKey(DIALECT, *name), problem=problem)
