"""The workloads of a Playground or a Service of llmaz, and the desired state with them. Pure.

A replica of one pod is in a Deployment, while llmaz creates a LeaderWorkerSet. Names, pods and Services are the same,
and LeaderWorkerSet need not be installed. Groups of pods are LeaderWorkerSets; a service that asks for one gets one
too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired import keys
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem
from program.desired.keys import ServiceKey, owner_of
from program.desired.model import DesiredModel, ModelFormat, ModelSource, SourceKind
from program.desired.service import DesiredService
from program.desired.workloads import FrontService, PodGroup, PodSet, Scaler, ScaleTarget, Workloads
from program.dialects.annotations import Annotated, not_in_workloads, read_annotations
from program.dialects.dialect import Parsed
from program.dialects.llmaz.naming import (
    ANNOTATION_ACTIVATOR,
    ANNOTATION_WORKLOAD,
    LABEL_GROUP,
    LABEL_WORKER_INDEX,
    PORT,
    RUNNER,
    front_name,
)
from program.dialects.llmaz.parse.models import Model
from program.dialects.llmaz.schema.common import LONGEST_SERVICE, SERVICE_LABEL
from program.dialects.pods.engine import mode_of, served_name_of, settings_of, wants_check
from program.dialects.pods.gpus import gpu_of, ranks_problem
from program.dialects.request_scaling import OwnScaler, request_scaling, without_effect

MAIN = "main"
ONE_AT_A_TIME = {"maxUnavailable": 1, "maxSurge": 0}
"""How llmaz replaces pods: accelerators are scarce, so a rollout requests no additional ones."""

_NEEDS_GROUP = re.compile(r"LWS_|leaderworkerset\.sigs\.k8s\.io/")
"""Variables and labels that only a LeaderWorkerSet adds to its pods."""


def key_of(cr: Json, dialect: str) -> ServiceKey:
    """Return the key of a custom resource. Raises SpecInvalid for a name that cannot be part of a Service's name."""
    metadata = cr["metadata"]
    name = str(metadata["name"])
    if len(name) > LONGEST_SERVICE or re.fullmatch(SERVICE_LABEL, name) is None:
        raise SpecInvalid(
            field="metadata.name",
            why=f"`{name[:64]}` cannot be part of the name of Service `{front_name('<name>')}`: it must begin with a "
            f"letter, consist of lower-case letters, digits and `-`, and have at most {LONGEST_SERVICE} characters",
        )
    return ServiceKey(dialect, str(metadata.get("namespace") or "default"), name)


def workload_asked(annotations: Mapping[str, str]) -> Literal["", "Deployment", "LeaderWorkerSet"]:
    """Return the kind that the annotation asks for; empty if it asks for none."""
    match annotations.get(ANNOTATION_WORKLOAD, ""):
        case "":
            return ""
        case "Deployment":
            return "Deployment"
        case "LeaderWorkerSet":
            return "LeaderWorkerSet"
        case other:
            raise SpecInvalid(
                field=f"metadata.annotations[{ANNOTATION_WORKLOAD}]",
                why=f"`{other[:64]}` is neither Deployment nor LeaderWorkerSet",
            )


def mentions_group(*templates: Json | None) -> bool:
    """Return whether pods read variables and labels of their group, which only a LeaderWorkerSet provides."""
    return any(_NEEDS_GROUP.search(str(template)) for template in templates if template is not None)


def workloads(
    key: ServiceKey,
    models: tuple[Model, ...],
    *,
    template: Json,
    counted: Json,
    labels: dict[str, str],
    replicas: int,
    fetched: bool,
    group: PodGroup | None = None,
    rollout: Mapping[str, Any] = ONE_AT_A_TIME,
    scaler: Scaler | None = None,
) -> Workloads:
    """Return the workloads: one set of pods, or of groups of pods, and a Service in front of it.

    In a group, `template` is the worker's. `counted` is the template that hashes are computed from. `labels` are
    Herdsman's, by which it finds the objects and pods.
    """
    if group is None:
        selector = labels
        strategy: Json | None = {"type": "RollingUpdate", "rollingUpdate": dict(rollout)}
    else:
        selector = {LABEL_GROUP: key.name, LABEL_WORKER_INDEX: "0"}
        strategy = None
    serving = template if group is None or group.leader is None else group.leader
    front = FrontService(
        part=MAIN,
        name=front_name(key.name),
        labels=labels,
        annotations={ANNOTATION_ACTIVATOR: models[0].name} if models else {},
        selector=selector,
        ports=({"name": "http", "protocol": "TCP", "port": PORT, "targetPort": port_of(serving)},),
    )
    pods = PodSet(
        part=MAIN,
        name=key.name,
        labels=labels,
        selector=selector,
        template=template,
        counted=counted,
        replicas=replicas,
        strategy=strategy,
        group=group,
        scaler=scaler,
    )
    return Workloads(
        pods=(pods,),
        services=(front,),
        artifacts=tuple(model.artifact(fetched=fetched and model.source.loader is not None) for model in models),
    )


