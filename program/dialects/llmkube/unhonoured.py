"""Name the fields of an InferenceService that its path cannot honour, so that none is dropped in silence. Pure.

`parse` offers it beside `parse_service`; the answers become condition SpecHonoured=False. A field counts when it asks
for something: an absent one, an empty one and a switch that is off ask for nothing. `unhonoured_by_runtime`,
`unhonoured_in_pods` and `unhonoured_on_hosts` know the fields of their part.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.model import SourceKind
from program.desired.service import DesiredService
from program.dialects.llmkube.parse_gpu import split_problem
from program.dialects.llmkube.service_schema import ResourcesSpec, ServiceSpec
from program.dialects.llmkube.unhonoured_by_runtime import by_runtime
from program.dialects.llmkube.unhonoured_in_pods import in_pods
from program.dialects.llmkube.unhonoured_on_hosts import on_hosts
from program.dialects.reading import read, unknown_fields, without_nulls
from program.runtimes import runtime_for
from program.runtimes.ranks import misfit, ranks_of

_LLAMA_SERVERS = ("llamacpp", "llamacpp-router")


def unhonoured(cr: Json, desired: DesiredService) -> tuple[Problem, ...]:
    """List what the service asks for and will not get. None of it is fatal.

    Where only an extension is missing in the cluster (KEDA, a Gateway API), `components.extensions` says so.
    """
    spec = read(ServiceSpec, without_nulls(cr.get("spec")), field="spec")
    annotations = (cr.get("metadata") or {}).get("annotations") or {}
    of_place = (on_hosts if desired.host_placement else in_pods)(spec, annotations, desired)
    of_gpus = (*_of_gpu(spec, desired), *_of_ranks(spec, desired))
    return (*by_runtime(spec, desired), *of_place, *of_gpus, *_of_model(desired), *_unknown(spec))


def _problem(field: str, message: str, reason: str = "NotHonoured") -> Problem:
    return Problem(reason=reason, message=message, field=field, terminal=True)


def _of_gpu(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    resources = spec.resources or ResourcesSpec()
    count = desired.gpu.count if desired.gpu else 0
    if resources.gpu is not None and resources.gpu != count:
        yield _problem(
            "spec.resources.gpu", f"asks for {resources.gpu}, and Model `{desired.model.name}` decides on {count}"
        )
    if desired.gpu is not None:
        return
    if resources.gpu_memory:
        yield _problem("spec.resources.gpuMemory", "has no effect without a GPU")
    if spec.runtime == "vllm" and spec.vllm_config:
        if spec.vllm_config.cpu_offload_gb:
            yield _problem("spec.vllmConfig.cpuOffloadGB", "has no effect without a GPU")
        if spec.vllm_config.gpu_memory_utilization is not None:
            yield _problem("spec.vllmConfig.gpuMemoryUtilization", "has no effect without a GPU")
    if spec.runtime == "sglang" and spec.sglang_config and spec.sglang_config.mem_fraction_static is not None:
        yield _problem("spec.sglangConfig.memFractionStatic", "has no effect without a GPU")


def _of_ranks(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    """Name arguments that make more or fewer ranks than a replica has GPUs; only a driver knows what a claim holds."""
    engine, gpu = desired.engine.kind, desired.gpu
    own = ranks_of(engine, spec.extra_args)
    if own.at is None or gpu is None or gpu.claims:
        return
    every = runtime_for(desired.engine).argv(desired, model_path="", port=0, host="")
    if why := misfit(engine, every, gpu.count):
        yield _problem(f"spec.extraArgs[{own.at}]", why)


def _of_model(desired: DesiredService) -> Iterator[Problem]:
    model, engine = desired.model, desired.engine.kind
    at = f"Model/{model.name} spec"
    for name in model.asked_resources:
        yield _problem(f"{at}.resources.{name}", f"has no effect; set spec.resources.{name} of the InferenceService")
    if desired.host_placement is None:
        if model.memory_budget_bytes is not None:
            yield _problem(f"{at}.hardware.memoryBudget", "bounds processes on hosts; pods take spec.resources")
        if model.memory_fraction is not None:
            yield _problem(f"{at}.hardware.memoryFraction", "bounds processes on hosts; pods take spec.resources")
    gpu = model.gpu
    split = f"{at}.hardware.gpu.sharding.layerSplit"
    if gpu is not None and desired.gpu and (found := split_problem(gpu, count=desired.gpu.count, at=split)):
        yield _problem(*found)
    elif gpu is not None and gpu.layer_split and not (desired.gpu and desired.gpu.tensor_split):
        yield _problem(split, "has no effect unless layers are split over GPUs")
    if gpu is not None and gpu.backend and engine not in _LLAMA_SERVERS:
        yield _problem(f"{at}.hardware.gpu.runtime", f"chooses a build of llama.cpp; runtime {engine} has none")
    if model.mmproj and engine != "llamacpp":
        yield _problem(f"{at}.mmproj", f"has no effect with runtime {engine}")
    if engine == "llamacpp":
        draft = desired.draft
        for each in (model, *([draft] if draft is not None and draft.name != model.name else [])):
            source = each.source
            if source.kind is SourceKind.REPOSITORY and source.revision and not each.files:
                why = f"llama-server takes no revision; `{source.revision}` is ignored"
                yield _problem(f"Model/{each.name} spec.source", why)


def _unknown(spec: ServiceSpec) -> Iterator[Problem]:
    for path, _ in unknown_fields(spec, field="spec"):
        yield _problem(path, "is not known to this version", "UnknownField")
