"""llama.cpp's llama-server: in pods by `LlamaCppRuntime`, on Macs and other hosts by `host_argv`.

Both use one builder. The order of flags is LLMKube's: another order would restart every pod of a user who migrates.
Extra arguments come late and override earlier ones, because llama-server uses the last of a repeated flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kubeapi.json_types import Json
from program.desired.engines import LlamaCpp, RopeScaling, SpeculativeDecoding
from program.desired.model import Gpu, GpuVendor, SourceKind
from program.desired.service import DesiredService
from program.runtimes.base import (
    CompletionRequest,
    IdleProbe,
    Probes,
    ProgressMetrics,
    http_probes,
    option,
    positive,
    secret_env,
    served_mode,
    served_name_option,
    set_directory,
    small_completion,
    switch,
)
from program.runtimes.flags import mentions

IMAGE = "ghcr.io/ggml-org/llama.cpp"
IMAGE_CPU = f"{IMAGE}:server"
IMAGE_BY_VENDOR = {
    GpuVendor.NVIDIA: f"{IMAGE}:server-cuda-b10068",
    GpuVendor.AMD: f"{IMAGE}:server-rocm",
    GpuVendor.INTEL: f"{IMAGE}:server-intel",
}
ALL_LAYERS = 99
"""The value of `--n-gpu-layers` for all layers: larger than the number of layers of any model."""

HOST_CONTEXT_SIZE = 2048
"""Tokens, where model or host are not known (`program.host_context`). llama-server's default is the model's trained
context, which can need more memory than a Mac has."""
HOST_BATCH_SIZE = 2048

Mode = Literal["chat", "embedding", "rerank"]

_EMBEDDING = (("--embedding", "--embeddings"), ())
# A cache of prompts has no use if no text is generated.
_NO_CACHE = (("--cache-ram", "-cram"), ("0",))
# Each flag with its aliases, and its value.
_MODE_FLAGS: dict[Mode, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "chat": (),
    "embedding": (_EMBEDDING, (("--pooling",), ("last",)), _NO_CACHE),
    "rerank": ((("--reranking", "--rerank"), ()), _EMBEDDING, (("--pooling",), ("rank",)), _NO_CACHE),
}
_PROJECTOR = ("--mmproj", "-mm")

Accelerator = Literal["cpu", "metal", "cuda", "rocm", "intel", "vulkan"]


class LlamaCppRuntime:
    """llama-server in a container."""

    name = "llamacpp"
    container_name = "llama-server"
    default_port = 8080
    command: tuple[str, ...] = ()
    needs_model_init = True
    takes_port = True
    serves_metrics = True
    default_hpa_metric = "llamacpp:requests_processing"
    service_links = True
    api_key_env = "LLAMA_API_KEY"
    name_flags: tuple[str, ...] = ("--alias", "-a")
    drains = True

    def default_image(self, desired: DesiredService) -> str | None:
        """Return the image for the GPU of the pod, even if only the service asks for it."""
        return llama_server_image(desired.gpu)

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        settings = _settings(desired)
        flash = bool(settings.flash_attention) and desired.gpu is not None
        return [
            *_model(desired, model_path),
            *["--port", str(port)],
            *([] if mentions(settings.extra_args, "--host") else ["--host", desired.bind_address or host]),
            *_gpu(desired.gpu),
            *_engine(
                settings,
                flash=["--flash-attn", "on"] if flash else [],
                draft=_draft(desired, model_path, draft_path),
                projector=_projector(desired, model_path),
                mode=desired.mode,
                served_name=served_name_option(desired, self.name_flags),
                adapters=[each.pod_path for each in desired.adapters],
            ),
        ]

    def env(self, desired: DesiredService) -> list[Json]:
        return secret_env(self.api_key_env, desired.api_key)

    def probes(self, port: int) -> Probes:
        return http_probes("/health", port)

    # With an API key, llama-server answers only /health and its list of models to requests without the key.

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        return None if desired.api_key else small_completion(served_mode(desired))

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return None if desired.api_key else IdleProbe(path="/slots", kind="slots")

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        if desired.api_key:
            return None
        # tokens_predicted_total changes only at the end of a request: a long answer would look like an engine that
        # hangs.
        return ProgressMetrics(
            generated_tokens="llamacpp:n_decode_total", running_requests="llamacpp:requests_processing"
        )


def llama_server_image(gpu: Gpu | None) -> str:
    """Return llama.cpp's image for this GPU. The image's tag names the backend that it was built with."""
    if gpu is None:
        return IMAGE_CPU
    return f"{IMAGE}:server-{gpu.backend}" if gpu.backend else IMAGE_BY_VENDOR[gpu.vendor]


def host_argv(
    desired: DesiredService,
    *,
    model_path: str,
    port: str,
    accelerator: Accelerator,
    host: str = "127.0.0.1",
    projector_path: str = "{mmproj}",
    draft_path: str = "{draft}",
) -> list[str]:
    """Return llama-server's arguments for a process on a host.

    `port` and the paths are values, or the supervisor's placeholders for them. On metal the defaults are those of
    LLMKube's agent: all layers on the GPU, flash attention, weights locked in memory. On a CPU there is no GPU flag.
    """
    settings = _settings(desired)
    extra = settings.extra_args
    sized = settings.model_copy(update={"context_size": settings.context_size or HOST_CONTEXT_SIZE})
    gpu, flash, lock = desired.gpu, _flash(settings, accelerator), False
    if accelerator == "metal":
        # Apple's GPU is not counted: a machine has one, and all Metal models share it.
        gpu = Gpu(count=1, layers=gpu.layers if gpu else None)
        lock = not mentions(extra, "--mlock")
        sized = sized.model_copy(update={"batch_size": settings.batch_size or HOST_BATCH_SIZE})
    elif accelerator == "cpu":
        gpu = None
    return [
        *_model(desired, model_path),
        *["--port", port],
        *([] if mentions(extra, "--host") else ["--host", host]),
        *_gpu(gpu),
        *_engine(
            sized,
            flash=flash,
            lock=lock,
            draft=_host_draft(desired, draft_path),
            projector=["--mmproj", projector_path] if _projector(desired, model_path) else [],
            mode=desired.mode,
            served_name=served_name_option(desired, LlamaCppRuntime.name_flags),
            adapters=[f"{{{each.token}}}" for each in desired.adapters],
        ),
    ]


def _host_draft(desired: DesiredService, draft_path: str) -> list[str]:
    """Return the flag for the draft weights, at the path where the host finds them.

    An absolute path is used unchanged.
    """
    speculative = _settings(desired).speculative
    if speculative is None or not speculative.draft_path or speculative.draft_path.startswith("/"):
        return _draft(desired, draft_path, draft_path if desired.draft is not None else "")
    return ["-md", draft_path] if speculative.type.startswith("draft-") else []


def _flash(settings: LlamaCpp, accelerator: Accelerator) -> list[str]:
    if accelerator == "cpu":
        return []
    if settings.flash_attention is None:
        return ["--flash-attn", "on"] if accelerator == "metal" else []
    return ["--flash-attn", "on" if settings.flash_attention else "off"]


def _settings(desired: DesiredService) -> LlamaCpp:
    assert isinstance(desired.engine, LlamaCpp), desired.engine
    return desired.engine


def _model(desired: DesiredService, model_path: str) -> list[str]:
    source = desired.model.source
    if source.kind is SourceKind.REPOSITORY and not desired.model.files:
        return ["--hf-repo", source.repository]
    return ["--model", model_path]


def _draft(desired: DesiredService, model_path: str, draft_path: str) -> list[str]:
    """Return the flag for the draft weights: a separate Model, one of the model's files, or a file in the image."""
    speculative = _settings(desired).speculative
    if speculative is None or not speculative.type.startswith("draft-"):
        return []
    draft = desired.draft
    if draft is not None and draft.source.kind is SourceKind.REPOSITORY and not draft.files:
        return ["--hf-repo-draft", draft.source.repository]
    own = speculative.draft_path
    if own and not own.startswith("/"):
        own = f"{set_directory(desired.model, model_path)}/{own}"
    return option("-md", own or draft_path)


