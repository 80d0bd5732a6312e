"""KServe's LLMInferenceService, read into a description and written from one. Pure.

What the presets bring is not the user's and is not read: base configs of the files are, merged as KServe merges them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubeapi import kinds
from program.desired import keys
from program.desired.base import JsonObject
from program.desired.errors import NotYet, SpecInvalid
from program.desired.keys import is_dns_label
from program.desired.model import GPU_RESOURCES, Gpu, GpuVendor
from program.dialects.converting.arguments import (
    drafting,
    with_draft,
    with_gpus,
    without,
    without_gpus,
)
from program.dialects.converting.containers import (
    COMMANDS,
    POD_FIELDS,
    PROBES,
    RESOURCES,
    amounts,
    amounts_of,
    engine_of_container,
)
from program.dialects.converting.described import Described, Engine, Loss, Source, Weights, Written
from program.dialects.converting.fields import Fields
from program.dialects.converting.shared import (
    effect_on_described_pods,
    kept_metadata,
    metadata_of,
    moved_probe,
    on_hosts,
)
from program.dialects.dialect import Lookup
from program.dialects.kserve.conversion import to_hub
from program.dialects.kserve.merging import merged
from program.dialects.kserve.validation import check
from program.runtimes.llamacpp import llama_server_image
from program.runtimes.sglang import IMAGE as SGLANG_IMAGE
from program.runtimes.tensorrt_llm import IMAGE as TENSORRT_LLM_IMAGE

NAME = "kserve"
API_VERSION = "serving.kserve.io/v1alpha2"
MODELS = "/mnt/models"
PORT = 8000
MAIN = "main"
_BRACES = "{{`{{`}}"
"""Two braces that KServe's templates leave alone."""
_MARK = "\0"
_TGI_IMAGE = "ghcr.io/huggingface/text-generation-inference:3.3.7"


