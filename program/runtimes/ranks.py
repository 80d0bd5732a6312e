"""Counts the ranks that an engine's arguments ask for. A rank is a process that needs one GPU. Pure.

The runtimes, the dialects' checks and the converters call it, so that all of them count the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from program.runtimes.flags import dashed, named_values

Way = Literal["tensor", "pipeline", "data", "context", "nodes"]
"""How a model is spread: each layer, the layers, copies of the model, each prompt; and over how many machines."""

_FLAGS: dict[str, dict[Way, tuple[str, ...]]] = {
    "vllm": {
        "tensor": ("--tensor-parallel-size", "-tp"),
        "pipeline": ("--pipeline-parallel-size", "-pp"),
        "data": ("--data-parallel-size", "-dp"),
        "context": ("--prefill-context-parallel-size", "-pcp"),
        "nodes": ("--nnodes", "-n"),
    },
    "sglang": {
        "tensor": ("--tensor-parallel-size", "--tp-size", "--tp"),
        "pipeline": ("--pipeline-parallel-size", "--pp-size", "--pp"),
        "data": ("--data-parallel-size", "--dp-size", "--dp"),
        "nodes": ("--nnodes",),
    },
    "tensorrt-llm": {
        "tensor": ("--tp-size", "--tensor-parallel-size"),
        "pipeline": ("--pp-size", "--pipeline-parallel-size"),
    },
    "tgi": {"tensor": ("--num-shard",)},
}
_LOCAL_COPIES = ("--data-parallel-size-local", "-dpl")
"""Copies of vLLM that run in the same pod."""
_COPIES_SHARE = "--enable-dp-attention"
"""With this flag, SGLang's copies share the GPUs of the tensor-parallel ranks."""


class _Named(NamedTuple):
    way: Way
    at: int
    value: int | None
    """None for a text that is not a whole number above zero."""


@dataclass(frozen=True)
class Ranks:
    """How arguments spread a model."""

    sizes: tuple[tuple[Way, int], ...] = ()
    at: int | None = None
    """Position of the last argument that sets a size; None if there is none."""

    def size(self, way: Way) -> int:
        """Return the size in one way; 1 if no argument sets it."""
        return dict(self.sizes).get(way, 1)

    @property
    def names_tensor(self) -> bool:
        """Whether an argument sets over how many GPUs each layer is spread."""
        return "tensor" in dict(self.sizes)

    @property
    def others(self) -> int:
        """Ranks on each machine per tensor-parallel rank."""
        return max(1, self.size("pipeline") * self.size("data") * self.size("context") // self.size("nodes"))

    @property
    def total(self) -> int:
        """Ranks on each machine."""
        every = self.size("tensor") * self.size("pipeline") * self.size("data") * self.size("context")
        return max(1, every // self.size("nodes"))


def ranks_of(engine: str, arguments: Sequence[str]) -> Ranks:
    """Read the sizes from all spellings that the engine accepts. The last of a repeated flag counts."""
    sizes: dict[Way, int] = {}
    at: int | None = None
    for named in _named(engine, arguments):
        if named.way != "nodes":
            at = named.at
        if named.value is not None:
            sizes[named.way] = named.value
    if engine == "sglang" and _COPIES_SHARE in arguments:
        sizes.pop("data", None)
    if engine == "vllm":
        local = [_number(value) for flag, _, value in named_values(arguments) if dashed(flag) in _LOCAL_COPIES]
        if local and local[-1] is not None:
            sizes["data"] = local[-1]
    return Ranks(tuple(sorted(sizes.items())), at)


def share_of(engine: str, arguments: Sequence[str], gpus: int) -> int:
    """Return over how many GPUs each layer is spread if no argument sets it: the GPUs divided by the other ranks."""
    ranks = ranks_of(engine, arguments)
    if ranks.names_tensor:
        # The user's argument comes later and counts. Development versions rendered this value too; another one would
        # change the templates of running pods.
        return gpus
    return gpus // ranks.others if gpus % ranks.others == 0 else 1


def misfit(engine: str, arguments: Sequence[str], gpus: int) -> str:
    """Return how the ranks of the arguments differ from a pod's GPUs; empty if they match, or if none are set."""
    ranks = ranks_of(engine, arguments)
    if ranks.at is None or not gpus or ranks.total == gpus:
        return ""
    sizes = " x ".join(f"{way} {size}" for way, size in ranks.sizes if way != "nodes" and size > 1) or "tensor 1"
    if ranks.total > gpus:
        return (
            f"{ranks.total} ranks ({sizes}) need {ranks.total} GPUs, and a pod has {gpus}, so the engine cannot start"
        )
    return f"{ranks.total} ranks ({sizes}) use {ranks.total} of the {gpus} GPUs of a pod"


def _named(engine: str, arguments: Sequence[str]) -> Iterator[_Named]:
    ways = _FLAGS.get(engine, {})
    known = {flag: way for way, flags in ways.items() for flag in flags}
    for flag, index, value in named_values(arguments):
        way = known.get(dashed(flag))
        if way is not None:
            yield _Named(way, index, _number(value))


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 and int(text) else None
