"""NVIDIA's TensorRT-LLM: `trtllm-serve`. Called through `runtime_for`.

The flags follow its documentation (nvidia.github.io/TensorRT-LLM, commands/trtllm-serve), which writes them with
underscores.
"""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired.engines import TensorRtLlm
from program.desired.model import SourceKind
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
    small_completion,
    switch,
    weights_path,
)
from program.runtimes.flags import mentions
from program.runtimes.ranks import share_of

IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"


class TensorRtLlmRuntime:
    """`trtllm-serve` in a container. It fetches repositories itself."""

    name = "tensorrt-llm"
    container_name = "tensorrt-llm"
    default_port = 8000
    command: tuple[str, ...] = ("trtllm-serve",)
    needs_model_init = True
    takes_port = True
    # Its /metrics are statistics in JSON, not Prometheus' text format.
    serves_metrics = False
    default_hpa_metric = ""
    service_links = True
    api_key_env = ""
    name_flags: tuple[str, ...] = ()
    drains = True

    def default_image(self, desired: DesiredService) -> str | None:
        return IMAGE

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        settings = desired.engine
        assert isinstance(settings, TensorRtLlm), settings
        source = desired.model.source
        files = weights_path(desired.model, model_path)
        repository = source.kind is SourceKind.REPOSITORY and not (desired.model.files and files)
        gpus = desired.gpu.count if desired.gpu else 0
        spread = share_of(self.name, settings.extra_args, gpus)
        shares = settings.tensor_parallel_size or settings.pipeline_parallel_size
        share = settings.kv_cache_free_gpu_memory_fraction
        return [
            source.repository if repository else files or source.address,
            *([] if mentions(settings.extra_args, "--host") else ["--host", desired.bind_address or host]),
            *["--port", str(port)],
            *option("--backend", settings.backend),
            *positive("--tp_size", settings.tensor_parallel_size),
            *positive("--pp_size", settings.pipeline_parallel_size),
            *positive("--ep_size", settings.expert_parallel_size),
            *positive("--max_batch_size", settings.max_batch_size),
            *positive("--max_num_tokens", settings.max_num_tokens),
            *positive("--max_seq_len", settings.max_seq_len),
            *option("--kv_cache_free_gpu_memory_fraction", None if share is None else f"{share:g}"),
            *option("--extra_llm_api_options", settings.extra_llm_api_options),
            *option("--reasoning_parser", settings.reasoning_parser),
            *switch("--trust_remote_code", settings.trust_remote_code),
            *(["--tp_size", str(spread)] if spread > 1 and not shares else []),
            *settings.extra_args,
        ]

    def env(self, desired: DesiredService) -> list[Json]:
        assert isinstance(desired.engine, TensorRtLlm), desired.engine
        return secret_env("HF_TOKEN", desired.engine.hf_token)

    def probes(self, port: int) -> Probes:
        return http_probes("/health", port)

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        # The request must name a model; any name selects the one that is served.
        request = small_completion("chat")
        return request.model_copy(update={"body": {"model": desired.model.name, **request.body}})

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return None

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        return None