def read_kserve(cr: JsonObject, look: Lookup) -> Described:
    """Describe an LLMInferenceService. Raises SpecInvalid, and NotYet for a base config that is not among the files."""
    hub = to_hub(cr)
    spec, losses = _with_bases(hub, look)
    check({**hub, "spec": spec})
    fields = Fields({**hub, "spec": spec}, dialect="KServe")
    labels, annotations, lost = kept_metadata(hub, fields.document)
    containers: list[JsonObject] = fields.peek("template", "containers") or []
    at = next((n for n, each in enumerate(containers) if each.get("name") == MAIN), None)
    main: dict[str, Any] = containers[at] if at is not None else {}
    path: tuple[str | int, ...] = ("template", "containers", at if at is not None else 0)
    if at is not None:
        for name in ("name", "image", "command", "args", "env", "volumeMounts", "resources"):
            fields.take(*path, name)
        for probe in PROBES:
            fields.take(*path, f"{probe}Probe")
    engine, command, arguments = engine_of_container(main)
    tensor = fields.take("parallelism", "tensor")
    requests, limits, gpus, resource, strange = amounts_of(main.get("resources") or {})
    args = without_gpus(engine, [*_tensor(engine, tensor), *arguments.rest], gpus)
    where = f"spec.template.containers[{path[2]}]"
    strange_losses = tuple(
        Loss(fields.document, f"{where}.resources.{name}", "other dialects have no such resource") for name in strange
    )
    chosen = annotations.pop(keys.ANNOTATION_MODEL_FILE, "")
    opened = f"{MODELS}/{chosen}" if chosen else arguments.model
    source = _source(str(fields.take("model", "uri") or ""), opened)
    adapters = []
    for index, adapter in enumerate(fields.peek("model", "lora", "adapters") or ()):
        fields.take("model", "lora", "adapters", index, "name")
        fields.take("model", "lora", "adapters", index, "uri")
        adapters.append(Weights(name=str(adapter.get("name")), source=_source(str(adapter.get("uri") or ""), "")))
    draft = ""
    if engine == "vllm":
        args, draft = drafting(args)
    replicas = fields.take("replicas")
    if replicas is None:
        replicas = fields.peek("scaling", "minReplicas") or 1
    name = str(hub["metadata"]["name"])
    model_name = fields.take("model", "name")
    return Described(
        document=fields.document,
        dialect=NAME,
        name=name,
        namespace=str(hub["metadata"].get("namespace") or "default"),
        source=source,
        engine=engine,
        labels=labels,
        annotations=annotations,
        model_name=str(model_name or name),
        served_name=str(model_name or name) if engine in ("vllm", "sglang") else "",
        image=str(main.get("image") or ""),
        command=command,
        args=tuple(args),
        env=tuple(main.get("env") or ()),
        requests=requests,
        limits=limits,
        gpus=gpus,
        gpu_resource=resource,
        probes={probe: found for probe in PROBES if (found := main.get(f"{probe}Probe"))},
        replicas=int(replicas),
        adapters=tuple(adapters),
        draft=_draft(draft),
        pod={each: value for each in POD_FIELDS if (value := fields.take("template", each))},
        volume_mounts=tuple(main.get("volumeMounts") or ()),
        pod_labels=fields.take("labels") or {},
        pod_annotations=fields.take("annotations") or {},
        origins={
            "engine": f"{where}.command",
            "source": "spec.model.uri",
            "model_name": "spec.model.name",
            "served_name": "spec.model.name",
            "adapters": "spec.model.lora.adapters",
            "draft": f"{where}.args",
            "replicas": "spec.replicas",
            "pod_labels": "spec.labels",
            "pod_annotations": "spec.annotations",
            "labels": "metadata.labels",
            "annotations": "metadata.annotations",
            "volume_mounts": f"{where}.volumeMounts",
            "gpus": f"{where}.resources.limits",
            "probes": where,
            **{each: f"{where}.{each}" for each in ("image", "command", "args", "env")},
            **{f"probes.{probe}": f"{where}.{probe}Probe" for probe in PROBES},
            **{f"requests.{each}": f"{where}.resources.requests.{each}" for each in RESOURCES},
            **{f"limits.{each}": f"{where}.resources.limits.{each}" for each in RESOURCES},
            **{f"pod.{each}": f"spec.template.{each}" for each in POD_FIELDS},
        },
        losses=(*losses, *lost, *strange_losses, *fields.left()),
    )


def _draft(model: str) -> Weights | None:
    """Describe the draft that vLLM fetches by itself."""
    return Weights(name=model.rpartition("/")[2], source=Source(kind="hub", address=model)) if model else None


def _with_bases(cr: JsonObject, look: Lookup) -> tuple[JsonObject, tuple[Loss, ...]]:
    """Merge the base configs under the service's own spec."""
    own = dict(cr.get("spec") or {})
    namespace = str(cr["metadata"].get("namespace") or "default")
    laid: JsonObject = {}
    for index, reference in enumerate(own.pop("baseRefs", None) or ()):
        name = str((reference or {}).get("name") or "")
        found = look(kinds.LLM_CONFIGS, namespace, name) or look(kinds.LLM_CONFIGS, "kserve", name)
        if found is None:
            raise NotYet(
                reason="DependencyMissing",
                field=f"spec.baseRefs[{index}].name",
                why=f"LLMInferenceServiceConfig `{name}` is not among the files",
            )
        base = dict(to_hub(found).get("spec") or {})
        laid = merged(laid, base, field=f"LLMInferenceServiceConfig {name}: spec")
    spec = _each_text(merged(laid, own), lambda text: text.replace(_BRACES, _MARK))
    document = f"LLMInferenceService `{cr['metadata']['name']}`"
    templated = sorted(_templated(spec, "spec"))
    spec = _each_text(spec, lambda text: text.replace(_MARK, "{{"))
    return spec, tuple(Loss(document, path, "is a template that only KServe fills in") for path in templated)


