"""Finds the engine in pods whose spec a user or a preset writes, and the requests that it answers. Pure.

By default the completion check (`automation/serving/completion_check.py`) sends requests to vLLM, llama.cpp and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from kubeapi.json_types import Json
from program.desired import keys
from program.desired.engines import EngineSettings, Generic, LlamaCpp, Ollama, Sglang, TensorRtLlm, Tgi, Vllm
from program.desired.workloads import Workloads
from program.runtimes.base import EMBEDDING_FLAGS, RERANK_FLAGS
from program.runtimes.flags import dashed, word_of

Mode = Literal["chat", "embedding", "rerank"]

ASKED = frozenset({"vllm", "llamacpp", "sglang"})
"""The engines that get a completion request unless an annotation disables it."""

_WORDS: tuple[tuple[str, str], ...] = (
    ("tensorrt", "tensorrt-llm"),
    ("trtllm", "tensorrt-llm"),
    ("text-generation", "tgi"),
    ("sglang", "sglang"),
    ("vllm", "vllm"),
    ("llama-server", "llamacpp"),
    ("llama.cpp", "llamacpp"),
    ("ollama", "ollama"),
)
"""Words in an image or a command, and the engine that they indicate."""
_SETTINGS: dict[str, EngineSettings] = {
    settings.kind: settings for settings in (LlamaCpp(), Vllm(), Sglang(), Tgi(), TensorRtLlm(), Ollama())
}
_MORE_ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
"""Variable with further arguments, which the start scripts of KServe's presets read."""
_TASKS: dict[str, Mode] = {
    "auto": "chat",
    "generate": "chat",
    "none": "chat",
    "embed": "embedding",
    "embedding": "embedding",
    "score": "rerank",
}
"""Values of vLLM's `--task` and `--convert` for which a request is known."""
_NAME = re.compile(r"[\w./:@+-]+")


def argv_of(container: Json) -> list[str]:
    """Return the words of a container's command and arguments."""
    return [str(word) for part in ("command", "args") for word in container.get(part) or ()]


def engine_in(words: Iterable[str]) -> str:
    """Recognise an engine by its image or command; empty for an unknown one."""
    text = " ".join(words).lower()
    return next((engine for word, engine in _WORDS if word in text), "")


def engine_in_container(container: Json) -> str:
    """Recognise the engine of a container; empty for an unknown one."""
    return engine_in([str(container.get("image") or ""), *argv_of(container)])


def settings_of(engine: str) -> EngineSettings:
    """Return the settings of an engine by its kind; those of a generic server for an unknown kind."""
    return _SETTINGS.get(engine) or Generic()


def mode_of(engine: str, container: Json) -> Mode | None:
    """Return the kind of requests that the engine answers, from its arguments; None if no request is known for it."""
    words = _arguments(container)
    if any(flag in words for flag in RERANK_FLAGS) or word_of(words, "--pooling") == "rank":
        return "rerank"
    if any(flag in words for flag in EMBEDDING_FLAGS):
        return "embedding"
    if engine != "vllm":
        return "chat"
    named = word_of(words, "--convert") or word_of(words, "--task")
    if named and named not in ("auto", "none"):
        return _TASKS.get(named)
    match word_of(words, "--runner"):
        case "pooling":
            return "embedding"
        case "draft":
            return None
    return "chat"


def served_name_of(engine: str, container: Json) -> str:
    """Return the model's name in requests, which older releases of vLLM require; empty if none is needed or known.

    Without a name in the arguments, vLLM uses the model's path as its name.
    """
    if engine not in ("vllm", "sglang"):
        return ""
    words = _arguments(container)
    name = word_of(words, "--served-model-name") or (word_of(words, "--model") if engine == "vllm" else "")
    return name if _NAME.fullmatch(name) else ""


def wants_check(
    annotations: Mapping[str, str], engine: str, workloads: Workloads, mode: Mode | None, *, annotated: bool
) -> bool:
    """Return whether the replicas get a completion request. `annotated` is the annotation's value, or its default.

    A pod that only decodes, or only prefills, cannot answer a request alone.
    """
    if mode is None or workloads.pod_set("prefill") is not None:
        return False
    return annotated and (engine in ASKED or bool(annotations.get(keys.ANNOTATION_COMPLETION_CHECK)))


def _arguments(container: Json) -> list[str]:
    """Split command and arguments, also inside a shell script, into words. vLLM accepts `_` for `-` in flags."""
    more = (each.get("value") or "" for each in container.get("env") or () if each.get("name") == _MORE_ARGUMENTS)
    words = [word.strip("\"'();") for part in (*argv_of(container), *map(str, more)) for word in part.split()]
    return [_dashed(word) for word in words]


def _dashed(word: str) -> str:
    flag, equals, value = word.partition("=")
    return f"{dashed(flag)}{equals}{value}" if flag.startswith("--") else word
