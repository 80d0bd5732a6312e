"""Renders one service as a pass of the loop would: from its custom resource, the objects that it names, and live facts.

Called by `previewer`. The steps are those of `automation.reconcile.desire`, with live lookups instead of caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from automation.adoption.ownership import HERDSMAN, controller_of
from automation.cache.owners import selector_of
from automation.preview.consequences import kept_fields
from automation.preview.live import Live
from automation.preview.lookup import PreviewLookup
from automation.reconcile.plan import ObjectName
from automation.serving.scaling import pool_mark, scaled_elsewhere
from automation.status.ownership import held_by_upstream
from components import naming
from components.engine_workloads import is_stopped
from components.extensions import unsupported_by_cluster
from components.render import RenderOptions, render
from components.rendered import RenderedService
from components.scaling import follows_requests
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import DesiredError, ModelNotReady, SpecInvalid
from program.desired.facts import Problem
from program.desired.keys import ANNOTATION_CONTROLLER, ANNOTATION_KEPT_TEMPLATE, ANNOTATION_MODE, ServiceKey
from program.desired.replicas import with_replicas
from program.desired.service import DesiredService
from program.dialects.registry import LLMKUBE, key_of
from program.dialects.status.conditions import Reason, is_asleep, ready_condition
from program.dialects.status.policy_condition import is_denied

_SETS = ("Deployment", "LeaderWorkerSet")


@dataclass(frozen=True)
class Subject:
    """A service to preview, as it would be in the cluster."""

    cr: Json
    look: PreviewLookup
    """Finds what the service refers to."""
    edited: bool = True
    """True: the service, or an object that it refers to, is not in the cluster like this. A Model that the loop has not
    probed counts as it is written. False: preview the loop's next pass, which changes nothing before the Model is
    Ready."""
    given: frozenset[str] = frozenset()
    """Uids of objects that another controller holds and that are given to the service before anything is applied."""
    notes: tuple[str, ...] = ()
    """Notes that precede those of the preview."""

    @cached_property
    def key(self) -> ServiceKey:
        return key_of(self.cr)


@dataclass(frozen=True)
class Rendering:
    """The rendered service; nothing where it has a problem, or waits for a Model."""

    desired: DesiredService | None = None
    rendered: RenderedService | None = None
    notes: tuple[str, ...] = ()
    problem: Problem | None = None


def render_subject(
    subject: Subject, live: Live, *, options: RenderOptions, denies: Callable[[Json], bool] | None = None
) -> Rendering:
    """Parse and render a service. An error of the spec, or of a Model or config, becomes the problem.

    `denies` returns whether a mandatory policy denies a LoRAAdapter; with None, its status says so.
    """
    cr, key, look = subject.cr, subject.key, subject.look
    notes, problem = [*_waits_for(cr, live), *_left_to_upstream(subject, live)], None
    try:
        parsed = look.parse(cr)
    except ModelNotReady as error:
        why = f"{error.why} in namespace `{key.namespace}`"
        return Rendering(problem=Problem(reason=error.reason, message=why, field=error.field))
    except DesiredError as error:
        problem = _problem_of(error)
    for model in look.models_not_ready():
        if not subject.edited:
            return Rendering(notes=(f"Model `{model}` is not Ready; the loop changes nothing until it is",))
        notes.append(
            f"Model `{model}` has not been probed with this spec: the name of its file and the values of its header "
            f"may differ"
        )
    if problem is not None:
        return Rendering(notes=tuple(notes), problem=problem)
    try:
        desired = _without_denied_adapters(parsed.desired, subject, live, denies or is_denied, notes)
        if desired.host_placement is not None:
            desired = _place(_in_pool(desired, live), cr, live, notes)
        desired = _as_scaled(subject, desired, live)
        options = options.model_copy(update=_facts(subject, desired, live, options))
        rendered = _with_first_autoscaler(render(desired, options), desired, live, options, notes)
    except DesiredError as error:
        return Rendering(notes=tuple(notes), problem=_problem_of(error))
    unsupported = (*parsed.unsupported, *unsupported_by_cluster(desired, options))
    notes += [f"{each.field}: {each.message}" if each.field else each.message for each in unsupported]
    if desired.suspended and not rendered.objects:
        notes.append("the service is stopped: the loop creates nothing and deletes the running replicas")
    kept = _with_kept_templates(subject, rendered, live)
    if kept is None and not subject.edited:
        kept = _with_rollback(cr, rendered, live, notes)
    rendered = kept or rendered
    notes += kept_fields(rendered, live.objects(key))
    return Rendering(desired, rendered, tuple(notes))


def _problem_of(error: DesiredError) -> Problem:
    terminal = isinstance(error, SpecInvalid)
    return Problem(reason=error.reason, message=error.why, field=error.field, terminal=terminal)


def _waits_for(cr: Json, live: Live) -> Iterator[str]:
    """Yield the reasons why the loop does not make the previewed change now."""
    annotations, of_namespace = (
        cr["metadata"].get("annotations") or {},
        live.namespace_annotations(key_of(cr).namespace),
    )
    mode = annotations.get(ANNOTATION_MODE) or of_namespace.get(ANNOTATION_MODE) or "Apply"
    if mode == "Preview":
        yield "mode Preview: the loop applies the change after `herdsman approve` with its digest"
    elif mode == "Paused":
        yield "mode Paused: the loop changes nothing until the mode is changed"
    controller = controller_of(cr, of_namespace)
    if controller and controller != HERDSMAN:
        yield f"only a loop of class `{controller}` manages the service (annotation {ANNOTATION_CONTROLLER})"


def _left_to_upstream(subject: Subject, live: Live) -> Iterator[str]:
    """Note that the upstream controller has the service, or had it: the loop waits for `herdsman adopt`."""
    cr, key = subject.cr, subject.key
    if subject.edited or controller_of(cr, live.namespace_annotations(key.namespace)):
        return
    if held_by_upstream(cr, key.dialect):
        yield "the upstream controller manages the service, or did: no loop manages it before `herdsman adopt`"


def _facts(subject: Subject, desired: DesiredService, live: Live, options: RenderOptions) -> dict[str, Any]:
    """Return the options that the loop takes from its caches."""
    facts = {"installed": live.installed, "requests_autoscaled": _is_autoscaled(subject, desired, live, options)}
    if desired.workloads is not None:
        return facts
    deployment = live.deployment(desired.key)
    return {
        **facts,
        "claim_exists": live.claim_exists(desired.key, options.claim_mode),
        "scaled_elsewhere": scaled_elsewhere(desired, deployment),
        "asleep": _is_asleep(desired, deployment),
        "pool": pool_mark(deployment) if desired.by_requests is None else "",
    }


def _without_denied_adapters(
    desired: DesiredService, subject: Subject, live: Live, denies: Callable[[Json], bool], notes: list[str]
) -> DesiredService:
    """Leave out the adapters that a policy denies, as the loop does. Replicas that have such an adapter keep it."""
    look, key = subject.look, desired.key
    crs = {each.resource: look(kinds.LORA_ADAPTERS, key.namespace, each.resource) for each in desired.adapters}
    denied = [each for each in desired.adapters if (cr := crs[each.resource]) is not None and denies(cr)]
    if not denied:
        return desired
    from automation.cache import trim
    from automation.serving.adapters.planned_replicas import is_in_a_replica

    selector = selector_of(key.dialect, (key.name,))
    processes = live.processes(key).values() if desired.host_placement is not None else ()
    pods = [trim.pod(each) for each in look.selected(kinds.PODS, key.namespace, selector)]
    gone = [each for each in denied if not is_in_a_replica(each, processes, pods)]
    notes += [f"LoRAAdapter `{each.resource}` is left out, because a policy denies it" for each in gone]
    return desired.model_copy(update={"adapters": tuple(each for each in desired.adapters if each not in gone)})


def _is_autoscaled(subject: Subject, desired: DesiredService, live: Live, options: RenderOptions) -> bool:
    """Return whether an autoscaler follows the service's requests after the loop's next pass.

    It does while the service is awake and Herdsman serves the cluster's external metrics. A service that wakes gets it
    when its first replica is ready.
    """
    if desired.by_requests is None or desired.host_placement is not None:
        return False
    found = live.objects(desired.key).items()
    exists = any(name.kind == "HorizontalPodAutoscaler" and follows_requests(obj) for name, obj in found)
    if desired.by_requests.target is None or is_stopped(desired):
        return exists
    serves = live.serves_external_metrics(options.metrics_service)
    if serves is None or _is_waking(subject.cr):
        return exists
    return serves and bool(_live_replicas(desired, live))


def _with_first_autoscaler(
    rendered: RenderedService, desired: DesiredService, live: Live, options: RenderOptions, notes: list[str]
) -> RenderedService:
    """Add the autoscaler to a new service, which gets it in the pass after that of its first replicas."""
    rules = desired.by_requests
    if rules is None or rules.target is None or desired.host_placement is not None or is_stopped(desired):
        return rendered
    if _live_replicas(desired, live) is not None or not live.serves_external_metrics(options.metrics_service):
        return rendered
    known = {(each.kind, each.name) for each in rendered.objects}
    later = render(desired, options.model_copy(update={"requests_autoscaled": True})).objects
    added = tuple(each for each in later if (each.kind, each.name) not in known)
    notes += [f"{each.kind} {each.name} follows after the first replica exists" for each in added]
    *first, last = rendered.objects  # the last one runs the pods (`components.render`)
    return replace(rendered, objects=(*first, *added, last))


def _is_waking(cr: Json) -> bool:
    return bool(ready_condition(cr).get("reason") == Reason.WAKING)


def _live_replicas(desired: DesiredService, live: Live) -> int | None:
    """Return the number in the live set of serving pods; None if there is none."""
    name = naming.deployment_name(desired.key.name) if desired.workloads is None else desired.workloads.main.name
    sets = (obj for each, obj in live.objects(desired.key).items() if each.kind in _SETS and each.name == name)
    found = next((obj["spec"].get("replicas") for obj in sets), None)
    return None if found is None else int(found)


def _as_scaled(subject: Subject, desired: DesiredService, live: Live) -> DesiredService:
    """Return a service that is scaled by requests with the number of replicas that it has now."""
    if desired.by_requests is None or is_stopped(desired):
        return desired
    if desired.host_placement is not None:
        return with_replicas(desired, 0) if is_asleep(subject.cr) else desired
    found = _live_replicas(desired, live)
    return desired if found is None else with_replicas(desired, found)


def _place(desired: DesiredService, cr: Json, live: Live, notes: list[str]) -> DesiredService:
    """Place the replicas as the loop would now; running replicas keep their hosts."""
    from automation.hosts.host_contexts import context_notes
    from automation.hosts.hosted import without_agent

    registry = live.registry()
    created = str(cr["metadata"].get("creationTimestamp", ""))
    settled, decision = registry.place(desired, created=created, processes=live.processes(desired.key))
    notes += [f"{each.field}: {each.message}" for each in without_agent(registry, settled)]
    if decision is not None:
        notes += [f"{decision.refusals}"] if decision.refusals is not None else []
        notes += [decision.stuck] if decision.stuck else []
        notes += decision.moved
    notes += context_notes(settled, live.processes(desired.key))
    return settled


def _in_pool(desired: DesiredService, live: Live) -> DesiredService:
    """Return a service on hosts with its ModelPool as its model group, as the loop does."""
    from automation.serving.turns.host_groups import pool_of, with_group

    key = desired.key
    pool = pool_of(key.name, live.pools(key.namespace)) if key.dialect == LLMKUBE else None
    return desired if pool is None else with_group(desired, pool)


def _is_asleep(desired: DesiredService, deployment: Json | None) -> bool:
    """Return whether the loop has put the service to sleep, and no client has changed its replicas since."""
    if desired.host_placement is not None or deployment is None or is_stopped(desired):
        return False
    if desired.sleep is None and not pool_mark(deployment):
        return False
    mark = deployment["metadata"]["annotations"].get(naming.ANNOTATION_ASLEEP)
    return bool(mark == str(desired.replicas) and deployment["spec"]["replicas"] == 0)


def _with_kept_templates(subject: Subject, rendered: RenderedService, live: Live) -> RenderedService | None:
    """Return the service with the templates that it keeps since its adoption; None where it keeps none."""
    cr, key = subject.cr, subject.key
    if ANNOTATION_KEPT_TEMPLATE not in (cr["metadata"].get("annotations") or {}) and not subject.given:
        return None
    from automation.adoption.kept_templates import with_live_templates

    names = [ObjectName(each.kind, each.name) for each in rendered.objects]
    live.fetch(key, [name for name in names if name not in live.objects(key)])
    return with_live_templates(cr, rendered, live.objects(key))


def _with_rollback(cr: Json, rendered: RenderedService, live: Live, notes: list[str]) -> RenderedService | None:
    """Return the service with the template that served before a rollback; None where nothing was rolled back."""
    conditions = (cr.get("status") or {}).get("conditions") or ()
    if not any(each.get("type") == "RolledBack" and each.get("status") == "True" for each in conditions):
        return None
    from automation.serving.rollback import served_hash, template_of, with_template, written_rollback
    from automation.serving.rollout import rendered_template_hash

    rollback = written_rollback(cr, rendered_template_hash(rendered))
    template = template_of(live.replica_sets(rendered.key), served_hash(cr)) if rollback is not None else None
    if rollback is None or template is None:
        return None
    notes.append(f"rolled back: {rollback.message}")
    return with_template(rendered, template)
