"""Chooses the context of llama-server on a host, for services that set none. Pure.

The sum of weights, KV cache and buffers must fit into the memory that the host has left (`program.sizing`). Called by
`automation.hosts.host_contexts` for the loop and by previews; `components.host_plan` renders the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from program import sizing
from program.desired.engines import LlamaCpp
from program.desired.facts import MemoryFacts
from program.desired.service import DesiredService, HostContext
from program.runtimes.flags import mentions
from program.runtimes.llamacpp import HOST_CONTEXT_SIZE

MOST_CONTEXT = 32_768
"""Tokens. Longer contexts are rarely used and cost memory; `spec.contextSize` may ask for more."""
USABLE_SHARE = 0.95
"""The share of the free memory that a process may take, because the estimate can be a few percent too low."""
PENDING = HostContext(tokens=HOST_CONTEXT_SIZE, chosen="pending")
"""The context while the model's header or the host's memory is not known."""
GPU_RESERVE_BYTES = 512 << 20
"""What drivers and other programs take of each GPU, as an agent counts it (`agent.server.memory.budget`)."""
_STEP = 1_024


@dataclass(frozen=True)
class HostRoom:
    """The memory that one replica may take on its host."""

    free_bytes: int
    """The memory for all processes, less what other processes have reserved."""
    gpu_free_bytes: int | None = None
    """The same for separate GPUs; None for a host without such, or with memory that both share."""


def usable_gpu_bytes(devices: Iterable[tuple[int, int]]) -> int | None:
    """Return the memory for models on separate GPUs, given as bytes and number of each kind; None without such GPUs."""
    return sum(max(0, size - GPU_RESERVE_BYTES * count) for size, count in devices) or None


def takes_default(desired: DesiredService) -> bool:
    """Return whether Herdsman chooses the context of a service on hosts: neither field nor argument sets it."""
    engine = desired.engine
    return (
        desired.host_placement is not None
        and isinstance(engine, LlamaCpp)
        and not engine.context_size
        and not mentions(engine.extra_args, "--ctx-size", "-c")
    )


def default_context(desired: DesiredService, room: HostRoom | None) -> HostContext:
    """Return the longest context that fits: the trained one, at most MOST_CONTEXT, halved until it fits.

    It is never shorter than HOST_CONTEXT_SIZE; if even that does not fit, the host refuses the start and says why.
    PENDING if the header, the model's size or the host's memory is not known.
    """
    gguf = desired.model.gguf
    if room is None or gguf is None or not gguf.context_length or not gguf.layer_count:
        return PENDING
    tokens = longest_context(
        gguf.context_length,
        lambda each: sizing.estimate(with_context(desired, each)),
        room,
        on_gpu=desired.model.accelerator not in ("cpu", "metal"),
    )
    return PENDING if tokens is None else HostContext(tokens=tokens, chosen="default")


def longest_context(
    trained: int, need_of: Callable[[int], MemoryFacts | None], room: HostRoom, *, on_gpu: bool
) -> int | None:
    """Return the longest context in tokens whose memory fits: `trained`, at most MOST_CONTEXT, halved until it fits.

    `need_of` returns the memory at a context; None if it is not known, and so does this function. `on_gpu`: the part
    of the memory that is not the host's must fit on the GPUs, if these have their own.
    """
    for tokens in _contexts(trained):
        need = need_of(tokens)
        if need is None:
            return None
        fits = need.total_bytes <= room.free_bytes * USABLE_SHARE
        if fits and room.gpu_free_bytes is not None and on_gpu:
            fits = need.total_bytes - need.host_bytes <= room.gpu_free_bytes * USABLE_SHARE
        if fits:
            return tokens
    return HOST_CONTEXT_SIZE


def with_context(desired: DesiredService, tokens: int) -> DesiredService:
    """Return the service as if its spec set this context."""
    assert isinstance(desired.engine, LlamaCpp), desired.engine
    return desired.model_copy(update={"engine": desired.engine.model_copy(update={"context_size": tokens})})


def _contexts(trained: int) -> Iterator[int]:
    tokens = max(HOST_CONTEXT_SIZE, min(trained, MOST_CONTEXT))
    while tokens > HOST_CONTEXT_SIZE:
        yield tokens
        tokens = max(HOST_CONTEXT_SIZE, tokens // 2 // _STEP * _STEP)
    yield HOST_CONTEXT_SIZE