def _templated(value: Any, path: str) -> list[str]:
    if isinstance(value, dict):
        return [each for name, member in value.items() for each in _templated(member, f"{path}.{name}")]
    if isinstance(value, list):
        return [each for index, member in enumerate(value) for each in _templated(member, f"{path}[{index}]")]
    return [path] if isinstance(value, str) and "{{" in value else []


def _tensor(engine: Engine, size: Any) -> list[str]:
    flag = {"vllm": "--tensor-parallel-size", "sglang": "--tp", "tensorrt-llm": "--tp_size"}.get(engine)
    return [flag, str(size)] if flag and isinstance(size, int) and size > 1 else []


def _source(uri: str, opened: str) -> Source:
    scheme, _, rest = uri.partition("://")
    file = opened.removeprefix(f"{MODELS}/") if opened.startswith(f"{MODELS}/") else ""
    match scheme:
        case "hf":
            repository, _, revision = rest.partition(":")
            return Source(kind="hub", address=repository, revision=revision, file=file)
        case "s3":
            return Source(kind="s3", address=rest, file=file)
        case "pvc":
            return Source(kind="pvc", address=f"{rest.rstrip('/')}/{file}" if file else rest)
        case "oci" | "oci+native":
            return Source(kind="oci", address=rest, file=file)
        case _:
            raise SpecInvalid(field="spec.model.uri", why=f"`{uri[:64]}` is no address that KServe serves from")


# --- writing ----------------------------------------------------------------------------------------------------------


def write_kserve(written: Written) -> list[JsonObject]:
    """Write an LLMInferenceService. Raises SpecInvalid for weights or engines that KServe's pods cannot have."""
    d = written.described
    if not is_dns_label(d.name):
        raise SpecInvalid(
            field="metadata.name", why=f"`{d.name}` is no name for KServe; its Services are named after it"
        )
    uri, opened = _uri(d.source, "source")
    model: JsonObject = {"uri": uri}
    served = written.take("served_name")
    written.take("model_name")
    if served and served != d.name:
        model["name"] = served
    if adapters := written.take("adapters"):
        model["lora"] = {"adapters": [{"name": a.name, "uri": _uri(a.source, "adapters")[0]} for a in adapters]}
    for name in ("model_format", "quantization"):
        written.take(name)  # the weights themselves tell
    container = _container(written, opened)
    template: JsonObject = {"containers": [container]}
    for name in POD_FIELDS:
        if value := written.take(f"pod.{name}"):
            template[name] = value
    spec: JsonObject = {"model": model}
    replicas = written.take("replicas")
    if replicas != 1:
        spec["replicas"] = replicas
    if d.scaling is not None:
        written.lose("scaling", "KServe scales by the workload variant autoscaler or KEDA's triggers only")
    for name, wire in (("pod_labels", "labels"), ("pod_annotations", "annotations")):
        if value := written.take(name):
            spec[wire] = dict(value)
    spec["template"] = template
    metadata = metadata_of(written, has_effect=effect_on_described_pods(d.annotations))
    if d.source.file and on_hosts(d.annotations):
        metadata["annotations"][keys.ANNOTATION_MODEL_FILE] = d.source.file
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "LLMInferenceService",
            "metadata": metadata,
            "spec": _each_text(spec, lambda text: text.replace("{{", _BRACES)),
        }
    ]


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {name: _each_text(member, change) for name, member in value.items()}
    if isinstance(value, list):
        return [_each_text(member, change) for member in value]
    return change(value) if isinstance(value, str) else value


