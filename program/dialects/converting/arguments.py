"""Separates the arguments for which dialects have fields from an engine's other arguments, and joins them. Pure.

Dialects have fields for the model, the address, the names, GPUs, draft models, LoRA adapters and parallelism.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubeapi.json_types import Json
from program.dialects.converting.description import Engine, Source, TrackedDescription, Weights
from program.dialects.converting.fields import Fields
from program.runtimes.flags import Flag, flags_of
from program.runtimes.ranks import ranks_of, share_of

_OWNED: dict[Engine, frozenset[str]] = {
    "llamacpp": frozenset(
        {
            *("-m", "--model", "--host", "--port", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "--metrics"),
            *("-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd", "--hf-repo-draft"),
        }
    ),
    "vllm": frozenset({"--model", "--host", "--port", "--revision", "--served-model-name", "--speculative_model"}),
    "sglang": frozenset(
        {"--model-path", "--model", "--host", "--port", "--revision", "--enable-metrics", "--served-model-name"}
    ),
    "tgi": frozenset({"--model-id", "--hostname", "--port", "--revision"}),
    "tensorrt-llm": frozenset({"--host", "--port"}),
    "ollama": frozenset(),
    "generic": frozenset(),
}
"""Flags that each writer sets itself."""
_POSITIONAL: frozenset[Engine] = frozenset({"vllm", "tensorrt-llm"})
"""Engines whose model is an argument without a flag."""
_LONG = {
    "-c": "--ctx-size",
    "-np": "--parallel",
    "-ngl": "--n-gpu-layers",
    "--gpu-layers": "--n-gpu-layers",
    "-b": "--batch-size",
    "-ub": "--ubatch-size",
    "-fa": "--flash-attn",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "--draft-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-min",
}
_ALIASES: dict[Engine, dict[str, str]] = {
    "sglang": {"--tp-size": "--tp", "--tensor-parallel-size": "--tp"},
    "tensorrt-llm": {
        "--tensor_parallel_size": "--tp_size",
        "--pipeline_parallel_size": "--pp_size",
        "--moe_expert_parallel_size": "--ep_size",
    },
}
"""Names that mean the same to an engine."""
_SAYS_NOTHING = (["--tensor-parallel-size", "1"], ["--tp", "1"], ["--tp_size", "1"], ["--num-shard", "1"])
_SWITCHES = frozenset({"--metrics", "--enable-metrics"})
"""Flags of `_OWNED` without a value."""
_NAMES = frozenset({"--served-model-name", "-a", "--alias"})
_MODEL = frozenset({"-m", "--model", "--model-path", "--model-id"})


@dataclass(frozen=True)
class Arguments:
    """The arguments of an engine, split."""

    rest: tuple[str, ...] = ()
    served_name: str = ""
    """The model's name for clients. The last of a repeated flag counts, as in the engines."""
    aliases: tuple[str, ...] = ()
    """Further names; those of llama.cpp stay in `rest`."""
    model: str = ""
    """The model that the arguments name."""


def split_arguments(engine: Engine, arguments: Iterable[str]) -> Arguments:
    """Separate the arguments that writers set. The rest has the long form of each flag."""
    if engine == "generic":
        return Arguments(rest=tuple(arguments))
    rest: list[str] = []
    names: tuple[str, ...] = ()
    model, first = "", engine in _POSITIONAL
    for flag in flags_of(list(arguments)):
        if flag.name in _NAMES:
            names = flag.values
        if flag.name in _MODEL:
            model = flag.value
        if flag.name not in _OWNED[engine]:
            words = list(flag.words) if not flag.name else _long(flag, engine)
        elif flag.name in _NAMES:
            words = []
        else:
            # Such a flag has one value. The words after it belong to no flag.
            words = list(flag.words[1 if flag.name in _SWITCHES else 2 :])
        if words and first and (not flag.name or flag.name in _OWNED[engine]):
            first, model, words = False, words[0], words[1:]
        if words not in _SAYS_NOTHING:
            rest += words
    served = names[0] if names else ""
    if engine == "llamacpp":
        return Arguments(tuple(rest), served.partition(",")[0], (), model)
    return Arguments(tuple(rest), served, names[1:], model)


