"""OpenAI's completions by models that have only chats: the prompt becomes one message of the user. Pure.

The form is that of "Completions" in OpenAI's API reference. Fields that only tune the sampling are passed on as for a
chat; what a chat cannot do (`suffix`, `echo`, tokens as prompt) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.routers.answers import Message
from gateway.routers.chat import NotTranslatable
from gateway.routers.choice_form import ChoiceForm
from kubeapi.json_types import Json

DEFAULT_MAX_TOKENS = 16
"""OpenAI's limit for a completion whose request has none."""
_KEPT = ("temperature", "top_p", "stop", "stream", "stream_options", "seed", "user")


def chat_values(values: Mapping[str, Any], provider: str) -> Json:
    """Return the fields of a chat completion. Raises NotTranslatable."""
    for name in ("suffix", "echo", "logprobs"):
        if values.get(name):
            raise NotTranslatable(f"{provider} has no `{name}`", name)
    for name in ("n", "best_of"):
        if values.get(name) not in (None, 1):
            raise NotTranslatable(f"{provider} makes one answer for a request; `{name}` must be 1", name)
    prompt = values.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise NotTranslatable(f"{provider} takes one prompt, as a text that is not empty", "prompt")
    made = {name: values[name] for name in _KEPT if values.get(name) is not None}
    limit = values.get("max_tokens")
    if limit == 0:
        raise NotTranslatable(f"{provider} makes at least one token", "max_tokens")
    return made | {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": DEFAULT_MAX_TOKENS if limit is None else limit,
    }


class CompletionForm(ChoiceForm):
    """Writes a completion, or its chunks. Calls of tools cannot occur."""

    ID, KIND, CHUNK_KIND = "cmpl", "text_completion", "text_completion"

    def whole(self, message: Message) -> bytes:
        return self._whole(message, _choice(message.text, message.finish))

    def begins(self) -> bytes:
        return b""

    def text(self, part: str) -> bytes:
        return self._chunk(_choice(part, None))

    def tool_begins(self, index: int, call_id: str, name: str) -> bytes:  # noqa: ARG002 - `Form`'s signature
        return b""

    def tool_arguments(self, index: int, part: str) -> bytes:  # noqa: ARG002 - `Form`'s signature
        return b""

    def finishes(self, finish: str) -> bytes:
        return self._chunk(_choice("", finish))


def _choice(text: str, finish: str | None) -> Json:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