def _projector(desired: DesiredService, model_path: str) -> list[str]:
    model = desired.model
    if not model.mmproj or not model.files or mentions(_settings(desired).extra_args, *_PROJECTOR):
        return []
    return ["--mmproj", f"{set_directory(model, model_path)}/{model.mmproj}"]


def _gpu(gpu: Gpu | None) -> list[str]:
    if gpu is None:
        return []
    layers = ALL_LAYERS if gpu.layers is None or gpu.layers < 0 else gpu.layers
    flags = ["--n-gpu-layers", str(layers)]
    if gpu.count > 1:
        flags += ["--split-mode", gpu.split_mode]
        if gpu.split_mode != "none":
            shares = gpu.tensor_split or (1,) * gpu.count
            flags += ["--tensor-split", ",".join(str(share) for share in shares)]
    return flags


def _engine(
    settings: LlamaCpp,
    *,
    flash: list[str],
    lock: bool = False,
    draft: list[str] | None = None,
    projector: list[str] | None = None,
    mode: Mode = "chat",
    served_name: str = "",
    adapters: Sequence[str] = (),
) -> list[str]:
    extra = settings.extra_args
    flags = [
        *positive("--ctx-size", settings.context_size),
        *([] if mentions(extra, "--rope-scaling") else _rope(settings.rope_scaling)),
        *([] if mentions(extra, "--parallel") else positive("--parallel", settings.parallel_slots)),
        *flash,
        *switch("--mlock", lock),
        *switch("--jinja", settings.jinja),
        *option("--cache-type-k", settings.cache_type_k),
        *option("--cache-type-v", settings.cache_type_v),
        *switch("--cpu-moe", settings.moe_cpu_offload),
        *positive("--n-cpu-moe", settings.moe_cpu_layers),
        *switch("--no-kv-offload", settings.no_kv_offload),
    ]
    for override in settings.tensor_overrides:
        flags += ["--override-tensor", override]
    flags += [
        *positive("--batch-size", settings.batch_size),
        *positive("--ubatch-size", settings.ubatch_size),
        *switch("--no-warmup", settings.no_warmup),
        *_speculative(settings.speculative, draft or []),
    ]
    if settings.reasoning_budget is not None:
        flags += ["--reasoning-budget", str(settings.reasoning_budget)]
        flags += option("--reasoning-budget-message", settings.reasoning_budget_message)
    flags += projector or []
    for override in settings.metadata_overrides:
        flags += ["--override-kv", override]
    flags += option("--alias", served_name)
    flags += adapter_flags(adapters, extra)
    flags += _of_mode(mode, (*extra, *flags))
    flags += extra
    return flags if mentions(extra, "--metrics") else [*flags, "--metrics"]


