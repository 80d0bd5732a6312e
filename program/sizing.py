"""Estimates the memory that a service's engine needs. Pure.

The loop calls it for the status and for placement. `program.runtimes.llamacpp_memory` computes the estimate.
"""

from __future__ import annotations

from program.desired.engines import LlamaCpp
from program.desired.facts import MemoryFacts
from program.desired.model import DesiredModel, GgufFacts
from program.desired.quantities import bytes_of
from program.desired.service import DesiredService
from program.runtimes import runtime_for
from program.runtimes.llamacpp import host_argv
from program.runtimes.llamacpp_memory import (
    DEFAULT_CONTEXT,
    FITTED_CONTEXT,
    PADDING,
    Serving,
    model_memory,
    serving_of,
    together,
)


def estimate(desired: DesiredService) -> MemoryFacts | None:
    """Estimate the memory of one replica. The result also has the memory that the service asks for.

    Returns None for an engine other than llama.cpp, and for a model of unknown size.
    """
    if not isinstance(desired.engine, LlamaCpp):
        return None
    serving, asked = serving_of(_argv(desired)), _asked(desired)
    found = _together(desired, serving)
    if found is None:
        return None
    if desired.gpu is not None and serving.fits_context and asked is not None:
        found = _fitted(desired, serving, found, asked)
    return found.model_copy(update={"asked_bytes": asked})


def declared_bytes(desired: DesiredService) -> int | None:
    """Return the bytes that the service declares for a process on a host, for engines that cannot be estimated.

    None for llama.cpp, whose memory the host estimates from the model, and for a service that declares no memory.
    """
    if isinstance(desired.engine, LlamaCpp):
        return None
    return bytes_of(desired.pod.memory_request, field="spec.resources.memory")


def _argv(desired: DesiredService) -> list[str]:
    """Return the arguments of the engine. The defaults on hosts differ from those in pods."""
    if desired.host_placement is not None:
        context = desired.host_placement.context_of(0)
        if context is not None and isinstance(desired.engine, LlamaCpp) and not desired.engine.context_size:
            engine = desired.engine.model_copy(update={"context_size": context.tokens})
            desired = desired.model_copy(update={"engine": engine})
        return host_argv(desired, model_path="model", port="0", accelerator=desired.model.accelerator)
    return runtime_for(desired.engine).argv(desired, model_path="model", port=0, host="")


def _together(desired: DesiredService, serving: Serving) -> MemoryFacts | None:
    """Estimate the model and its draft model, if there is one."""
    found = memory_of(desired.model, serving)
    draft = memory_of(desired.draft, serving) if desired.draft else None
    return found if found is None or draft is None else together([found, draft])


def _fitted(desired: DesiredService, serving: Serving, whole: MemoryFacts, asked_bytes: int) -> MemoryFacts:
    """Shorten the context as llama-server does: no argument sets it, and the trained one does not fit on the GPU."""
    trained = (desired.model.gguf.context_length if desired.model.gguf else None) or DEFAULT_CONTEXT
    shortest, longest = min(FITTED_CONTEXT, trained) // PADDING, trained // PADDING
    found = whole
    while found.total_bytes - found.host_bytes > asked_bytes and shortest < longest:
        longest = (shortest + longest) // 2
        shorter = _together(desired, serving.model_copy(update={"context": max(1, longest) * PADDING}))
        assert shorter is not None
        found = shorter
    return found


def memory_of(model: DesiredModel, serving: Serving) -> MemoryFacts | None:
    """Estimate the memory that serving one model takes; None if the model's size is unknown."""
    gguf = model.gguf or GgufFacts()
    # With several files, the header of the first describes only the tensors of that file.
    weights = model.size_bytes if model.files else gguf.weights_bytes or model.size_bytes
    return model_memory(gguf, serving, weights_bytes=weights) if weights else None


def _asked(desired: DesiredService) -> int | None:
    """Return the memory in bytes that the service asks for: GPU memory if it has GPUs, else the pod's memory."""
    if desired.gpu is None:
        return bytes_of(desired.pod.memory_request, field="spec.resources.memory")
    if desired.gpu_memory_bytes is not None:
        return desired.gpu_memory_bytes
    per_gpu = desired.model.gpu.memory_bytes if desired.model.gpu else None
    return per_gpu * desired.gpu.count if per_gpu is not None else None
