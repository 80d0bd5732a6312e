"""Lists the drift of services: renders them as the loop does, and compares the result with the live objects.

Called by `herdsman drift`. Reads only; the loop need not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from automation.drift.field_drift import ObjectDrift, fields_of
from automation.preview.live import Live
from automation.preview.lookup import PreviewLookup
from automation.preview.rendering import Subject, render_subject
from automation.preview.report import name_text
from automation.reconcile.plan import ObjectName
from components import naming
from components.render import RenderOptions
from components.rendered import RenderedObject, RenderedService
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import DriftAction
from program.dialects.registry import LLMKUBE

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Drifted:
    """One object of a service that other clients changed or deleted."""

    key: ServiceKey
    drift: ObjectDrift
    action: DriftAction
    """The action that the loop takes."""


@dataclass(frozen=True)
class Listing:
    """The drift of several services."""

    drifted: tuple[Drifted, ...] = ()
    notes: tuple[str, ...] = ()
    """The services that cannot be compared, and why."""


def list_drift(client: KubeClient, services: Iterable[Json], *, options: RenderOptions) -> Listing:
    """List the drift of services, given as their live custom resources. Raises ApiError."""
    found = [cr for cr in services if "deletionTimestamp" not in cr["metadata"]]
    look = PreviewLookup(client)
    look.prefetch(found, _in_turn)
    subjects = [Subject(cr, look, edited=False) for cr in found]
    live = Live(client, _in_turn)
    live.load([subject.key for subject in subjects], claims=options.claim_mode)
    drifted: list[Drifted] = []
    notes: list[str] = []
    for subject in subjects:
        plan = render_subject(subject, live, options=options)
        name = name_text(subject.key)
        if plan.rendered is None:
            why = plan.problem.message if plan.problem is not None else "; ".join(plan.notes)
            notes.append(f"{name}: cannot be compared: {why}")
        elif plan.rendered.objects:
            live.fetch(subject.key, _missing(plan.rendered, live))
            if applied := _applied(plan.rendered, live):
                drifted += _compared(plan.rendered.key, applied, live)
            if len(applied) < len(plan.rendered.objects):
                asked, said = subject.key, "" if subject.key.dialect == LLMKUBE else f"{subject.key.dialect}/"
                see = f"herdsman preview --live {said}{asked.name} -n {asked.namespace}"
                what = "part of its spec" if applied else "its spec"
                notes.append(f"{name}: {what} is not applied yet; see `{see}`")
    return Listing(tuple(drifted), (*notes, *live.notes, *look.notes))


def _in_turn(ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterable[Answer]:
    return map(ask, items)


def _missing(rendered: RenderedService, live: Live) -> list[ObjectName]:
    """Return the objects that their label did not find. Another client may have removed the label."""
    known = live.objects(rendered.key)
    names = (ObjectName(each.kind, each.name) for each in rendered.objects)
    return [name for name in names if name not in known]


def _applied(rendered: RenderedService, live: Live) -> tuple[RenderedObject, ...]:
    """Return the objects that were applied as rendered, by the hash on the last object; all where the hash is gone."""
    last = rendered.objects[-1]
    found = live.objects(rendered.key).get(ObjectName(last.kind, last.name))
    if found is None:
        return rendered.objects
    applied = (found["metadata"].get("annotations") or {}).get(naming.ANNOTATION_APPLIED_HASH, "")
    path = f'metadata.annotations["{naming.ANNOTATION_APPLIED_HASH}"]'
    if any(field.path == path for field in fields_of(last, found)):
        return rendered.objects
    return rendered.applied_by(applied)


def _compared(key: ServiceKey, objects: tuple[RenderedObject, ...], live: Live) -> Iterable[Drifted]:
    known = live.objects(key)
    for obj in objects:
        found = known.get(ObjectName(obj.kind, obj.name))
        if found is None or found["metadata"].get("deletionTimestamp"):
            yield Drifted(key, ObjectDrift(obj.kind, obj.name, deleted=True), obj.on_drift)
        elif fields := fields_of(obj, found):
            yield Drifted(key, ObjectDrift(obj.kind, obj.name, fields), obj.on_drift)