def _long(flag: Flag, engine: Engine) -> list[str]:
    name = _ALIASES.get(engine, _LONG if engine in ("llamacpp", "vllm") else {}).get(flag.name, flag.name)
    _, equals, value = flag.words[0].partition("=")
    # After a space, a value that begins with a dash would be read as a flag.
    words = [f"{name}={value}"] if value.startswith("-") else [name, value] if equals else [name]
    return [*words, *flag.words[1:]] if flag.name else list(flag.words)


def without(arguments: Iterable[str], *names: str) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without the flags `names`, and the values of these flags.

    A flag without a value stays, and so does a flag with several values.
    """
    rest: list[str] = []
    found: dict[str, str] = {}
    for flag in flags_of(list(arguments)):
        if flag.name in names and len(flag.values) == 1 and flag.value:
            found[flag.name] = flag.value
        else:
            rest += flag.words
    return rest, found


SHARES: dict[Engine, str] = {
    "vllm": "--tensor-parallel-size",
    "sglang": "--tp",
    "tensorrt-llm": "--tp_size",
    "tgi": "--num-shard",
}
"""The flag of each engine for the number of GPUs."""


def gpu_arguments(engine: Engine, gpus: int, arguments: Sequence[str] = ()) -> list[str]:
    """Return the arguments derived from the number of GPUs, reduced by the ranks of `arguments`."""
    if engine == "llamacpp":
        return ["--n-gpu-layers", "99"] if gpus else []
    share = share_of(engine, arguments, gpus)
    return [SHARES[engine], str(share)] if share > 1 and engine in SHARES else []


def with_gpus(engine: Engine, arguments: list[str], gpus: int) -> list[str]:
    """Add the arguments derived from the number of GPUs, unless the user sets them."""
    implied = gpu_arguments(engine, gpus, arguments)
    named = ranks_of(engine, arguments).names_tensor
    return [*arguments, *implied] if implied and not named else arguments


def without_gpus(engine: Engine, arguments: Iterable[str], gpus: int) -> list[str]:
    """Return the arguments without those derived from the number of GPUs, which every writer adds."""
    written = list(arguments)
    if ranks_of(engine, written).others > 1:
        return written
    implied = tuple(gpu_arguments(engine, gpus))
    return [word for flag in flags_of(written) if flag.words != implied for word in flag.words]


DRAFTED = "--num_speculative_tokens"
"""The number of tokens that vLLM drafts at once, as a flag that only this package uses."""


def split_draft(arguments: Iterable[str]) -> tuple[list[str], str]:
    """Return vLLM's arguments without its draft model, and the model's repository or path."""
    rest, found = without(arguments, "--speculative-config")
    try:
        config = json.loads(found.get("--speculative-config", "{}"))
    except ValueError:
        config = {}
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, str) or set(config) - {"model", "num_speculative_tokens"}:
        return list(arguments), ""
    tokens = config.get("num_speculative_tokens")
    return [*rest, *([DRAFTED, str(tokens)] if tokens else [])], model


def with_draft(arguments: Iterable[str], model: str) -> list[str]:
    """Return the arguments with vLLM's flag for the draft model."""
    rest, found = without(arguments, DRAFTED)
    tokens = found.get(DRAFTED, "")
    config = {"model": model, **({"num_speculative_tokens": int(tokens)} if tokens.isdecimal() else {})}
    return [*rest, "--speculative-config", json.dumps(config)]


