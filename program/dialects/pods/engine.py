"""The engine in pods whose spec a user or a preset writes: which one it is, and which requests it answers. Pure.

The completion check (`automation/serving/completion_check.py`) asks vLLM, llama.cpp and SGLang by default.
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
"""The engines that are asked for a completion unless an annotation says otherwise."""

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
"""Words in an image or a command, and the engine that they stand for."""
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
"""Values of vLLM's `--task` and `--convert` that a request is known for."""
_NAME = re.compile(r"[\w./:@+-]+")


def argv_of(container: Json) -> list[str]:
    """Return the words of a container's command and arguments."""
    return [str(word) for part in ("command", "args") for word in container.get(part) or ()]


def engine_in(words: Iterable[str]) -> str:
    """Recognise an engine by its image or command; empty for none that is known."""
    text = " ".join(words).lower()
    return next((engine for word, engine in _WORDS if word in text), "")


def settings_of(engine: str) -> EngineSettings:
    """Return the settings of an engine by its kind; those of a generic one where it is not known."""
    return _SETTINGS.get(engine) or Generic()


def mode_of(engine: str, container: Json) -> Mode | None:
    """Return what the container's arguments make the engine answer; None for what no request is known for."""
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
    """Return the model's name in requests, which older releases of vLLM require; empty where none is needed or known.

    Without a name in the arguments vLLM gives the model the name of its path.
    """
    if engine not in ("vllm", "sglang"):
        return ""
    words = _arguments(container)
    name = word_of(words, "--served-model-name") or (word_of(words, "--model") if engine == "vllm" else "")
    return name if _NAME.fullmatch(name) else ""


def wants_check(
    annotations: Mapping[str, str], engine: str, workloads: Workloads, mode: Mode | None, *, annotated: bool
) -> bool:
    """Return whether the replicas are asked for a completion; `annotated` is what the annotation says, or its default.

    A pod that only decodes, or only prefills, answers nothing by itself.
    """
    if mode is None or workloads.pod_set("prefill") is not None:
        return False
    return annotated and (engine in ASKED or bool(annotations.get(keys.ANNOTATION_COMPLETION_CHECK)))


def _arguments(container: Json) -> list[str]:
    """Split command and arguments, also those in a shell's script, into words; vLLM takes `_` for `-` in flags."""
    more = (each.get("value") or "" for each in container.get("env") or () if each.get("name") == _MORE_ARGUMENTS)
    words = [word.strip("\"'();") for part in (*argv_of(container), *map(str, more)) for word in part.split()]
    return [_dashed(word) for word in words]


def _dashed(word: str) -> str:
    flag, equals, value = word.partition("=")
    return f"{dashed(flag)}{equals}{value}" if flag.startswith("--") else word
