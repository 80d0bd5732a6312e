"""Renders one service as a pass of the loop would, from its custom resource, its Model and what lives.

Called by `previewer`. The way is `automation.reconcile.desire`'s, with live lookups in the place of the loop's caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from automation.adoption.ownership import HERDSMAN, controller_of
from automation.serving.scaling import scaled_elsewhere
from components import naming
from components.deployment import is_stopped
from components.extensions import unsupported_by_cluster
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.errors import DesiredError, SpecInvalid
from program.desired.facts import Problem
from program.desired.keys import ANNOTATION_CONTROLLER, ANNOTATION_KEPT_TEMPLATE, ANNOTATION_MODE
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import draft_reference, parse_service, unsupported_fields
from program.dialects.llmkube.status.model import known_status
from program.dialects.status.conditions import Reason

if TYPE_CHECKING:
    from automation.preview.live import Live
    from automation.preview.previewer import Subject


@dataclass(frozen=True)
class Rendering:
    """What a service would be made of; nothing at all where a problem, or a Model that is not Ready, stands before."""

    desired: DesiredService | None = None
    rendered: RenderedService | None = None
    notes: tuple[str, ...] = ()
    problem: Problem | None = None


def rendering(subject: Subject, live: Live, *, options: RenderOptions) -> Rendering:
    """Parse and render a service; an error of the spec becomes the problem."""
    if subject.look is not None:
        # Imported here: a dialect that no subject is of should cost nothing.
        from automation.preview.dialect_rendering import dialect_rendering

        return dialect_rendering(subject, subject.look, live, options=options)
    cr, model_cr = subject.cr, subject.model_cr
    name = str((cr.get("spec") or {}).get("modelRef") or "")
    if model_cr is None:
        why = f"there is no Model `{name}` in namespace `{subject.key.namespace}`"
        return Rendering(problem=Problem(reason=Reason.MODEL_NOT_READY, message=why, field="spec.modelRef"))
    notes = list(held(cr, live))
    for each in filter(None, (model_cr, subject.draft_cr if draft_reference(cr) else None)):
        if known_status(each).get("phase") != "Ready":
            told = each["metadata"]["name"]
            if not subject.edited:
                return Rendering(notes=(f"Model `{told}` is not Ready; until it is, nothing is changed",))
            notes.append(
                f"Model `{told}` has not been looked at like this: its file's name and what the header says may differ"
            )
    try:
        return _rendered(subject, model_cr, live, options, notes)
    except DesiredError as error:
        return Rendering(notes=tuple(notes), problem=problem_of(error))


def problem_of(error: DesiredError) -> Problem:
    """Say of a service why nothing would be made."""
    terminal = isinstance(error, SpecInvalid)
    return Problem(reason=error.reason, message=error.why, field=error.field, terminal=terminal)


def held(cr: Json, live: Live) -> Iterator[str]:
    """Say what keeps the loop from making the change, though it would be just this one."""
    annotations, of_namespace = cr["metadata"].get("annotations") or {}, live.namespace_annotations(_namespace(cr))
    mode = annotations.get(ANNOTATION_MODE) or of_namespace.get(ANNOTATION_MODE) or "Apply"
    if mode == "Preview":
        yield "mode Preview: the change waits until `herdsman approve` is given its digest"
    elif mode == "Paused":
        yield "mode Paused: nothing is changed until the mode is another"
    controller = controller_of(cr, of_namespace)
    if controller and controller != HERDSMAN:
        yield f"only a loop of class `{controller}` looks after it (annotation {ANNOTATION_CONTROLLER})"


def _namespace(cr: Json) -> str:
    return str(cr["metadata"].get("namespace") or "default")


def _rendered(subject: Subject, model_cr: Json, live: Live, options: RenderOptions, notes: list[str]) -> Rendering:
    cr, key = subject.cr, subject.key
    draft = model_of(subject.draft_cr) if subject.draft_cr is not None and draft_reference(cr) else None
    desired = parse_service(cr, model_of(model_cr), draft=draft)
    if desired.host_placement is not None:
        desired = placed(desired, cr, live, notes)
    deployment = live.deployment(key)
    facts = {
        "claim_exists": live.claim_exists(key, options.claim_mode),
        "scaled_elsewhere": scaled_elsewhere(desired, deployment),
        "asleep": _is_asleep(desired, deployment),
        "installed": live.installed,
    }
    options = options.model_copy(update=facts)
    rendered = render(desired, options)
    notes += [
        f"{each.field}: {each.message}"
        for each in (*unsupported_fields(cr, desired), *unsupported_by_cluster(desired, options))
    ]
    kept = _as_kept(cr, rendered, live)
    if kept is None and not subject.edited:
        kept = _as_rolled_back(cr, rendered, live, notes)
    return Rendering(desired, kept or rendered, tuple(notes))


def placed(desired: DesiredService, cr: Json, live: Live, notes: list[str]) -> DesiredService:
    """Place the replicas as the loop would now: where they run, they stay."""
    from automation.hosts.hosted import without_agent

    registry = live.registry()
    settled, decision = registry.place(desired, created=str(cr["metadata"].get("creationTimestamp", "")))
    notes += [f"{each.field}: {each.message}" for each in without_agent(registry, settled)]
    if decision is not None:
        notes += [f"{decision.refusals}"] if decision.refusals is not None else []
        notes += [decision.stuck] if decision.stuck else []
        notes += decision.moved
    return settled


def _is_asleep(desired: DesiredService, deployment: Json | None) -> bool:
    """Tell whether the loop has put the service to sleep, and nobody has asked for other replicas since."""
    if desired.sleep is None or desired.host_placement is not None or deployment is None or is_stopped(desired):
        return False
    mark = deployment["metadata"]["annotations"].get(naming.ANNOTATION_ASLEEP)
    return bool(mark == str(desired.replicas) and deployment["spec"]["replicas"] == 0)


def _as_kept(cr: Json, rendered: RenderedService, live: Live) -> RenderedService | None:
    """Put the template that an adopted service runs with in place of ours, as long as it is kept."""
    if ANNOTATION_KEPT_TEMPLATE not in (cr["metadata"].get("annotations") or {}):
        return None
    from automation.adoption.kept_templates import with_live_templates

    return with_live_templates(cr, rendered, live.objects(rendered.key))


def _as_rolled_back(cr: Json, rendered: RenderedService, live: Live, notes: list[str]) -> RenderedService | None:
    """Put the template that served before in place of one that the loop gave up, as the status says that it did."""
    conditions = (cr.get("status") or {}).get("conditions") or ()
    if not any(each.get("type") == "RolledBack" and each.get("status") == "True" for each in conditions):
        return None
    from automation.serving.rollback import served_hash, template_of, with_template, written_rollback
    from automation.serving.rollout import rendered_template_hash

    held = written_rollback(cr, rendered_template_hash(rendered))
    template = template_of(live.replica_sets(rendered.key), served_hash(cr)) if held is not None else None
    if held is None or template is None:
        return None
    notes.append(f"rolled back: {held.message}")
    return with_template(rendered, template)
