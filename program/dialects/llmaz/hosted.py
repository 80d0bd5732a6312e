"""Builds the desired state of a Playground or Service on hosts, and lists the fields without effect there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kubeapi.json_types import Json
from program.desired.accelerators import count_of
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.keys import ServiceKey
from program.dialects.annotations import Annotated
from program.dialects.dialect import Parsed
from program.dialects.hosts.model import HostedModel
from program.dialects.hosts.service import HostedArgs, hosted_service, not_on_hosts
from program.dialects.llmaz.naming import ANNOTATION_SKIP_LOADER, ANNOTATION_WORKLOAD, RUNNER
from program.dialects.llmaz.parse.flavors import Choice
from program.dialects.llmaz.parse.models import Model
from program.dialects.llmaz.schema.playground import PlaygroundSpec
from program.dialects.llmaz.schema.service import ServiceSpec
from program.dialects.request_scaling import OwnScaler


def hosted_playground(
    cr: Json,
    key: ServiceKey,
    annotated: Annotated,
    spec: PlaygroundSpec,
    models: Sequence[Model],
    engine: str,
    choice: Choice,
    *,
    preset: Sequence[str],
    own: Sequence[str],
    scaler: OwnScaler | None,
    problems: Sequence[Problem],
) -> Parsed:
    """Return a Playground as processes. `preset` are its runtime's arguments, `own` those of the Playground, and
    `scaler` its autoscaler.
    """
    config: dict[str, Any] = (cr.get("spec") or {}).get("backendRuntimeConfig") or {}
    resources = config.get("resources") or {}
    memory = (resources.get("requests") or {}).get("memory") or (resources.get("limits") or {}).get("memory")
    unused = [f"spec.backendRuntimeConfig.{name}" for name in ("version", "sharedMemorySize") if config.get(name)]
    if spec.elastic_config is not None and not annotated.scale_by_requests:
        unused.append("spec.elasticConfig")
    return hosted_service(
        cr,
        key=key,
        annotated=annotated,
        model=_hosted(models[0]),
        draft=_hosted(models[1]) if len(models) > 1 else None,
        args=HostedArgs(engine=engine, preset=preset, own=own, field="spec.backendRuntimeConfig.args"),
        env=config.get("envs") or (),
        env_field="spec.backendRuntimeConfig.envs",
        replicas=spec.replicas,
        memory=str(memory) if memory else None,
        gpus=count_of(choice.limits),
        scaler=scaler,
        unsupported=(*problems, *not_on_hosts(unused), *_of_pods(cr, choice, models)),
    )


def hosted_pods(
    cr: Json,
    key: ServiceKey,
    annotated: Annotated,
    spec: ServiceSpec,
    models: Sequence[Model],
    engine: str,
    choice: Choice,
    template: Json,
    *,
    problems: Sequence[Problem],
) -> Parsed:
    """Return a Service as processes, with the arguments and variables of its serving container that a host supports."""
    if not models:
        raise SpecInvalid(field="spec.modelClaims", why="is missing; name the model that the host serves")
    if spec.workload_template.size > 1:
        raise SpecInvalid(
            field="spec.workloadTemplate.size",
            why="cannot run on hosts: a host serves with one process, not with a group of pods",
        )
    field = "spec.workloadTemplate.workerTemplate.spec.containers"
    containers = template["spec"]["containers"]
    index = next((n for n, each in enumerate(containers) if each["name"] == RUNNER), 0)
    runner = containers[index]
    resources = runner.get("resources") or {}
    memory = (resources.get("requests") or {}).get("memory") or (resources.get("limits") or {}).get("memory")
    others = [f"{field}[{n}]" for n in range(len(containers)) if n != index]
    return hosted_service(
        cr,
        key=key,
        annotated=annotated,
        model=_hosted(models[0]),
        draft=_hosted(models[1]) if len(models) > 1 else None,
        args=HostedArgs(engine=engine, own=runner.get("args") or (), field=f"{field}[{index}].args"),
        env=runner.get("env") or (),
        env_field=f"{field}[{index}].env",
        replicas=spec.replicas,
        memory=str(memory) if memory else None,
        gpus=count_of(choice.limits),
        unsupported=(*problems, *not_on_hosts(others), *_of_pods(cr, choice, models)),
    )


def _hosted(model: Model) -> HostedModel:
    """Return the address at which a host finds the model. Raises SpecInvalid for a store that hosts do not read."""
    source, field = model.source, model.claim.field
    match source.kind:
        case "hub":
            if source.hub != "Huggingface":
                raise SpecInvalid(field=field, why=f"OpenModel `{model.name}`: hosts do not fetch from {source.hub}")
            revision = f"@{source.revision}" if source.revision not in ("", "main") else ""
            address = f"hf://{source.address}{revision}"
        case "host":
            address = source.host_path
        case "s3" | "ollama":
            scheme, _, rest = source.address.partition("://")
            address = f"{scheme.lower()}://{rest}"
        case _:
            raise SpecInvalid(
                field=field,
                why=f"OpenModel `{model.name}`: hosts do not read `{source.address[:64]}`; name a "
                "repository of Hugging Face, an s3:// address or a path of the host",
            )
    return HostedModel(address=address, field=field, name=model.name, file=source.filename)


def _of_pods(cr: Json, choice: Choice, models: Sequence[Model]) -> Iterator[Problem]:
    annotations = cr["metadata"].get("annotations") or {}
    for name in (ANNOTATION_SKIP_LOADER, ANNOTATION_WORKLOAD):
        if annotations.get(name):
            yield from not_on_hosts([f"metadata.annotations[{name}]"])
    if any(flavor.node_selector for flavor in choice.flavors):
        yield unsupported_field(
            models[0].claim.field,
            "names a model with flavors, whose nodeSelector has no effect on hosts; choose hosts by annotation "
            "herdsman.dev/host-selector",
        )
