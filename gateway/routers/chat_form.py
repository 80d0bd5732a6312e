"""The answers of OpenAI's chat completions. Pure."""

from __future__ import annotations

import time
import uuid

from gateway.routers.answers import Message, Usage, encoded, events
from kubeapi.json_types import Json


class ChatForm:
    """Writes a chat completion, or its chunks."""

    def __init__(self, model: str, *, with_usage: bool = False) -> None:
        """`with_usage`: a stream ends with a chunk that has the usage."""
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._model = model
        self._with_usage = with_usage
        self._created = int(time.time())
        self._tools: dict[int, int] = {}
        """The number of a call by the provider's index."""

    def whole(self, message: Message) -> bytes:
        calls = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for each in message.calls
        ]
        said: Json = {"role": "assistant", "content": message.text or (None if calls else "")}
        choice = {
            "index": 0,
            "message": {**said, "tool_calls": calls} if calls else said,
            "finish_reason": message.finish,
            "logprobs": None,
        }
        made = self._base("chat.completion") | {"choices": [choice], "usage": usage_of(message.usage)}
        return encoded(made | ({"id": message.id} if message.id else {}))

    def begins(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, part: str) -> bytes:
        return self._chunk({"content": part})

    def tool_begins(self, index: int, call_id: str, name: str) -> bytes:
        number = self._tools[index] = len(self._tools)
        function = {"name": name, "arguments": ""}
        return self._chunk({"tool_calls": [{"index": number, "id": call_id, "type": "function", "function": function}]})

    def tool_arguments(self, index: int, part: str) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._tools[index], "function": {"arguments": part}}]})

    def finishes(self, finish: str) -> bytes:
        return self._chunk({}, finish)

    def ends(self, usage: Usage) -> bytes:
        made = self._base("chat.completion.chunk") | {"choices": [], "usage": usage_of(usage)}
        return (events([made]) if self._with_usage else b"") + b"data: [DONE]\n\n"

    def _chunk(self, delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        base = self._base("chat.completion.chunk")
        return events([{**base, "choices": [choice], **({"usage": None} if self._with_usage else {})}])

    def _base(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}


def usage_of(usage: Usage) -> Json:
    """Return the usage as chat completions and completions have it."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
