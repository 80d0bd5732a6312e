"""oMLX on hosts: one daemon on a Mac that serves MLX models from one directory each. Called through `runtime_for`."""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired.engines import Omlx
from program.desired.model import DesiredModel, SourceKind
from program.desired.service import DesiredService
from program.runtimes.base import (
    CompletionRequest,
    IdleProbe,
    Probes,
    ProgressMetrics,
    http_probes,
    option,
    served_mode,
    small_completion,
)

HEALTH_PATH = "/v1/models/status"
MODELS = "{models}"
"""Placeholder for the directory in which the host's agent collects the models."""


class OmlxRuntime:
    """`omlx serve` on a host."""

    name = "omlx"
    container_name = "omlx"
    default_port = 8000
    command: tuple[str, ...] = ("omlx", "serve")
    needs_model_init = True
    takes_port = True
    serves_metrics = False
    default_hpa_metric = ""
    service_links = True
    api_key_env = ""
    name_flags: tuple[str, ...] = ()
    drains = False

    def default_image(self, desired: DesiredService) -> str | None:
        return None

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int | str, host: str, draft_path: str = ""
    ) -> list[str]:
        """Return the daemon's arguments; `model_path` is the directory of all models."""
        settings = desired.engine
        assert isinstance(settings, Omlx), settings
        bits = settings.turbo_quant_bits
        return [
            *["--model-dir", model_path, "--port", str(port), "--host", host],
            *option("--kv-cache-quant", bits),
            *option("--paged-ssd-cache-dir", settings.paged_ssd_cache_dir),
            *option("--hot-cache-max-size", settings.hot_cache_max_size),
            *option("--paged-ssd-cache-max-size", settings.paged_ssd_cache_max_size),
            *settings.extra_args,
        ]

    def env(self, desired: DesiredService) -> list[Json]:
        return []

    def probes(self, port: int) -> Probes:
        return http_probes(HEALTH_PATH, port)

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        request = small_completion(served_mode(desired))
        return request.model_copy(update={"body": {"model": omlx_name(desired.model), **request.body}})

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return None

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        return None


def omlx_name(model: DesiredModel) -> str:
    """Return the model's name in oMLX: the name of its directory."""
    source = model.source
    if source.kind is SourceKind.FILE:
        return source.path.rstrip("/").rpartition("/")[2] or model.name
    return source.repository.rpartition("/")[2] if source.kind is SourceKind.REPOSITORY else model.name
