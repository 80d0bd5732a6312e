"""Estimate the memory that a service's engine will take, beside what the service asks for. Pure.

Called by the loop, for the status and for placement; the estimate itself is `program.runtimes.llamacpp_memory`.
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
    """Estimate what one replica needs, beside what the service asks for; `available_bytes` is left to the caller.

    None where nothing can be said: another engine than llama.cpp, or a model of which not even the size is known.
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
    """Give the memory that a process on a host is said to need, for engines that cannot be estimated.

    None for llama.cpp, whose need the host reads off the model itself, and where the service says nothing.
    """
    if isinstance(desired.engine, LlamaCpp):
        return None
    return bytes_of(desired.pod.memory_request, field="spec.resources.memory")


def _argv(desired: DesiredService) -> list[str]:
    """Build the arguments that the engine is started with: hosts have defaults of their own."""
    if desired.host_placement is not None:
        return host_argv(desired, model_path="model", port="0", accelerator=desired.model.accelerator)
    return runtime_for(desired.engine).argv(desired, model_path="model", port=0, host="")


def _together(desired: DesiredService, serving: Serving) -> MemoryFacts | None:
    """Estimate the model and, where there is one, its draft model."""
    found = memory_of(desired.model, serving)
    draft = memory_of(desired.draft, serving) if desired.draft else None
    return found if found is None or draft is None else together([found, draft])


def _fitted(desired: DesiredService, serving: Serving, whole: MemoryFacts, asked_bytes: int) -> MemoryFacts:
    """Shorten the context as llama-server does when it is told none and the GPU has too little for the trained one."""
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
    """Estimate what serving one model takes; None if its size is not known."""
    gguf = model.gguf or GgufFacts()
    # The header of the first of several files tells of its own tensors only.
    weights = model.size_bytes if model.files else gguf.weights_bytes or model.size_bytes
    return model_memory(gguf, serving, weights_bytes=weights) if weights else None


def _asked(desired: DesiredService) -> int | None:
    """Tell what the service asks for: GPU memory of a replica where it has GPUs, else the pod's memory."""
    if desired.gpu is None:
        return bytes_of(desired.pod.memory_request, field="spec.resources.memory")
    if desired.gpu_memory_bytes is not None:
        return desired.gpu_memory_bytes
    per_gpu = desired.model.gpu.memory_bytes if desired.model.gpu else None
    return per_gpu * desired.gpu.count if per_gpu is not None else None
