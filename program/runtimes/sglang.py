"""SGLang's server. Called through `runtime_for`."""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired.engines import Sglang, SglangSpeculative
from program.desired.model import GpuVendor, SourceKind
from program.desired.service import DesiredService
from program.runtimes.base import (
    CompletionRequest,
    IdleProbe,
    Probes,
    ProgressMetrics,
    http_probes,
    named_completion,
    option,
    positive,
    secret_env,
    served_name_option,
    switch,
    weights_path,
)
from program.runtimes.flags import mentions
from program.runtimes.ranks import share_of

IMAGE = "lmsysorg/sglang:v0.5.15.post1-cu129"
IMAGE_ROCM = "lmsysorg/sglang:v0.5.15-rocm720-mi30x"


class SglangRuntime:
    """`sglang.launch_server` in a container."""

    name = "sglang"
    container_name = "sglang"
    default_port = 30000
    command: tuple[str, ...] = ("python3", "-m", "sglang.launch_server")
    needs_model_init = True
    takes_port = True
    serves_metrics = True
    default_hpa_metric = "sglang:num_running_reqs"
    service_links = True
    # SGLang reads a key only from an argument, which everyone who can read the pod would see.
    api_key_env = ""
    name_flags: tuple[str, ...] = ("--served-model-name",)
    drains = True

    def default_image(self, desired: DesiredService) -> str | None:
        amd = desired.gpu is not None and desired.gpu.vendor is GpuVendor.AMD
        return IMAGE_ROCM if amd else IMAGE

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        settings = desired.engine
        assert isinstance(settings, Sglang), settings
        source = desired.model.source
        files = weights_path(desired.model, model_path)
        repository = source.kind is SourceKind.REPOSITORY and not (desired.model.files and files)
        gpus = desired.gpu.count if desired.gpu else 0
        spread = share_of(self.name, settings.extra_args, gpus)
        shares = settings.tensor_parallel_size or settings.data_parallel_size or settings.expert_parallel_size
        return [
            *["--model-path", source.repository if repository else files or source.address],
            *["--port", str(port), "--enable-metrics"],
            *([] if mentions(settings.extra_args, "--host") else ["--host", desired.bind_address or host]),
            *option("--revision", source.revision if repository else None),
            *option("--served-model-name", served_name_option(desired, self.name_flags) or settings.served_model_name),
            *positive("--tp", settings.tensor_parallel_size),
            *positive("--ep", settings.expert_parallel_size),
            *positive("--dp", settings.data_parallel_size),
            *positive("--context-length", settings.context_length),
            *option("--mem-fraction-static", _number(settings.mem_fraction_static) if gpus else None),
            *positive("--chunked-prefill-size", settings.chunked_prefill_size),
            *positive("--max-running-requests", settings.max_running_requests),
            *option("--quantization", settings.quantization),
            *option("--kv-cache-dtype", settings.kv_cache_dtype),
            *option("--attention-backend", settings.attention_backend),
            # Prefixes are cached unless this flag disables it; there is no flag that enables it.
            *switch("--disable-radix-cache", settings.enable_prefix_caching is False),
            *option("--tool-call-parser", settings.tool_call_parser),
            *option("--reasoning-parser", settings.reasoning_parser),
            *option("--chat-template", settings.chat_template),
            *_speculative(settings.speculative),
            *_lora(settings),
            *option("--log-level", settings.log_level),
            *switch("--trust-remote-code", settings.trust_remote_code),
            *switch("--skip-tokenizer-init", settings.skip_tokenizer_init),
            *(["--tp", str(spread)] if spread > 1 and not shares else []),
            *switch("--is-embedding", desired.mode == "embedding"),
            *settings.extra_args,
        ]

    def env(self, desired: DesiredService) -> list[Json]:
        assert isinstance(desired.engine, Sglang), desired.engine
        return secret_env("HF_TOKEN", desired.engine.hf_token)

    def probes(self, port: int) -> Probes:
        probes = http_probes("/health_generate", port)
        return probes.model_copy(update={"liveness": http_probes("/health", port).liveness})

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        return named_completion(desired)

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return IdleProbe(path="/metrics", kind="gauge", gauge="sglang:num_running_reqs")

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        # generation_tokens_total changes only at the end of a request: a long answer would look like an engine that
        # hangs.
        return ProgressMetrics(
            generated_tokens="sglang:realtime_tokens_total", running_requests="sglang:num_running_reqs"
        )


def _speculative(wish: SglangSpeculative | None) -> list[str]:
    if wish is None:
        return []
    return [
        *["--speculative-algorithm", wish.algorithm],
        *option("--speculative-draft-model-path", wish.draft_model_path),
        *positive("--speculative-num-steps", wish.num_steps),
        *positive("--speculative-eagle-topk", wish.eagle_top_k),
        *positive("--speculative-num-draft-tokens", wish.num_draft_tokens),
        *option("--speculative-accept-threshold-single", _number(wish.accept_threshold_single)),
        *option("--speculative-accept-threshold-acc", _number(wish.accept_threshold_acc)),
    ]


def _lora(settings: Sglang) -> list[str]:
    flags: list[str] = []
    if settings.lora_adapters:
        flags += ["--lora-paths", *(f"{name}={path}" for name, path in settings.lora_adapters)]
    flags += positive("--max-lora-rank", settings.max_lora_rank)
    if settings.lora_target_modules:
        flags += ["--lora-target-modules", *settings.lora_target_modules]
    return flags


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"
