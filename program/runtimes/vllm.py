"""vLLM's OpenAI server. Called through `runtime_for`."""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

import json

from kubeapi.json_types import Json
from program.desired.engines import Speculative, Vllm
from program.desired.model import SourceKind
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


class VllmRuntime:
    """`vllm serve` in a container."""

    name = "vllm"
    container_name = "vllm"
    default_port = 8000
    command: tuple[str, ...] = ("vllm", "serve")
    needs_model_init = True
    takes_port = True
    serves_metrics = True
    default_hpa_metric = "vllm:num_requests_running"
    # A Service named `vllm` would add VLLM_PORT=tcp://… to the environment, and vLLM reads that as its port.
    service_links = False
    api_key_env = "VLLM_API_KEY"
    name_flags: tuple[str, ...] = ("--served-model-name",)
    drains = True

    def default_image(self, desired: DesiredService) -> str | None:
        return "vllm/vllm-openai:v0.25.1"

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int | str, host: str, draft_path: str = ""
    ) -> list[str]:
        settings = desired.engine
        assert isinstance(settings, Vllm), settings
        source = desired.model.source
        files = weights_path(desired.model, model_path)
        repository = source.kind is SourceKind.REPOSITORY and not (desired.model.files and files)
        gpus = desired.gpu.count if desired.gpu else 0
        spread = share_of(self.name, settings.extra_args, gpus)
        explicit = settings.tensor_parallel_size or 0
        return [
            source.repository if repository else files or source.address,
            *["--port", str(port), "--host", desired.bind_address or host],
            *option("--revision", source.revision if repository else None),
            *option("--served-model-name", served_name_option(desired, self.name_flags)),
            *(["--tensor-parallel-size", str(explicit)] if explicit > 1 else []),
            *positive("--max-model-len", settings.max_model_len),
            *option("--quantization", settings.quantization),
            *option("--dtype", settings.dtype),
            *option("--kv-cache-dtype", None if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype),
            *switch("--enable-prefix-caching", settings.enable_prefix_caching),
            *switch("--enable-chunked-prefill", settings.enable_chunked_prefill),
            *positive("--max-num-batched-tokens", settings.max_num_batched_tokens),
            *option("--attention-backend", settings.attention_backend),
            *_speculative(settings.speculative),
            *switch("--enable-expert-parallel", settings.enable_expert_parallel),
            *(_gpu_memory(settings) if gpus else []),
            *(["--tensor-parallel-size", str(spread)] if spread > 1 and not explicit else []),
            *positive("--max-num-seqs", settings.max_num_seqs),
            *settings.extra_args,
        ]

    def env(self, desired: DesiredService) -> list[Json]:
        assert isinstance(desired.engine, Vllm), desired.engine
        return [*secret_env("HF_TOKEN", desired.engine.hf_token), *secret_env(self.api_key_env, desired.api_key)]

    def probes(self, port: int) -> Probes:
        return http_probes("/health", port)

    # An API key protects only the paths below /v1.

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        return None if desired.api_key else named_completion(desired)

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return IdleProbe(path="/metrics", kind="gauge", gauge="vllm:num_requests_running")

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        return ProgressMetrics(
            generated_tokens="vllm:generation_tokens_total", running_requests="vllm:num_requests_running"
        )


def host_adapters(desired: DesiredService) -> list[str]:
    """Return the arguments that load the adapters of a process on a host when it starts.

    In pods vLLM loads them while it runs. A rank above 16 needs `--max-lora-rank` in the user's arguments.
    """
    assert isinstance(desired.engine, Vllm), desired.engine
    if not desired.adapters:
        return []
    enabled = mentions(desired.engine.extra_args, "--enable-lora")
    modules = [f"{each.name}={{{each.token}}}" for each in desired.adapters]
    return [*([] if enabled else ["--enable-lora"]), "--lora-modules", *modules]


def _speculative(wish: Speculative | None) -> list[str]:
    """Return vLLM's one flag for it. The older flags (`--speculative-model`) end vLLM at its start."""
    if wish is None:
        return []
    config = {"model": wish.model, "num_speculative_tokens": wish.num_speculative_tokens}
    return ["--speculative-config", json.dumps({k: v for k, v in config.items() if v is not None})]


def _gpu_memory(settings: Vllm) -> list[str]:
    share = settings.gpu_memory_utilization
    return [
        *positive("--cpu-offload-gb", settings.cpu_offload_gb),
        *option("--gpu-memory-utilization", None if share is None else f"{share:g}"),
    ]
