"""Parse a service and render its objects, or return the problem that prevents it.

Reads the caches of `cluster_cache` and renders by `components.render`. Writes nothing to the cluster. `HostAllocations`
reserves a host for each replica that it places.
"""

from __future__ import annotations

from dataclasses import dataclass

from automation.approval.modes import Mode, mode_of
from automation.cache.cluster_cache import ClusterCache
from automation.hosts.host_allocations import PlacementDecision
from automation.hosts.hosted import without_agent
from automation.reconcile.node_paths import check_node_paths
from automation.reconcile.observe import Observed, scaled_elsewhere
from automation.serving.sleep import Sleep
from automation.serving.sleep_rule import State, asleep_mark, hosted_sleep
from components import naming
from components.extensions import unsupported_by_cluster
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.errors import DesiredError, NotYet, SpecInvalid
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.desired.model import DesiredModel, SourceKind
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import draft_reference, parse_service, unsupported_fields
from program.dialects.llmkube.status.model import failure_of, known_status
from program.dialects.status.conditions import Reason

DRAFT_RECHECK_S = 300.0


@dataclass(frozen=True)
class Desired:
    """The desired state of a service. Empty while its Model is missing or not Ready."""

    service: DesiredService | None = None
    rendered: RenderedService | None = None
    hosts: PlacementDecision | None = None
    """Where its replicas run; None in pods."""
    mode: Mode = "Apply"
    """Whether changes are made, wait for approval, or are not made at all."""
    sleep: State = ""
    """Nobody uses it, and it is rendered without replicas; or it starts again."""
    problem: Problem | None = None
    unsupported: tuple[Problem, ...] = ()
    retry_after_s: float | None = None


def desire(
    cluster: ClusterCache,
    key: ServiceKey,
    cr: Json,
    model_cr: Json | None,
    observed: Observed,
    *,
    options: RenderOptions,
    sleep: Sleep | None = None,
) -> Desired:
    """Parse the service with its model and render it; an expected error becomes the problem that the status names."""
    try:
        _check_name(cluster, key, cr)
        mode = mode_of(cr, cluster.namespace_annotations(key.namespace))
        if model_cr is None or not model_is_ready(model_cr):
            # The status has its own words for either (LLMKube's), and a change of the Model enqueues the service.
            return Desired()
        draft = _draft(cluster, key, cr)
        parsed = parse_service(cr, model_of(model_cr), draft=draft)
        check_node_paths(_node_paths(parsed), options.node_path_roots)
        service, hosts = cluster.registry.place(parsed, created=str(cr["metadata"].get("creationTimestamp", "")))
        claim_exists = observed.claim_exists if options.claim_mode == "shared" else _has_own_claim(cluster, key)
        own = {"claim_exists": claim_exists, "scaled_elsewhere": scaled_elsewhere(service, observed)}
        sleeps: State = ""
        if mode != "Apply":
            # It stays asleep, or awake, as it is.
            sleeps = "asleep" if asleep_mark(observed.deployment) is not None else ""
        elif sleep is not None:
            sleeps = sleep.state(key, service, observed)
        sleeps = sleeps or hosted_sleep(service, observed)
        rendered = render(service, options.model_copy(update={**own, "asleep": sleeps == "asleep"}))
        unsupported = (
            *unsupported_fields(cr, service),
            *unsupported_by_cluster(service, options),
            *without_agent(cluster.registry, service),
        )
        if sleep is not None:
            unsupported = (*unsupported, *sleep.unsupported(service))
        retry_after_s = hosts.retry_after_s if hosts is not None else None
        return Desired(
            service,
            rendered,
            hosts=hosts,
            mode=mode,
            sleep=sleeps,
            unsupported=unsupported,
            retry_after_s=retry_after_s,
        )
    except SpecInvalid as error:
        return Desired(problem=problem_of(error, terminal=True))
    except NotYet as error:
        return Desired(problem=problem_of(error, terminal=False), retry_after_s=error.retry_after_s)


def _node_paths(service: DesiredService) -> tuple[tuple[str, str], ...]:
    """Name the files of nodes that pods read. A host has rules of its own (`agent run --allowed-host-path-roots`)."""
    if service.host_placement is not None:
        return ()
    models = [each for each in (service.model, service.draft) if each is not None]
    files = [each for each in models if each.source.kind is SourceKind.FILE]
    return tuple((f"Model/{each.name} spec.source", each.source.path) for each in files)


def model_is_ready(model_cr: Json) -> bool:
    """Tell whether a Model's status says Ready of the source that its spec names now.

    After an edit of the source the status speaks of the one before for a moment. Rendered then, the new file would get
    the name that stands for one not known, and a second rollout would follow the first, each with a download.
    """
    return bool(known_status(model_cr).get("phase") == "Ready")


def _has_own_claim(cluster: ClusterCache, key: ServiceKey) -> bool:
    claim = cluster.claims.get(key.namespace, naming.cache_claim(key.name, "perService"))
    return claim is not None and not claim["metadata"]["deleting"]


def _draft(cluster: ClusterCache, key: ServiceKey, cr: Json) -> DesiredModel | None:
    """Resolve the draft Model. One that is not Ready holds the service as its main Model does; a missing one is told by
    the parser, which knows whether the engine uses it."""
    name = draft_reference(cr)
    if not name or name == cr["spec"].get("modelRef"):
        return None
    found = cluster.models.get(key.namespace, name)
    if found is None:
        return None
    if not model_is_ready(found):
        # A change of the Model enqueues the service.
        if failed := failure_of(found):
            why = f"draft Model `{name}` is not Ready, it failed: {failed}"
            raise SpecInvalid(field="", reason=Reason.MODEL_NOT_READY, why=why)
        why = f"draft Model `{name}` is not Ready yet"
        raise NotYet(reason=Reason.MODEL_NOT_READY, why=why, retry_after_s=DRAFT_RECHECK_S)
    return model_of(found)


def _check_name(cluster: ClusterCache, key: ServiceKey, cr: Json) -> None:
    """Refuse a name whose Kubernetes Service would be another's (`a.b` and `a-b`).

    Who has it keeps it; while nobody has, the older service comes first, by a clock of whole seconds.
    """
    if _has_service(cluster, key.namespace, key.name):
        return
    for rival in cluster.index.rivals(key.namespace, key.name):
        other = cluster.services.get(key.namespace, rival)
        if other is None:
            continue
        if _has_service(cluster, key.namespace, rival) or _age_key(other) < _age_key(cr):
            raise SpecInvalid(
                field="metadata.name",
                reason="NameTaken",
                why=f"`{key.name}` needs the Service `{naming.service_name(key.name)}`, which belongs to "
                f"InferenceService `{rival}`; choose a name that differs by more than `.` and `-`",
            )


def _has_service(cluster: ClusterCache, namespace: str, name: str) -> bool:
    return ("Service", naming.service_name(name)) in cluster.index.objects(namespace, name)


def problem_of(error: DesiredError, *, terminal: bool) -> Problem:
    """Make an expected error the problem that a status names."""
    return Problem(reason=error.reason, message=error.why, field=error.field, terminal=terminal)


def _age_key(cr: Json) -> tuple[str, str]:
    return cr["metadata"].get("creationTimestamp", ""), cr["metadata"]["name"]
