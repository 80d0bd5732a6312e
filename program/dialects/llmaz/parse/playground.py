"""Parses a Playground, which is a model on an engine, into desired state. Pure.

llmaz creates a Service for each Playground. Herdsman renders a Playground's objects directly, because only llmaz's own
controller reads that Service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import NotYet, SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.keys import LABEL_PLAYGROUND, ServiceKey
from program.desired.workloads import PodGroup, Scaler
from program.dialects.annotations import read_annotations
from program.dialects.crds.reading import check_shape, read, unknown_fields, without_nulls
from program.dialects.dialect import Lookup, Parsed
from program.dialects.hosts.service import on_host
from program.dialects.llmaz.hosted import hosted_playground
from program.dialects.llmaz.naming import (
    ANNOTATION_SKIP_LOADER,
    PORT,
    RUNNER,
    SHARED_MEMORY,
)
from program.dialects.llmaz.parse import workloads
from program.dialects.llmaz.parse.flavors import choose, lost_of
from program.dialects.llmaz.parse.models import Model, claims_of, find_models
from program.dialects.llmaz.parse.pods import PodPlan, completed, counted, unlabelled
from program.dialects.llmaz.parse.runtimes import (
    DEFAULT_CONFIG,
    SPECULATIVE_CONFIG,
    Runtime,
    fill,
    find_runtime,
    image_of,
    limit_below_request,
    merged_env,
    merged_resources,
    unfilled,
    variables_of,
)
from program.dialects.llmaz.schema.playground import PlaygroundSpec
from program.dialects.llmaz.settings import global_config
from program.dialects.request_scaling import OwnScaler
from program.dialects.status.conditions import Reason

GRACE_S = 130
"""Seconds in which a pod may finish its requests."""
_DEFAULT_BACKEND = "vllm"


def parse_playground(cr: Json, look: Lookup) -> Parsed:
    """Parse a Playground with its models and its runtime.

    Raises SpecInvalid with the field; NotYet for a model or runtime that may be created, and for a name that is taken.
    """
    check_shape(cr)
    raw: dict[str, Any] = without_nulls(cr.get("spec") or {})
    spec = read(PlaygroundSpec, raw, field="spec")
    key = workloads.key_of(cr, "llmaz")
    _check(spec, raw)
    _check_free(cr, key, look)
    claims, flavors, field = claims_of(spec.model_claim, spec.model_claims)
    models = find_models(claims, look)
    config = raw.get("backendRuntimeConfig") or {}
    runtime = find_runtime(config.get("backendName") or _DEFAULT_BACKEND, look)
    chosen = _recommended(runtime, config, models)
    choice = choose(models[0], flavors, field=field)
    annotations: Mapping[str, str] = cr["metadata"].get("annotations") or {}
    annotated = read_annotations(annotations)
    fetched = annotations.get(ANNOTATION_SKIP_LOADER) != "true"
    variables = variables_of(models, choice.params, fetched=fetched)
    recommended = chosen.get("args") or []
    args = fill(recommended, variables, field=f"BackendRuntime `{runtime.name}` args of `{chosen['name']}`")
    own = [str(argument) for argument in config.get("args") or []]  # unchanged, as in llmaz
    unknown = (
        *(unsupported_field(path, "is not a field of a Playground") for path, _ in unknown_fields(spec, field="spec")),
        *unfilled(own, variables, field="spec.backendRuntimeConfig.args"),
    )
    own_scaler = _own_scaler(raw, chosen)
    if on_host(annotated):
        return hosted_playground(
            cr,
            key,
            annotated,
            spec,
            models,
            runtime.engine,
            choice,
            preset=args,
            own=own,
            scaler=own_scaler,
            problems=unknown,
        )
    settings = global_config(look)
    labels = {LABEL_PLAYGROUND: key.name}
    plan = PodPlan(models, choice, labels, settings, fetched)
    group = _group(annotations)
    # The requests at the gateways scale in place of an autoscaler, in its bounds.
    by_requests = annotated.scale_by_requests
    scaler, unscaled = (None, ()) if by_requests else _scaler(key, raw, chosen, labels)
    template = _template(runtime, config, chosen, [*args, *own])
    described = workloads.workloads(
        key,
        models,
        template=completed(template, plan),
        counted=counted(template, plan),
        labels=labels,
        replicas=_first_replicas(spec.replicas, own_scaler) if by_requests else spec.replicas,
        fetched=fetched,
        group=group,
        scaler=scaler,
    )
    problems = (
        *unknown,
        *unscaled,
        *lost_of(models[0], choice, [*recommended, *(config.get("args") or [])]),
        *unlabelled(plan),
        *settings.problems,
    )
    return workloads.desired_service(
        cr, key, models, runtime.engine, described, own_scaler=own_scaler, problems=problems
    )


def main_model(spec: Any) -> str:
    """Return the main model of an object as it is written, even if it is invalid; empty if it names none."""
    if not isinstance(spec, dict):
        return ""
    claim = spec.get("modelClaim")
    if isinstance(claim, dict):
        return str(claim.get("modelName") or "")
    claims = spec.get("modelClaims")
    models = claims.get("models") if isinstance(claims, dict) else None
    mains = [
        str(model.get("name") or "")
        for model in (models if isinstance(models, list) else ())
        if isinstance(model, dict) and model.get("role") in (None, "main")
    ]
    return mains[-1] if mains else ""


def _check(spec: PlaygroundSpec, raw: Mapping[str, Any]) -> None:
    """Make the checks of llmaz's webhook, because the object may have been stored without it, or come from a file."""
    resources = (raw.get("backendRuntimeConfig") or {}).get("resources") or {}
    short = limit_below_request(resources)
    if short:
        raise SpecInvalid(
            field=f"spec.backendRuntimeConfig.resources.limits.{short}",
            why=f"`{resources['limits'][short]}` is less than the request, `{resources['requests'][short]}`",
        )
    elastic = spec.elastic_config
    if elastic is not None and elastic.min_replicas > elastic.max_replicas:
        raise SpecInvalid(
            field="spec.elasticConfig.minReplicas",
            why=f"{elastic.min_replicas} is more than maxReplicas, {elastic.max_replicas}",
        )