def _rope(rope: RopeScaling | None) -> list[str]:
    if rope is None:
        return []
    return [
        *["--rope-scaling", rope.type],
        *option("--rope-scale", rope.factor),
        *positive("--yarn-orig-ctx", rope.original_context),
    ]


def _speculative(speculative: SpeculativeDecoding | None, draft: list[str]) -> list[str]:
    if speculative is None:
        return []
    p_min = speculative.p_min
    return [
        *["--spec-type", speculative.type],
        *draft,
        *positive("--spec-draft-n-max", speculative.n_draft_max),
        *option("--spec-draft-p-min", None if p_min is None else f"{p_min:g}"),
    ]


def adapter_flags(paths: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the flags that load adapters, each with scale 0, so that only requests that name one get it.

    `given` are the user's arguments, to which they are added.

    With `--lora-init-without-apply` build 11434 still applies an adapter to requests that name none. Its cache of
    prompts in the host's memory ignores adapters, so it is turned off.
    """
    flags = [word for path in paths for word in ("--lora-scaled", f"{path}:0")]
    cached = mentions(given, *_NO_CACHE[0])
    return flags if cached or not flags else [*flags, _NO_CACHE[0][0], *_NO_CACHE[1]]


def _of_mode(mode: Mode, extra: tuple[str, ...]) -> list[str]:
    """Return the flags that switch the server to embeddings or ranking and that the user's arguments do not set."""
    flags: list[str] = []
    for names, value in _MODE_FLAGS[mode]:
        if not mentions(extra, *names):
            flags += [names[0], *value]
    return flags
