"""Hugging Face's Text Generation Inference. Called through `runtime_for`."""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired.engines import Tgi
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
    weights_path,
)
from program.runtimes.flags import mentions


class TgiRuntime:
    """text-generation-launcher in a container. It fetches repositories itself."""

    name = "tgi"
    container_name = "tgi"
    default_port = 80
    command: tuple[str, ...] = ()
    needs_model_init = False
    takes_port = True
    serves_metrics = True
    default_hpa_metric = "tgi:queue_size"
    service_links = True
    api_key_env = "API_KEY"
    name_flags: tuple[str, ...] = ()
    drains = True

    def default_image(self, desired: DesiredService) -> str | None:
        return "ghcr.io/huggingface/text-generation-inference:3.3.7"

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        settings = desired.engine
        assert isinstance(settings, Tgi), settings
        source = desired.model.source
        files = weights_path(desired.model, model_path)
        repository = source.kind is SourceKind.REPOSITORY and not (desired.model.files and files)
        gpus = desired.gpu.count if desired.gpu else 0
        return [
            *["--model-id", source.repository if repository else files or source.address],
            *["--port", str(port)],
            # The launcher stops if a flag is repeated.
            *([] if mentions(settings.extra_args, "--hostname") else ["--hostname", desired.bind_address or host]),
            *option("--revision", source.revision if repository else None),
            *option("--quantize", settings.quantize),
            *positive("--max-input-length", settings.max_input_length),
            *positive("--max-total-tokens", settings.max_total_tokens),
            *option("--dtype", settings.dtype),
            *(["--num-shard", str(gpus)] if gpus > 1 and not mentions(settings.extra_args, "--num-shard") else []),
            *settings.extra_args,
        ]

    def env(self, desired: DesiredService) -> list[Json]:
        assert isinstance(desired.engine, Tgi), desired.engine
        token = secret_env("HUGGING_FACE_HUB_TOKEN", desired.engine.hf_token)
        return [*token, *secret_env(self.api_key_env, desired.api_key)]

    def probes(self, port: int) -> Probes:
        return http_probes("/health", port)

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        return None if desired.api_key else small_completion("chat")

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return IdleProbe(path="/metrics", kind="gauge", gauge="tgi_batch_current_size")

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        # Counts the passes through the model. TGI counts tokens only at the end of a request.
        return ProgressMetrics(generated_tokens="tgi_batch_inference_count", running_requests="tgi_batch_current_size")