ADAPTER_LIMITS = {"maxRank": "--max-lora-rank", "maxAdapters": "--max-loras", "maxCpuAdapters": "--max-cpu-loras"}
"""KServe's fields, and vLLM's flags."""
_ADAPTER = re.compile(r"[^=\s{}]+=[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def split_adapters(engine: Engine, arguments: Iterable[str]) -> tuple[list[str], tuple[Weights, ...]]:
    """Return vLLM's arguments without its adapters, and the adapters, if all of them are repositories."""
    words = list(arguments)
    flags = list(flags_of(words))
    named = [word for flag in flags if flag.name == "--lora-modules" for word in flag.words[1:]]
    found = [word.split("=", 1) for word in named if _ADAPTER.fullmatch(word)]
    names = {name for name, _ in found}
    if engine != "vllm" or not named or len(found) != len(named) or len(names) != len(found):
        return words, ()
    rest: list[str] = []
    for flag in flags:
        # --enable-lora is a switch, so the words after it are not its value.
        rest += {"--lora-modules": (), "--enable-lora": flag.words[1:]}.get(flag.name, flag.words)
    return rest, tuple(Weights(name=name, source=Source(kind="hub", address=at)) for name, at in found)


def split_adapter_limits(arguments: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """Return vLLM's arguments without the LoRA limits that KServe has fields for, and these limits."""
    words = list(arguments)
    rest, found = without(words, *ADAPTER_LIMITS.values())
    if any(not value.isdecimal() or not int(value) for value in found.values()):
        return words, {}
    return rest, {name: int(found[flag]) for name, flag in ADAPTER_LIMITS.items() if flag in found}


def adapter_arguments(written: TrackedDescription, *, target: str) -> list[str]:
    """Return the adapters as arguments for vLLM."""
    adapters: tuple[Weights, ...] = written.use("adapters")
    if not adapters:
        return []
    if written.description.engine != "vllm" or any(each.source.kind != "hub" for each in adapters):
        written.add_loss(
            "adapters", f"{target} fetches no adapters; only for vLLM, adapters on Hugging Face become arguments"
        )
        return []
    if any(each.source.revision for each in adapters):
        written.add_loss("adapters", "vLLM loads adapters from the main branch only")
        return []
    named = [f"{each.name}={each.source.address}" for each in adapters]
    return ["--enable-lora", "--lora-modules", *named]


_PARALLEL_SIZES = {"pipeline": "--pipeline-parallel-size", "data": "--data-parallel-size"}
_EXPERT = "--enable-expert-parallel"


def parallel_arguments(engine: Engine, fields: Fields) -> list[str]:
    """Return `parallelism` of an LLMInferenceService as arguments. Other values stay unread, so they become losses."""
    found: list[str] = []
    if engine in SHARES or fields.peek("parallelism", "tensor") is None:
        tensor = fields.read("parallelism", "tensor")
        found += [SHARES[engine], str(tensor)] if isinstance(tensor, int) and tensor > 1 else []
    if engine != "vllm" or fields.peek("worker") is not None:
        return found
    for name, flag in _PARALLEL_SIZES.items():
        number = fields.peek("parallelism", name)
        # Only groups have copies in other pods.
        if not isinstance(number, int) or (name == "data" and fields.peek("parallelism", "dataLocal") != number):
            continue
        fields.read("parallelism", name)
        if name == "data":
            fields.read("parallelism", "dataLocal")
        if number > 1:
            found += [flag, str(number)]
    if fields.read("parallelism", "expert"):
        found.append(_EXPERT)
    return found


def parallel_fields(arguments: Iterable[str]) -> tuple[list[str], Json]:
    """Return vLLM's arguments without those of parallelism, and KServe's field `parallelism`."""
    rest, found = without(arguments, SHARES["vllm"], *_PARALLEL_SIZES.values())
    numbers = {flag: int(value) for flag, value in found.items() if value.isdecimal() and int(value)}
    pipeline, data = numbers.get(_PARALLEL_SIZES["pipeline"]), numbers.get(_PARALLEL_SIZES["data"])
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
