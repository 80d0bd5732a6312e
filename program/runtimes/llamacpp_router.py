"""llama-server as a router over a directory of models. Called through `runtime_for`."""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

from program.desired.engines import LlamaCppRouter
from program.desired.service import DesiredService
from program.runtimes.base import CompletionRequest, IdleProbe, ProgressMetrics
from program.runtimes.flags import mentions
from program.runtimes.llamacpp import LlamaCppRuntime

MODELS_DIRECTORY = "/models"
"""Mount path of the user's volume. It holds one GGUF file, or one directory of files, for each model."""


class LlamaCppRouterRuntime(LlamaCppRuntime):
    """One llama-server that loads and unloads models by the name in a request."""

    name = "llamacpp-router"
    needs_model_init = False
    name_flags: tuple[str, ...] = ()

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        settings = desired.engine
        assert isinstance(settings, LlamaCppRouter), settings
        extra = settings.extra_args
        return [
            *([] if mentions(extra, "--models-dir") else ["--models-dir", MODELS_DIRECTORY]),
            *["--port", str(port)],
            *([] if mentions(extra, "--host") else ["--host", desired.bind_address or host]),
            *([] if mentions(extra, "--metrics") else ["--metrics"]),
            *extra,
        ]

    # The router's answers do not describe the models behind it, and only the user knows which models there are.

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        return None

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return None

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        return None
