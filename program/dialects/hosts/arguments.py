"""Translates arguments that were written for a pod into settings of the engine that serves on a host. Pure.

Arguments for the model, the address and the port are left out, because the host chooses these. Arguments that the
host's engine has settings for are translated, also from another engine's flags. The other arguments are kept if they
are for the same engine; otherwise they are reported, if the user wrote them.
"""

from __future__ import annotations

from collections.abc import Sequence

from program.desired.engines import EngineSettings, LlamaCpp, Ollama, Omlx, SpeculativeDecoding, Vllm
from program.desired.facts import Problem, unsupported_field
from program.desired.model import DesiredModel
from program.dialects.hosts.model import HostEngine
from program.runtimes.flags import Flag, flags_of

_HOSTS_OWN: dict[str, frozenset[str]] = {
    "llamacpp": frozenset(
        {
            *("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"),
            *("--host", "--port", "-md", "--model-draft", "--spec-draft-model"),
        }
    ),
    "vllm": frozenset({"--model", "--host", "--port", "--revision"}),
}
"""Flags with a value that the host sets."""
_SERVED_BY_US = frozenset({"--metrics"})
"""Switches that Herdsman sets for every llama-server."""
_CONTEXT: dict[str, tuple[str, ...]] = {
    "llamacpp": ("-c", "--ctx-size"),
    "vllm": ("--max-model-len",),
    "sglang": ("--context-length",),
    "tensorrt-llm": ("--max_seq_len",),
}
_SLOTS: dict[str, tuple[str, ...]] = {
    "llamacpp": ("-np", "--parallel"),
    "vllm": ("--max-num-seqs",),
    "sglang": ("--max-running-requests",),
    "tensorrt-llm": ("--max_batch_size",),
}
_DRAFT_MAX = ("--draft", "--draft-n", "--draft-max", "--spec-draft-n-max")
_DRAFT_MIN = ("--draft-min", "--draft-n-min")
POD_PATHS = ("/mnt/models", "/mnt/lora", "/workspace/models")
"""Directories of models in pods of KServe and llmaz, which do not exist on hosts."""


def translate_arguments(
    chosen: HostEngine,
    written_for: str,
    *,
    preset: Sequence[str],
    own: Sequence[str],
    field: str,
    draft: DesiredModel | None,
) -> tuple[EngineSettings, tuple[Problem, ...]]:
    """Return settings of engine `chosen` from arguments for engine `written_for`, and the unsupported arguments.

    A `preset` is used only for the same engine. The user's `own` arguments, at `field`, follow it.
    """
    lost: list[Problem] = []
    settings = _Settings(chosen, written_for)
    if chosen == written_for:
        for flag in flags_of(preset):
            settings.add(flag)
    for flag in flags_of(own):
        why = settings.add(flag)
        if why:
            lost.append(unsupported_field(f"{field}[{flag.index}]", why))
    return settings.engine(draft), tuple(lost)


class _Settings:
    """The settings of the host's engine under construction."""

    def __init__(self, chosen: HostEngine, written_for: str) -> None:
        self._chosen = chosen
        self._from = written_for
        self._context: int | None = None
        self._slots: int | None = None
        self._draft_max: int | None = None
        self._extra: list[str] = []

    def add(self, flag: Flag) -> str:
        """Add one flag. Return why it has no effect, or an empty text."""
        if flag.name in _HOSTS_OWN.get(self._from, ()) or (not flag.name and self._from == "vllm"):
            return ""
        if self._chosen in ("llamacpp", "vllm") and self._translated(flag):
            return ""
        shown = flag.name or flag.words[0][:64]
        if self._chosen != self._from:
            theirs = f"is an argument for {self._from}" if self._from else "is an argument for another engine"
            return f"`{shown}` {theirs}, and on the host {self._chosen} serves the model"
        if any(word.startswith(POD_PATHS) or f"={path}" in word for word in flag.words for path in POD_PATHS):
            return f"`{shown}` names a path that exists only in pods"
        if flag.name in _SERVED_BY_US:
            return ""
        if self._chosen in ("ollama", "omlx"):
            return f"`{shown}` is not an argument of {self._chosen}"
        self._extra += flag.words
        return ""

    def _translated(self, flag: Flag) -> bool:
        if self._chosen != "llamacpp":
            return False
        if flag.name in _CONTEXT.get(self._from, ()) and flag.number is not None:
            self._context = flag.number
        elif flag.name in _SLOTS.get(self._from, ()) and flag.number is not None:
            self._slots = flag.number
        elif self._from == "llamacpp" and flag.name in _DRAFT_MAX and flag.number is not None:
            self._draft_max = flag.number
        elif self._from == "llamacpp" and flag.name in _DRAFT_MIN:
            # llama-server no longer has the older names.
            self._extra += ["--spec-draft-n-min", *flag.words[1:]]
        else:
            return False
        return True

    def engine(self, draft: DesiredModel | None) -> EngineSettings:
        """Return the settings."""
        extra = tuple(self._extra)
        match self._chosen:
            case "llamacpp":
                speculative = SpeculativeDecoding(type="draft-simple", n_draft_max=self._draft_max)
                return LlamaCpp(
                    context_size=self._context,
                    parallel_slots=self._slots,
                    speculative=speculative if draft is not None else None,
                    extra_args=extra,
                )
            case "vllm":
                return Vllm(extra_args=extra)
            case "omlx":
                return Omlx(extra_args=extra)
            case "ollama":
                return Ollama()
