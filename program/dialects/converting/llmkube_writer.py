"""Writes LLMKube's InferenceService and Model from a description. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.model import GPU_RESOURCES, GpuVendor
from program.dialects.converting import scaling
from program.dialects.converting.arguments import DRAFTED, adapter_arguments, without
from program.dialects.converting.description import Source, TrackedDescription, Weights
from program.dialects.converting.fields import draft_name, label_of, metadata_of, moved_probe, on_hosts, pod_port
from program.dialects.converting.pods import PROBES, with_shared_memory
from program.dialects.llmkube.parse.pod import OWN_VOLUMES

API_VERSION = "inference.llmkube.dev/v1alpha1"
_PLAIN_POD = ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "runtimeClassName")
POD_FIELDS = {
    **{name: name for name in _PLAIN_POD},
    "topologySpreadConstraints": "topologySpreadConstraints",
    "priorityClassName": "priorityClassName",
    "securityContext": "podSecurityContext",
    "volumes": "extraVolumes",
}
"""Fields of a PodSpec, and their names in an InferenceService."""
CONFIGS = {
    "vllm": "vllmConfig",
    "sglang": "sglangConfig",
    "tgi": "tgiConfig",
    "tensorrt-llm": "tensorRTLLMConfig",
}
_FLAGS: dict[str, dict[str, str]] = {
    "llamacpp": {"--ctx-size": "contextSize", "--parallel": "parallelSlots"},
    "vllm": {
        "--max-model-len": "vllmConfig.maxModelLen",
        "--tensor-parallel-size": "vllmConfig.tensorParallelSize",
    },
    "sglang": {"--context-length": "sglangConfig.contextLength", "--tp": "sglangConfig.tensorParallelSize"},
    "tensorrt-llm": {
        "--max_seq_len": "tensorRTLLMConfig.maxSeqLen",
        "--max_batch_size": "tensorRTLLMConfig.maxBatchSize",
        "--tp_size": "tensorRTLLMConfig.tensorParallelSize",
    },
}
"""Flags with a separate field. The others are written to extraArgs."""


def write_llmkube(written: TrackedDescription) -> list[Json]:
    """Write a Model and an InferenceService. Raises SpecInvalid for weights that LLMKube cannot fetch."""
    d = written.description
    name = label_of(written.shared_name(written.use("model_name"))) or label_of(written.shared_name(d.name))
    spec: Json = {"modelRef": name, "runtime": d.engine}
    spec.update(_arguments(written, name))
    image, command = written.use("image"), written.use("command")
    # A host uses an installed program for each engine that it knows.
    if on_hosts(d.annotations) and d.engine != "generic":
        image, command = "", ()
    if image:
        spec["image"] = image
    if command:
        spec["command"] = list(command)
    if env := written.use("env"):
        spec["env"] = list(env)
    replicas = written.use("replicas")
    if replicas > 10 and d.scaling is None:
        written.add_loss("replicas", "LLMKube has at most 10")
    if replicas != 1:
        spec["replicas"] = min(replicas, 10)
    if autoscaling := scaling.to_llmkube(written):
        spec["autoscaling"] = autoscaling
    port = written.use("port")
    if port and port != pod_port(d):
        spec["containerPort"] = port
    if resources := _resources(written):
        spec["resources"] = resources
    overrides = {each: moved_probe(probe, pod_port(d)) for each in PROBES if (probe := written.use(f"probes.{each}"))}
    if overrides:
        spec["probeOverrides"] = overrides
    mounted = with_shared_memory(written, written.use("pod.volumes") or (), written.use("volume_mounts"))
    for field, wire in POD_FIELDS.items():
        if value := written.use(f"pod.{field}") if field != "volumes" else mounted.volumes:
            spec[wire] = _renamed(value) if field == "volumes" else value
    if mounted.mounts:
        spec["extraVolumeMounts"] = _renamed(mounted.mounts)
    for attribute, wire in (
        ("security", "securityContext"),
        ("pod_labels", "podLabels"),
        ("pod_annotations", "podAnnotations"),
    ):
        if value := written.use(attribute):
            spec[wire] = value
    models = [_model(written, name, d.source, main=True)]
    draft = written.use("draft")
    if draft is not None:
        models += _drafting(written, draft, spec)
    return [
        *models,
        {"apiVersion": API_VERSION, "kind": "InferenceService", "metadata": metadata_of(written), "spec": spec},
    ]


def _renamed(volumes: Iterable[Json]) -> list[Json]:
    """Return the volumes with names that differ from LLMKube's."""
    return [{**each, "name": f"own-{each['name']}"} if each["name"] in OWN_VOLUMES else dict(each) for each in volumes]