def _container(written: Written, opened: str) -> JsonObject:
    d = written.described
    image, command, arguments = _program(written, opened)
    container: JsonObject = {"name": MAIN}
    if image:
        container["image"] = image
    if command:
        container["command"] = command
    if arguments:
        container["args"] = arguments
    env = list(written.take("env"))
    if token := written.take("hub_token"):
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": dict(token)}})
        # The container has it, and what fetches the weights does not.
        written.lose("hub_token", "KServe fetches weights with the Secrets of the pods' ServiceAccount: add it there")
    if env:
        container["env"] = env
    if resources := amounts(written):
        container["resources"] = resources
    for probe in PROBES:
        if found := written.take(f"probes.{probe}"):
            container[f"{probe}Probe"] = moved_probe(found, PORT) if d.dialect != NAME else found
    if mounts := written.take("volume_mounts"):
        container["volumeMounts"] = list(mounts)
    return container


def _program(written: Written, opened: str) -> tuple[str, list[str], list[str]]:
    """Give image, command and arguments; vLLM's are the presets' own, but for what the user adds."""
    d = written.described
    image, command, args = written.take("image"), list(written.take("command")), list(written.take("args"))
    if d.draft is not None:
        draft = written.take("draft")
        if d.engine == "vllm" and draft.source.kind == "hub" and not draft.source.revision:
            args = with_draft(args, draft.source.address)
        else:
            written.lose("draft", "KServe fetches no draft models")
            flags = args
            args = without(args, "--spec-draft-n-max", "--spec-draft-n-min", "--spec-type", "--num_speculative_tokens")[
                0
            ]
            if args != flags:
                written.lose("args", "those of the draft go with it")
    if d.engine == "ollama":
        raise SpecInvalid(field="engine", why="KServe has no weights for Ollama, which pulls its own")
    if d.engine == "generic" and not command:
        why = "has no command of its own, and KServe's presets start vLLM in a container that names none"
        raise SpecInvalid(field="image", why=f"`{image}` {why}")
    if d.engine == "generic":
        return image, command, args
    if d.engine == "vllm":
        if command:
            written.lose("command", "the presets start vLLM")
        return image, [], with_gpus("vllm", args, d.gpus)
    where = opened or MODELS
    address = ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - a pod is there for others
    gpu = Gpu(count=d.gpus, vendor=_vendor(d)) if d.gpus else None
    match d.engine:
        case "llamacpp":
            start = ["--model", where, *address]
            image = image or llama_server_image(gpu)
        case "sglang":
            names = ["--served-model-name", d.served_name] if d.served_name else []
            start = ["--model-path", where, *names, *address]
            image = image or SGLANG_IMAGE
        case "tgi":
            start = ["--model-id", where, "--hostname", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
            image = image or _TGI_IMAGE
        case _:
            start = [where, *address]
            image = image or TENSORRT_LLM_IMAGE
    return image, command or list(COMMANDS[d.engine]), [*start, *with_gpus(d.engine, args, d.gpus)]


def _vendor(d: Described) -> GpuVendor:
    return next((vendor for vendor, name in GPU_RESOURCES.items() if name == d.gpu_resource), GpuVendor.NVIDIA)


def _uri(source: Source, field: str) -> tuple[str, str]:
    """Give the address, and the path of the file that the engine opens in the pod; empty for the directory."""
    file = f"{MODELS}/{source.file}" if source.file else ""
    match source.kind:
        case "hub":
            return f"hf://{source.address}" + (f":{source.revision}" if source.revision else ""), file
        case "s3" if not file and source.is_gguf:
            return f"s3://{source.address}", f"{MODELS}/{source.address.rpartition('/')[2]}"
        case "s3":
            return f"s3://{source.address}", file
        case "pvc" if source.is_gguf:
            folder, _, name = source.address.rpartition("/")
            return f"pvc://{folder}", f"{MODELS}/{name}"
        case "pvc":
            return f"pvc://{source.address}", ""
        case "oci":
            return f"oci://{source.address}", file
        case _:
            raise SpecInvalid(
                field=field, why=f"KServe cannot fetch `{source.kind}` addresses such as `{source.address}`"
            )
