"""Writes KServe's LLMInferenceService from a description. Pure."""

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired import keys
from program.desired.accelerators import vendor_of
from program.desired.errors import SpecInvalid
from program.desired.keys import is_dns_label
from program.desired.model import Gpu, GpuVendor
from program.dialects.converting import scaling
from program.dialects.converting.arguments import parallel_fields, split_adapter_limits, with_draft, with_gpus, without
from program.dialects.converting.description import Description, Source, TrackedDescription
from program.dialects.converting.fields import annotations_for_pods, file_of_url, metadata_of, moved_probe, on_hosts
from program.dialects.converting.kserve_reader import BRACES, MAIN, MODELS, NAME, PORT, ROOT_ALLOWED, each_text
from program.dialects.converting.pods import COMMANDS, POD_FIELDS, PROBES, amounts, with_shared_memory
from program.runtimes.llamacpp import llama_server_image
from program.runtimes.sglang import IMAGE as SGLANG_IMAGE
from program.runtimes.tensorrt_llm import IMAGE as TENSORRT_LLM_IMAGE

API_VERSION = "serving.kserve.io/v1alpha2"
_TGI_IMAGE = "ghcr.io/huggingface/text-generation-inference:3.3.7"


def write_kserve(written: TrackedDescription) -> list[Json]:
    """Write an LLMInferenceService. Raises SpecInvalid for weights or engines that KServe's pods do not support."""
    d = written.description
    if not is_dns_label(d.name):
        raise SpecInvalid(
            field="metadata.name",
            why=f"`{d.name}` is not a valid name with KServe, which derives the names of Services from it",
        )
    uri, opened = _uri(d.source, "source", hosted=on_hosts(d.annotations))
    model: Json = {"uri": uri}
    served = written.use("served_name")
    written.use("model_name")
    if served and served != d.name:
        model["name"] = served
    loaded = written.use("adapters")
    if any(each.name == (served or d.name) for each in loaded):
        written.add_loss("adapters", f"KServe allows no adapter with the model's name, `{served or d.name}`")
        loaded = tuple(each for each in loaded if each.name != (served or d.name))
    if loaded:
        model["lora"] = {"adapters": [{"name": a.name, "uri": _uri(a.source, "adapters")[0]} for a in loaded]}
    for name in ("model_format", "quantization"):
        written.use(name)  # the weights contain both
    template, spread, limits = _pod(written, opened)
    if limits:
        model.setdefault("lora", {"adapters": []}).update(limits)
    spec: Json = {"model": model}
    replicas, scaled = written.use("replicas"), scaling.to_kserve(written)
    if scaled is not None:
        spec["scaling"] = scaled
    elif replicas != 1:
        spec["replicas"] = replicas
    if spread:
        spec["parallelism"] = spread
    port = written.use("port")
    if port not in (0, PORT):
        written.add_loss(
            "port",
            f"KServe connects to its pods at port {PORT}, and this server listens on port {port}; make it listen on "
            f"{PORT}",
        )
    for name, wire in (("pod_labels", "labels"), ("pod_annotations", "annotations")):
        if value := written.use(name):
            spec[wire] = dict(value)
    spec["template"] = template
    if d.worker is not None:
        spec["worker"] = _worker(written, opened)
        spec["parallelism"] = {**spread, "pipeline": written.use("group_size")}
    metadata = metadata_of(written, has_effect=annotations_for_pods(d.annotations))
    if d.source.file and on_hosts(d.annotations):
        metadata["annotations"][keys.ANNOTATION_MODEL_FILE] = d.source.file
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "LLMInferenceService",
            "metadata": metadata,
            "spec": each_text(spec, lambda text: text.replace("{{", BRACES)),
        }
    ]


def _worker(written: TrackedDescription, opened: str) -> Json:
    """Return the other pods of a group."""
    others = TrackedDescription(written.use("worker"), target="KServe")
    for name in ("replicas", "model_name", "served_name"):
        others.use(name)
    pod, _, _ = _pod(others, opened)
    written.include(others)
    return pod


def _pod(written: TrackedDescription, opened: str) -> tuple[Json, Json, Json]:
    """Return a pod, and the parallelism and LoRA limits that `_container` returns."""
    mounted = with_shared_memory(written, written.use("pod.volumes") or (), written.use("volume_mounts"))
    container, spread, limits = _container(written, opened)
    if mounted.mounts:
        container["volumeMounts"] = list(mounted.mounts)
    pod: Json = {"containers": [container]}
    for name in POD_FIELDS:
        if value := written.use(f"pod.{name}") if name != "volumes" else list(mounted.volumes):
            pod[name] = value
    return pod, spread, limits


