"""Renders one service of a dialect beside LLMKube's as a pass of the loop would. Called by `rendering`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from automation.adoption.kept_templates import kept_digests, with_live_templates
from automation.adoption.ownership import controller_of
from automation.preview.kept_fields import kept_fields
from automation.preview.rendering import Rendering, held, placed, problem_of
from automation.reconcile.plan import ObjectName
from automation.status.ownership import written_by_another
from components.extensions import unsupported_by_cluster
from components.render import RenderOptions, render
from program.desired.errors import DesiredError
from program.dialects.registry import dialect_named

if TYPE_CHECKING:
    from automation.preview.live import Live
    from automation.preview.lookup import PreviewLookup
    from automation.preview.previewer import Subject


def dialect_rendering(subject: Subject, look: PreviewLookup, live: Live, *, options: RenderOptions) -> Rendering:
    """Parse and render a service; an error of the spec, or of what it refers to, becomes the problem."""
    cr, key = subject.cr, subject.key
    notes = [*held(cr, live), *_left_to_the_peer(subject, live)]
    try:
        parsed = dialect_named(subject.dialect).parse(cr, look)
        desired = parsed.desired
        if desired.host_placement is not None:
            desired = placed(desired, cr, live, notes)
        options = options.model_copy(update={"installed": live.installed})
        rendered = render(desired, options)
    except DesiredError as error:
        return Rendering(notes=tuple(notes), problem=problem_of(error))
    unsupported = (*parsed.unsupported, *unsupported_by_cluster(desired, options))
    notes += [f"{each.field}: {each.message}" if each.field else each.message for each in unsupported]
    if desired.suspended:
        notes.append("it is stopped: nothing is made, and what runs goes")
    if kept_digests(key, cr) or subject.given:
        wanted = [ObjectName(each.kind, each.name) for each in rendered.objects]
        live.fetch(key, [name for name in wanted if name not in live.objects(key)])
        rendered = with_live_templates(cr, rendered, live.objects(key)) or rendered
    notes += kept_fields(rendered, live.objects(key))
    return Rendering(desired, rendered, tuple(notes))


def _left_to_the_peer(subject: Subject, live: Live) -> Iterator[str]:
    """Say of a service that the peer's controller has in its hands that no loop takes it before somebody says so."""
    cr = subject.cr
    if subject.edited or controller_of(cr, live.namespace_annotations(subject.key.namespace)):
        return
    finalizers = cr["metadata"].get("finalizers") or ()
    held_by_peer = any(each in dialect_named(subject.dialect).peer_finalizers for each in finalizers)
    if held_by_peer or written_by_another(cr.get("status"), "Reconciling"):
        yield "the peer's controller looks after it, or did: no loop takes it before `herdsman adopt`"