def _check_free(cr: Json, key: ServiceKey, look: Lookup) -> None:
    """Raise NotYet if an independent Service of llmaz has the same name: both would have the same objects."""
    found = look(kinds.LLMAZ_SERVICES, key.namespace, key.name)
    if found is None:
        return
    owners = found["metadata"].get("ownerReferences") or ()
    uid = cr["metadata"].get("uid")
    mine = any(
        owner.get("kind") == kinds.PLAYGROUNDS.kind
        and owner.get("name") == key.name
        and (not uid or owner.get("uid") in (None, uid))
        for owner in owners
    )
    if not mine:
        raise NotYet(
            reason=Reason.FOREIGN_OBJECT,
            field="metadata.name",
            why=f"Service.inference.llmaz.io `{key.name}` has the same name, so its objects would have the same "
            f"names too; rename or delete one of the two",
        )


def _recommended(runtime: Runtime, config: Mapping[str, Any], models: tuple[Model, ...]) -> Json:
    named = config.get("configName")
    if named:
        return runtime.config(str(named), chosen=True)
    return runtime.config(SPECULATIVE_CONFIG if len(models) > 1 else DEFAULT_CONFIG, chosen=False)


def _template(runtime: Runtime, config: Mapping[str, Any], chosen: Json, args: list[str]) -> Json:
    """Return the pod of an engine: its BackendRuntime, overridden by the Playground."""
    spec = runtime.spec
    env = merged_env(spec.get("envs") or (), config.get("envs") or ())
    resources = merged_resources(config.get("resources") or {}, chosen.get("resources") or {})
    container: Json = {
        "name": RUNNER,
        "image": image_of(spec["image"], config.get("version") or spec["version"]),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
    }
    for field, value in (
        ("command", spec.get("command")),
        ("args", args),
        ("env", env),
        ("resources", resources),
        ("lifecycle", spec.get("lifecycle")),
        ("livenessProbe", spec.get("livenessProbe")),
        ("readinessProbe", spec.get("readinessProbe")),
        ("startupProbe", spec.get("startupProbe")),
    ):
        if value:
            container[field] = value
    pod: Json = {"terminationGracePeriodSeconds": GRACE_S, "containers": [container]}
    shared = config.get("sharedMemorySize") or chosen.get("sharedMemorySize")
    if shared:
        container["volumeMounts"] = [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}]  # noqa: S108 - engines use this path
        pod["volumes"] = [{"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": str(shared)}}]
    return {"spec": pod}


