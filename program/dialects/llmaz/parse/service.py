"""Parses a Service of llmaz into desired state: the user's pods, or groups of a leader and workers. Pure.

Models are fetched into the pods; flavors and labels are added. The user's arguments are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.keys import LABEL_LLMAZ_SERVICE
from program.desired.workloads import PodGroup
from program.dialects.annotations import read_annotations
from program.dialects.crds.reading import check_shape, read, unknown_fields, without_nulls
from program.dialects.dialect import Lookup, Parsed
from program.dialects.hosts.service import on_host
from program.dialects.llmaz.hosted import hosted_pods
from program.dialects.llmaz.naming import ANNOTATION_SKIP_LOADER, RUNNER
from program.dialects.llmaz.parse import workloads
from program.dialects.llmaz.parse.flavors import Choice, choose, lost_of
from program.dialects.llmaz.parse.models import Model, claims_of, find_models
from program.dialects.llmaz.parse.pods import PodPlan, completed, counted, unlabelled
from program.dialects.llmaz.schema.service import RolloutStrategy, ServiceSpec
from program.dialects.llmaz.settings import global_config
from program.dialects.pods.engine import argv_of, engine_in
from program.dialects.pods.fields import POD_SPEC, check_fields
from program.dialects.status.conditions import Reason

_TEMPLATE = "spec.workloadTemplate"


def parse_service(cr: Json, look: Lookup) -> Parsed:
    """Parse a Service with its models. Raises SpecInvalid with the field, NotYet for a model that may be created."""
    check_shape(cr)
    raw: dict[str, Any] = without_nulls(cr.get("spec") or {})
    spec = read(ServiceSpec, raw, field="spec")
    key = workloads.key_of(cr, "llmaz-service")
    _check_not_derived(cr)
    written = raw["workloadTemplate"]
    worker, leader = written["workerTemplate"], written.get("leaderTemplate")
    check_fields(worker["spec"], POD_SPEC, field=f"{_TEMPLATE}.workerTemplate.spec")
    if leader is not None:
        check_fields(leader["spec"], POD_SPEC, field=f"{_TEMPLATE}.leaderTemplate.spec")
    if not any(container["name"] == RUNNER for container in worker["spec"]["containers"]):
        raise SpecInvalid(
            field=f"{_TEMPLATE}.workerTemplate.spec.containers",
            why=f"has no container named `{RUNNER}`; give this name to the container that serves",
        )
    models, choice = _models(spec, look)
    annotations: Mapping[str, str] = cr["metadata"].get("annotations") or {}
    annotated = read_annotations(annotations)
    single = leader if leader is not None else worker
    engine = _engine_of(single)
    unknown = tuple(
        unsupported_field(path, "is not a field of a Service") for path, _ in unknown_fields(spec, field="spec")
    )
    if on_host(annotated):
        return hosted_pods(cr, key, annotated, spec, models, engine, choice, single, problems=unknown)
    settings = global_config(look)
    labels = {LABEL_LLMAZ_SERVICE: key.name}
    fetched = annotations.get(ANNOTATION_SKIP_LOADER) != "true"
    plan = PodPlan(models, choice, labels, settings, fetched)
    group = _group(spec, written, annotations, leader, plan)
    template = worker if group is not None else single
    described = workloads.workloads(
        key,
        models,
        template=completed(template, plan),
        counted=counted(template, plan),
        labels=labels,
        replicas=spec.replicas,
        fetched=fetched,
        group=group,
        rollout=_pace(spec.rollout_strategy),
    )
    problems = (
        *unknown,
        *_lost(models, choice, worker, leader),
        *(_of_groups(spec) if group is None else ()),
        *unlabelled(plan),
        *settings.problems,
    )
    return workloads.desired_service(cr, key, models, engine, described, problems=problems)


def _check_not_derived(cr: Json) -> None:
    """Refuse a Service that llmaz's controller created for a Playground: Herdsman renders the Playground itself."""
    for owner in cr["metadata"].get("ownerReferences") or ():
        if owner.get("kind") == kinds.PLAYGROUNDS.kind and owner.get("controller"):
            raise SpecInvalid(
                reason=Reason.FOREIGN_OBJECT,
                field="metadata.ownerReferences",
                why=f"llmaz's controller made this Service for Playground `{owner.get('name')}`; Herdsman serves the "
                f"Playground without it",
            )


def _models(spec: ServiceSpec, look: Lookup) -> tuple[tuple[Model, ...], Choice]:
    if spec.model_claims is None:
        return (), Choice()
    claims, flavors, field = claims_of(None, spec.model_claims)
    models = find_models(claims, look)
    return models, choose(models[0], flavors, field=field)


def _engine_of(template: Json) -> str:
    runner = next((each for each in template["spec"]["containers"] if each["name"] == RUNNER), None)
    if runner is None:
        return ""
    return engine_in([*argv_of(runner), str(runner.get("image") or "")])


def _group(
    spec: ServiceSpec, written: Json, annotations: Mapping[str, str], leader: Json | None, plan: PodPlan
) -> PodGroup | None:
    """Return the group; None if a replica is one pod that reads nothing that only a LeaderWorkerSet provides."""
    template = spec.workload_template
    asked = workloads.workload_asked(annotations)
    rollout = spec.rollout_strategy.rolling_update_configuration if spec.rollout_strategy is not None else None
    if template.size > 1 and asked == "Deployment":
        raise SpecInvalid(
            field=f"{_TEMPLATE}.size", why=f"{template.size} pods in a group need a LeaderWorkerSet, not a Deployment"
        )
    needed = (
        template.size > 1
        or template.sub_group_policy is not None
        or bool(rollout is not None and rollout.partition)
        or workloads.mentions_group(written["workerTemplate"], written.get("leaderTemplate"))
    )
    if asked == "Deployment" or not (needed or asked):
        return None
    return PodGroup(
        size=template.size,
        leader=completed(leader, plan) if leader is not None else None,
        counted_leader=counted(leader, plan) if leader is not None else None,
        restart_policy=template.restart_policy,
        startup_policy="LeaderReady",
        sub_group_policy=written.get("subGroupPolicy"),
        rollout={
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {
                **_pace(spec.rollout_strategy),
                **({"partition": rollout.partition} if rollout is not None and rollout.partition else {}),
            },
        },
    )


def _pace(strategy: RolloutStrategy | None) -> dict[str, Any]:
    """Return the limits of a rollout."""
    said = strategy.rolling_update_configuration if strategy is not None else None
    if said is None:
        return dict(workloads.ONE_AT_A_TIME)
    return {"maxUnavailable": said.max_unavailable, "maxSurge": said.max_surge}


def _of_groups(spec: ServiceSpec) -> Iterator[Problem]:
    """Yield the fields that only groups have, for a service that asks for a Deployment."""
    rollout = spec.rollout_strategy.rolling_update_configuration if spec.rollout_strategy is not None else None
    for field, value in (
        (f"{_TEMPLATE}.subGroupPolicy", spec.workload_template.sub_group_policy),
        ("spec.rolloutStrategy.rollingUpdateConfiguration.partition", rollout.partition if rollout else None),
    ):
        if value:
            yield unsupported_field(field, "has no effect on a Deployment")


def _lost(models: tuple[Model, ...], choice: Choice, worker: Json, leader: Json | None) -> Iterator[Problem]:
    if not models:
        return
    words = [
        word
        for template in (worker, leader)
        if template is not None
        for container in template["spec"]["containers"]
        for word in argv_of(container)
    ]
    yield from lost_of(models[0], choice, words)
