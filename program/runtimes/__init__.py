"""One module per inference engine. Each turns desired state into command line, environment, probes and ports. Pure.

`components` calls it for pods and for host processes, so that each engine has one builder of arguments.
"""

from __future__ import annotations

from typing import assert_never

from program.desired.engines import (
    EngineSettings,
    Generic,
    LlamaCpp,
    LlamaCppRouter,
    Ollama,
    Omlx,
    PersonaPlex,
    Sglang,
    TensorRtLlm,
    Tgi,
    Vllm,
)
from program.runtimes.base import CompletionRequest, IdleProbe, Probes, ProgressMetrics, Runtime
from program.runtimes.generic import GenericRuntime
from program.runtimes.llamacpp import LlamaCppRuntime
from program.runtimes.llamacpp_router import LlamaCppRouterRuntime
from program.runtimes.ollama import OllamaRuntime
from program.runtimes.omlx import OmlxRuntime
from program.runtimes.personaplex import PersonaPlexRuntime
from program.runtimes.sglang import SglangRuntime
from program.runtimes.tensorrt_llm import TensorRtLlmRuntime
from program.runtimes.tgi import TgiRuntime
from program.runtimes.vllm import VllmRuntime

__all__ = ["CompletionRequest", "IdleProbe", "Probes", "ProgressMetrics", "Runtime", "runtime_for"]


def runtime_for(settings: EngineSettings) -> Runtime:
    """Return the runtime of these settings."""
    match settings:
        case LlamaCpp():
            return LlamaCppRuntime()
        case LlamaCppRouter():
            return LlamaCppRouterRuntime()
        case Vllm():
            return VllmRuntime()
        case Sglang():
            return SglangRuntime()
        case Tgi():
            return TgiRuntime()
        case TensorRtLlm():
            return TensorRtLlmRuntime()
        case PersonaPlex():
            return PersonaPlexRuntime()
        case Ollama():
            return OllamaRuntime()
        case Omlx():
            return OmlxRuntime()
        case Generic():
            return GenericRuntime()
        case _:
            assert_never(settings)
