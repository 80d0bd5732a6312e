"""How vLLM spreads a model over devices: fields of KServe's, arguments elsewhere. Pure.

Of one pod only: what a group of pods shares is the business of KServe's presets, which know its addresses.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubeapi.json_types import Json
from program.dialects.converting.arguments import SHARES, without
from program.dialects.converting.described import Engine
from program.dialects.converting.fields import Fields
from program.runtimes.flags import flags_of

_NUMBERS = {"pipeline": "--pipeline-parallel-size", "data": "--data-parallel-size"}
_EXPERT = "--enable-expert-parallel"


def as_arguments(engine: Engine, fields: Fields) -> list[str]:
    """Read `parallelism` of an LLMInferenceService as arguments; what is not understood stays, and is named."""
    found: list[str] = []
    if engine in SHARES or fields.peek("parallelism", "tensor") is None:
        tensor = fields.take("parallelism", "tensor")
        found += [SHARES[engine], str(tensor)] if isinstance(tensor, int) and tensor > 1 else []
    if engine != "vllm" or fields.peek("worker") is not None:
        return found
    for name, flag in _NUMBERS.items():
        number = fields.peek("parallelism", name)
        # Copies in other pods exist in groups only.
        if not isinstance(number, int) or (name == "data" and fields.peek("parallelism", "dataLocal") != number):
            continue
        fields.take("parallelism", name)
        if name == "data":
            fields.take("parallelism", "dataLocal")
        if number > 1:
            found += [flag, str(number)]
    if fields.take("parallelism", "expert"):
        found.append(_EXPERT)
    return found


def as_fields(arguments: Iterable[str]) -> tuple[list[str], Json]:
    """Take what KServe has fields for out of vLLM's arguments; give what stays, and `parallelism`."""
    rest, found = without(arguments, SHARES["vllm"], *_NUMBERS.values())
    numbers = {flag: int(value) for flag, value in found.items() if value.isdecimal() and int(value)}
    pipeline, data = numbers.get(_NUMBERS["pipeline"]), numbers.get(_NUMBERS["data"])
    if len(numbers) != len(found) or (pipeline is not None and data is not None):
        return list(arguments), {}
    fields: Json = {}
    for name, number in (("tensor", numbers.get(SHARES["vllm"])), ("pipeline", pipeline), ("data", data)):
        if number is not None:
            fields[name] = number
    if data is not None:
        fields["dataLocal"] = data
    kept = [word for flag in flags_of(rest) if flag.words != (_EXPERT,) for word in flag.words]
    if len(kept) < len(rest):
        fields["expert"] = True
    return kept, fields