def desired_service(
    cr: Json,
    key: ServiceKey,
    models: tuple[Model, ...],
    engine: str,
    described: Workloads,
    *,
    own_scaler: OwnScaler | None = None,
    problems: Iterable[Problem] = (),
) -> Parsed:
    """Return the desired state with these workloads and the service's annotations.

    `own_scaler` is the autoscaler that the service describes, whose bounds hold for a scaling by requests.
    """
    metadata = cr["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    annotated: Annotated = read_annotations(annotations)
    main = described.main
    assert main.replicas is not None
    serving = main.template if main.group is None or main.group.leader is None else main.group.leader
    runner: Json = next((each for each in serving["spec"]["containers"] if each["name"] == RUNNER), {})
    mode = mode_of(engine, runner)
    desired = DesiredService(
        key=key,
        owner=owner_of(cr),
        generation=int(metadata.get("generation") or 0),
        model=_model(key, models),
        engine=settings_of(engine),
        replicas=main.replicas,
        container_port=port_of(serving),
        gpu=gpu_of(main),
        workloads=described,
        mode=mode or "chat",
        sleep=annotated.sleep if annotated.scale_by_requests else None,
        by_requests=request_scaling(annotations, annotated, replicas=main.replicas, own=own_scaler),
        served_name=served_name_of(engine, runner),
        completion_check=wants_check(annotations, engine, described, mode, annotated=annotated.completion_check),
        drift=annotated.drift,
        adopt=annotations.get(keys.ANNOTATION_ADOPT) == "true",
    )
    return Parsed(
        desired,
        tuple(dict.fromkeys((*problems, *_unused(annotations, own_scaler, desired), *_ranks(main, engine)))),
        node_paths=tuple((m.claim.field, m.source.host_path) for m in models if m.source.kind == "host"),
    )


def _unused(annotations: Mapping[str, str], own: OwnScaler | None, desired: DesiredService) -> Iterator[Problem]:
    yield from not_in_workloads(annotations)
    yield from without_effect(own, desired.by_requests)


def _ranks(pods: PodSet, engine: str) -> Iterator[Problem]:
    """Yield the problem that the arguments' ranks do not match the GPUs of a pod."""
    found = ranks_problem(pods, engine, RUNNER, field="spec.backendRuntimeConfig.args")
    if found is not None:
        yield found


def scale_target(kind: Kind, name: str) -> ScaleTarget:
    """Return the scale subresource of a custom resource as an autoscaler's target."""
    return ScaleTarget(api_version=kind.api_version, kind=kind.kind, name=name)


def port_of(template: Json) -> int:
    """Return the port of a template's server: the one named http, else its first, else llmaz's default."""
    containers = template["spec"]["containers"]
    ordered = sorted(containers, key=lambda container: container["name"] != RUNNER)
    ports = [port for container in ordered for port in container.get("ports") or ()]
    chosen = next((port for port in ports if port.get("name") == "http"), ports[0] if ports else None)
    return int(chosen["containerPort"]) if chosen is not None else PORT


def _model(key: ServiceKey, models: tuple[Model, ...]) -> DesiredModel:
    """Return the main model for status and previews. Only the service's own pods fetch it."""
    if not models:
        return DesiredModel(
            name=key.name, source=ModelSource(kind=SourceKind.OTHER, address=""), format=ModelFormat.CUSTOM
        )
    main = models[0]
    source = ModelSource(kind=SourceKind.OTHER, address=main.source.address, revision=main.source.revision)
    is_gguf = ".gguf" in main.source.path or main.source.kind == "ollama"
    return DesiredModel(
        name=main.served_as, source=source, format=ModelFormat.GGUF if is_gguf else ModelFormat.SAFETENSORS
    )
