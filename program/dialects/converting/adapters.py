"""LoRA adapters: fields of KServe's; elsewhere arguments of vLLM's, which fetches them itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from program.dialects.converting.arguments import without
from program.dialects.converting.described import Engine, Source, Weights, Written
from program.runtimes.flags import flags_of

LIMITS = {"maxRank": "--max-lora-rank", "maxAdapters": "--max-loras", "maxCpuAdapters": "--max-cpu-loras"}
"""KServe's fields, and vLLM's flags."""
_ADAPTER = re.compile(r"[^=\s{}]+=[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def taken_out(engine: Engine, arguments: Iterable[str]) -> tuple[list[str], tuple[Weights, ...]]:
    """Take vLLM's adapters out of its arguments, where all of them are repositories; give what stays, and them."""
    words = list(arguments)
    flags = list(flags_of(words))
    named = [word for flag in flags if flag.name == "--lora-modules" for word in flag.words[1:]]
    found = [word.split("=", 1) for word in named if _ADAPTER.fullmatch(word)]
    names = {name for name, _ in found}
    if engine != "vllm" or not named or len(found) != len(named) or len(names) != len(found):
        return words, ()
    rest: list[str] = []
    for flag in flags:
        # --enable-lora is a switch: what follows it is no value of it.
        rest += {"--lora-modules": (), "--enable-lora": flag.words[1:]}.get(flag.name, flag.words)
    return rest, tuple(Weights(name=name, source=Source(kind="hub", address=at)) for name, at in found)


def limits_in(arguments: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """Take KServe's limits of LoRA out of vLLM's arguments; give what stays, and them."""
    words = list(arguments)
    rest, found = without(words, *LIMITS.values())
    if any(not value.isdecimal() or not int(value) for value in found.values()):
        return words, {}
    return rest, {name: int(found[flag]) for name, flag in LIMITS.items() if flag in found}


def as_arguments(written: Written, *, target: str) -> list[str]:
    """Write the adapters as arguments of vLLM's."""
    adapters: tuple[Weights, ...] = written.take("adapters")
    if not adapters:
        return []
    if written.described.engine != "vllm" or any(each.source.kind != "hub" for each in adapters):
        written.lose("adapters", f"{target} fetches no adapters; vLLM takes those of Hugging Face as arguments")
        return []
    if any(each.source.revision for each in adapters):
        written.lose("adapters", "vLLM takes adapters of the main branch only")
        return []
    named = [f"{each.name}={each.source.address}" for each in adapters]
    return ["--enable-lora", "--lora-modules", *named]