def _group(annotations: Mapping[str, str]) -> PodGroup | None:
    if workloads.workload_asked(annotations) != "LeaderWorkerSet":
        return None
    return PodGroup(
        size=1,
        restart_policy="RecreateGroupOnPodRestart",
        startup_policy="LeaderReady",
        rollout={"type": "RollingUpdate", "rollingUpdateConfiguration": dict(workloads.ONE_AT_A_TIME)},
    )


def _scaler(
    key: ServiceKey, raw: Mapping[str, Any], chosen: Json, labels: dict[str, str]
) -> tuple[Scaler | None, tuple[Problem, ...]]:
    """Return the autoscaler. Its trigger is the Playground's, else that of the recommended config."""
    elastic = raw.get("elasticConfig")
    if elastic is None:
        return None, ()
    trigger = (elastic.get("scaleTrigger") or chosen.get("scaleTrigger") or {}).get("hpa")
    if trigger is None:
        return None, tuple(_without_trigger(chosen))
    spec = {
        "minReplicas": elastic.get("minReplicas", 1),
        "maxReplicas": elastic["maxReplicas"],
        **{name: trigger[name] for name in ("metrics", "behavior") if trigger.get(name)},
    }
    target = workloads.scale_target(kinds.PLAYGROUNDS, key.name)
    scaler = Scaler(
        part=workloads.MAIN, kind="HorizontalPodAutoscaler", name=key.name, labels=labels, spec=spec, target=target
    )
    return scaler, ()


def _own_scaler(raw: Mapping[str, Any], chosen: Json) -> OwnScaler | None:
    """Return the bounds and the speed of the Playground's autoscaler, for a scaling by requests.

    Metrics of the recommended config are those of its runtime, and the requests replace them. Metrics of the Playground
    are the user's own choice.
    """
    elastic = raw.get("elasticConfig")
    if elastic is None:
        return None
    own = (elastic.get("scaleTrigger") or {}).get("hpa") or {}
    preset = (chosen.get("scaleTrigger") or {}).get("hpa") or {}
    field = "spec.elasticConfig.scaleTrigger.hpa"
    return OwnScaler(
        field="spec.elasticConfig",
        min_replicas=int(elastic.get("minReplicas", 1)),
        max_replicas=int(elastic["maxReplicas"]),
        metrics_field=f"{field}.metrics" if own.get("metrics") else "",
        behavior=(own if elastic.get("scaleTrigger") else preset).get("behavior") or None,
        behavior_field=f"{field}.behavior",
    )


def _first_replicas(replicas: int, own: OwnScaler | None) -> int:
    """Return the number of replicas of a service that the requests scale; 0 stops it."""
    return replicas if own is None or not replicas else min(max(replicas, own.min_replicas), own.max_replicas)


def _without_trigger(chosen: Json) -> Iterator[Problem]:
    yield unsupported_field(
        "spec.elasticConfig",
        f"has no effect: neither elasticConfig nor recommended config `{chosen['name']}` has a scaleTrigger",
    )