def _container(written: TrackedDescription, opened: str) -> tuple[Json, Json, Json]:
    """Return the container, and the parts of vLLM's arguments with KServe fields: `parallelism` and LoRA limits."""
    d = written.description
    image, command, arguments = _program(written, opened)
    spread: Json = {}
    limits: Json = {}
    if d.engine == "vllm":
        arguments, spread = parallel_fields(arguments)
        arguments, limits = split_adapter_limits(arguments) if d.adapters else (arguments, {})
    container: Json = {"name": MAIN}
    # A host uses an installed program for an engine; the command selects it.
    if image and not (on_hosts(d.annotations) and d.engine != "generic"):
        container["image"] = image
    if command:
        container["command"] = command
    if arguments:
        container["args"] = arguments
    env = list(written.use("env"))
    if token := written.use("hub_token"):
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": dict(token)}})
        # The container gets the token, but the initializer that fetches the weights does not.
        written.add_loss(
            "hub_token",
            "KServe fetches weights with the Secrets of the pods' ServiceAccount; add the Secret to that "
            "ServiceAccount",
        )
    if env:
        container["env"] = env
    if security := _security(written):
        container["securityContext"] = security
    if resources := amounts(written):
        container["resources"] = resources
    for probe in PROBES:
        if found := written.use(f"probes.{probe}"):
            container[f"{probe}Probe"] = moved_probe(found, PORT) if d.dialect != NAME else found
    return container, spread, limits


def _security(written: TrackedDescription) -> Json:
    """Return the container's securityContext. The presets' one fits only the image of the presets."""
    d = written.description
    asked: Json = dict(written.use("security"))
    both = {**(d.pod.get("securityContext") or {}), **asked}
    of_preset = d.engine == "vllm" and not d.image
    if of_preset or on_hosts(d.annotations) or both.get("runAsUser") or "runAsNonRoot" in both:
        return asked
    return {**ROOT_ALLOWED, **asked}


def _program(written: TrackedDescription, opened: str) -> tuple[str, list[str], list[str]]:
    """Return image, command and arguments.

    For vLLM the presets set them, and only the user's additions are returned.
    """
    d = written.description
    image, command, args = written.use("image"), list(written.use("command")), list(written.use("args"))
    if d.draft is not None:
        draft = written.use("draft")
        if d.engine == "vllm" and draft.source.kind == "hub" and not draft.source.revision:
            args = with_draft(args, draft.source.address)
        else:
            written.add_loss("draft", "KServe fetches no draft models")
            flags = args
            args = without(args, "--spec-draft-n-max", "--spec-draft-n-min", "--spec-type", "--num_speculative_tokens")[
                0
            ]
            if args != flags:
                written.add_loss("args", "the arguments for the draft model are dropped with it")
    if d.engine == "ollama":
        raise SpecInvalid(field="engine", why="KServe cannot serve with Ollama, which pulls its weights itself")
    if d.engine == "generic" and not command:
        why = "needs a command, because KServe's presets start vLLM in a container without one"
        raise SpecInvalid(field="image", why=f"`{image}` {why}")
    if d.engine == "generic":
        return image, command, args
    if d.engine == "vllm":
        if command:
            written.add_loss("command", "KServe's presets set the command for vLLM")
        if aliases := written.use("aliases"):
            args += ["--served-model-name", d.served_name, *aliases]
        return image, [], with_gpus("vllm", args, d.gpus)
    where = opened or MODELS
    address = ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - other pods connect to it
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


def _vendor(d: Description) -> GpuVendor:
    vendor = vendor_of(d.gpu_resource)
    return GpuVendor.NVIDIA if vendor is None or vendor is GpuVendor.OTHER else vendor


def _uri(source: Source, field: str, *, hosted: bool = False) -> tuple[str, str]:
    """Return the address, and the path of the file that the engine opens in the pod; empty for the directory."""
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
        case "http" if hosted:
            return source.address, f"{MODELS}/{file_of_url(source.address)}"
        case "path" if hosted:
            return f"file://{source.address}", f"{MODELS}/{source.address.rpartition('/')[2]}"
        case _:
            raise SpecInvalid(
                field=field, why=f"KServe cannot fetch `{source.kind}` addresses such as `{source.address}`"
            )