def _drafting(written: TrackedDescription, draft: Weights, spec: Json) -> list[Json]:
    engine = written.description.engine
    own = label_of(written.shared_name(draft.name)) or label_of(f"{written.description.name}-draft")
    name = draft_name(own, spec["modelRef"], same=draft.source == written.description.source)
    if engine == "llamacpp":
        spec["speculativeDecoding"] = {"type": "draft-simple", "draftModelRef": name}
        rest, found = without(spec.pop("extraArgs", ()), "--spec-draft-n-max", "--spec-type")
        if found.get("--spec-draft-n-max", "").isdecimal():
            spec["speculativeDecoding"]["nDraftMax"] = int(found["--spec-draft-n-max"])
        if rest:
            spec["extraArgs"] = rest
    elif engine == "vllm" and draft.source.kind == "hub":
        rest, found = without(spec.pop("extraArgs", ()), DRAFTED)
        wish: Json = {"enabled": True, "model": name}
        if found.get(DRAFTED, "").isdecimal() and 1 <= int(found[DRAFTED]) <= 16:
            wish["numSpeculativeTokens"] = int(found[DRAFTED])
        spec.setdefault("vllmConfig", {})["speculative"] = wish
        if rest:
            spec["extraArgs"] = rest
    else:
        written.add_loss("draft", f"LLMKube has no drafts for {engine}")
        return []
    return [_model(written, name, draft.source, main=False)] if name != spec["modelRef"] else []


def _arguments(written: TrackedDescription, model: str) -> Json:
    d = written.description
    arguments, served = list(written.use("args")), written.use("served_name")
    spec: Json = {}
    if d.engine == "generic":
        return {"args": arguments} if arguments else {}
    if d.engine == "ollama" and arguments:
        written.add_loss("args", "Ollama takes no arguments")
        return {}
    fields = _FLAGS.get(d.engine, {})
    rest, found = without(arguments, *fields)
    for flag, value in found.items():
        if not value.isdecimal() or int(value) < 1 or _beyond(flag, int(value), gpus=d.gpus):
            rest += [flag, value]
            continue
        group, dot, name = fields[flag].partition(".")
        if dot:
            spec.setdefault(group, {})[name] = int(value)
        else:
            spec[group] = int(value)
    if served and d.engine == "vllm":
        rest += ["--served-model-name", served, *written.use("aliases")]
    elif served and d.engine == "sglang" and served != model:
        rest += ["--served-model-name", served]
    rest += adapter_arguments(written, target="LLMKube")
    if token := written.use("hub_token"):
        if config := CONFIGS.get(d.engine):
            spec.setdefault(config, {})["hfTokenSecretRef"] = dict(token)
        else:
            written.add_loss(
                "hub_token", f"LLMKube has no field for a token of {d.engine}; set sourceSecretRef of the Model"
            )
    if rest:
        spec["extraArgs"] = rest
    return spec


def _beyond(flag: str, value: int, *, gpus: int) -> bool:
    """Return whether the field for this flag would refuse the value."""
    if flag in ("--tensor-parallel-size", "--tp", "--tp_size") and value > max(1, gpus):
        return True
    return (flag == "--ctx-size" and not 128 <= value <= 2097152) or (flag == "--parallel" and value > 64)


def _resources(written: TrackedDescription) -> Json:
    requests: dict[str, str] = written.use("requests")
    limits: dict[str, str] = written.use("limits")
    found: Json = {}
    for name, wire in (("cpu", "cpu"), ("memory", "memory"), ("ephemeral-storage", "ephemeralStorage")):
        asked, limit = requests.get(name), limits.get(name)
        if asked or limit:
            found[wire] = asked or limit
        if limit and name != "ephemeral-storage":
            written.add_loss(f"limits.{name}", "LLMKube has fields for requests and none for limits")
    gpus, resource = written.use("gpus"), written.use("gpu_resource")
    if gpus and resource == GPU_RESOURCES[GpuVendor.NVIDIA]:
        found["gpu"] = gpus
    return found


def _model(written: TrackedDescription, name: str, source: Source, *, main: bool) -> Json:
    d = written.description
    spec: Json = {"source": _address(source)}
    files = source.files or ((source.file,) if source.kind == "s3" and source.file else ())
    if files:
        spec["files"] = list(files)
    if not main:
        spec["format"] = "gguf" if source.is_gguf else "safetensors"
    else:
        guessed = "gguf" if source.is_gguf or d.engine in ("llamacpp", "ollama") else "safetensors"
        spec["format"] = written.use("model_format") or guessed
        for attribute in ("quantization", "sha256"):
            if value := written.use(attribute):
                spec[attribute] = value
        gpus, resource = written.use("gpus"), written.use("gpu_resource")
        if gpus and resource != GPU_RESOURCES[GpuVendor.NVIDIA]:
            vendor = next((v.value for v, each in GPU_RESOURCES.items() if each == resource), "")
            gpu = {"vendor": vendor} if vendor else {"resourceName": resource}
            spec["hardware"] = {"gpu": {"enabled": True, "count": gpus, **gpu}}
    metadata = {"name": name, "namespace": d.namespace}
    return {"apiVersion": API_VERSION, "kind": "Model", "metadata": metadata, "spec": spec}


def _address(source: Source) -> str:
    at = f"@{source.revision}" if source.revision else ""
    match source.kind:
        case "hub":
            file = f"/{source.file}" if source.file and not source.files else ""
            return f"hf://{source.address}{at}{file}"
        case "http" | "path":
            return source.address
        case "s3":
            return f"s3://{source.address}"
        case "pvc" if "/" in source.address:
            return f"pvc://{source.address}"
        case "ollama" if "/" not in source.address:
            name, _, tag = source.address.partition(":")
            return f"hf://library/{name}" + (f"@{tag}" if tag else "")
        case _:
            raise SpecInvalid(
                field="source", why=f"LLMKube cannot fetch `{source.kind}` addresses such as `{source.address}`"
            )
