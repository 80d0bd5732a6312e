"""Builds the desired state of a service of KServe or llmaz that runs on hosts. Pure.

llama.cpp, oMLX, Ollama or vLLM serves the model as a process. The result has engine, model and placement, and no pods,
like that of LLMKube's dialect. Fields without an effect on a process are returned as problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kubeapi.json_types import Json
from program.desired import keys
from program.desired.engines import EngineSettings
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.keys import ServiceKey, owner_of
from program.desired.model import DesiredModel, Gpu, ModelFormat
from program.desired.service import DesiredService, Endpoint, PodSettings, Written
from program.dialects.annotations import POD_ONLY_ANNOTATIONS, Annotated, lost_name
from program.dialects.dialect import Parsed
from program.dialects.hosts.arguments import translate_arguments
from program.dialects.hosts.env import hosted_env, lost_env
from program.dialects.hosts.model import HostedModel, accelerator_of, engine_of, model_of
from program.dialects.request_scaling import OwnScaler, request_scaling, without_effect

NOT_ON_HOSTS = "has no effect on a host, where the service runs as a process"
_PORTS = {"kserve": 8000}


@dataclass(frozen=True, kw_only=True)
class HostedArgs:
    """The arguments that the engine of the dialect's own pod would get."""

    engine: str = ""
    """The engine of the arguments: the `kind` of an engine's settings; empty if it is unknown."""
    preset: Sequence[str] = ()
    """Arguments of a preset or runtime. They are used only if the same engine serves on the host."""
    own: Sequence[str] = ()
    """The user's arguments. Each argument is used or reported."""
    field: str = "spec"
    """Path of the list with the user's arguments."""


def on_host(annotated: Annotated) -> bool:
    """Return whether annotations place a service on hosts: `herdsman.dev/host` or `herdsman.dev/host-selector`."""
    return annotated.hosting.pinned or bool(annotated.hosting.selector)


def hosted_service(
    cr: Json,
    *,
    key: ServiceKey,
    annotated: Annotated,
    model: HostedModel,
    draft: HostedModel | None = None,
    args: HostedArgs = HostedArgs(),
    env: Iterable[Json] = (),
    env_field: str = "spec.env",
    replicas: int = 1,
    memory: str | None = None,
    gpus: int = 0,
    scaler: OwnScaler | None = None,
    unsupported: Iterable[Problem] = (),
) -> Parsed:
    """Return the service as processes on hosts.

    - `env`: the user's EnvVars, at `env_field`.
    - `memory`: the quantity in the service's resources. Engines other than llama.cpp need it, because their memory
      cannot be estimated.
    - `gpus`: the number of GPUs that a pod would request.
    - `scaler`: the service's own autoscaler, whose bounds hold for a scaling by requests. Hosts have no other one.
    - `unsupported`: fields that the dialect found to have no effect on hosts (`not_on_hosts`).

    Raises SpecInvalid for a model that no host can fetch, and for one that no engine on hosts can read.
    """
    metadata = cr["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    hosting = annotated.hosting
    if hosting.host is not None and not keys.is_label_value(hosting.host):
        raise SpecInvalid(
            field=f"metadata.annotations[{keys.ANNOTATION_HOST}]",
            why=f"`{hosting.host[:64]}` is not the name of a host",
        )
    resolved = model_of(model, annotations, of=key.name)
    chosen = engine_of(resolved, asked=args.engine, field=model.field)
    accelerator = accelerator_of(hosting.selector, resolved, gpus=gpus)
    drafting = model_of(draft, {}, of=f"{key.name}-draft") if draft is not None else None
    if drafting is not None and (chosen != "llamacpp" or drafting.format is not ModelFormat.GGUF):
        drafting = None
    engine, lost = translate_arguments(
        chosen, args.engine, preset=args.preset, own=args.own, field=args.field, draft=drafting
    )
    variables = tuple(env)
    desired = DesiredService(
        key=key,
        owner=owner_of(cr),
        generation=int(metadata.get("generation") or 0),
        model=resolved.model_copy(update={"accelerator": accelerator}),
        engine=engine,
        replicas=min(replicas, 1) if hosting.pinned else replicas,
        endpoint=Endpoint(port=_PORTS.get(key.dialect)),
        gpu=Gpu(count=max(1, gpus)) if accelerator not in ("cpu", "metal") else None,
        pod=PodSettings(env=hosted_env(variables, field=env_field), memory_request=memory),
        host_placement=hosting.model_copy(update={"written": _written(args, variables, env_field, model.field)}),
        draft=drafting,
        completion_check=annotated.completion_check,
        sleep=annotated.sleep,
        by_requests=request_scaling(
            annotations,
            annotated,
            replicas=min(replicas, 1) if hosting.pinned else replicas,
            own=scaler,
            pinned=hosting.pinned,
        ),
        served_name=annotated.served_name,
        drift=annotated.drift,
        adopt=annotations.get(keys.ANNOTATION_ADOPT) == "true",
    )
    problems = (
        *unsupported,
        *lost,
        *_of_draft(draft, drafting, engine),
        *lost_env(variables, field=env_field, engine=chosen),
        *_of_place(replicas, desired),
        *of_annotations(annotations),
        *lost_name(desired),
        *without_effect(scaler, desired.by_requests),
    )
    return Parsed(desired=desired, unsupported=tuple(dict.fromkeys(problems)))


def not_on_hosts(fields: Iterable[str]) -> tuple[Problem, ...]:
    """Return the problems that these fields have no effect on a process."""
    return tuple(unsupported_field(field, NOT_ON_HOSTS) for field in fields)


def of_annotations(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the annotations without an effect on a process on a host."""
    for name in POD_ONLY_ANNOTATIONS:
        if annotations.get(name, "") not in ("", "false"):
            yield unsupported_field(f"metadata.annotations[{name}]", NOT_ON_HOSTS)


def _written(args: HostedArgs, variables: Sequence[Json], env_field: str, model_field: str) -> Written:
    return Written(
        arguments=tuple(args.own),
        arguments_field=args.field,
        variables=tuple(str(variable["name"]) for variable in variables),
        variables_field=env_field,
        model_field=model_field,
    )


def _of_draft(draft: HostedModel | None, used: DesiredModel | None, engine: EngineSettings) -> Iterator[Problem]:
    if draft is not None and used is None:
        yield unsupported_field(
            draft.field,
            f"cannot be the draft for engine {engine.kind} on a host; only llama.cpp takes a draft, as a GGUF file",
        )


def _of_place(replicas: int, desired: DesiredService) -> Iterator[Problem]:
    if desired.host_placement is not None and desired.host_placement.pinned and replicas > 1:
        why = f"is {replicas}, but a host runs one replica of a service and {keys.ANNOTATION_HOST} names one host"
        yield unsupported_field("spec.replicas", why)
