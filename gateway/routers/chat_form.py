"""The answers of OpenAI's chat completions. Pure."""

from __future__ import annotations

from gateway.routers.answers import Message
from gateway.routers.choice_form import ChoiceForm
from kubeapi.json_types import Json


class ChatForm(ChoiceForm):
    """Writes a chat completion, or its chunks."""

    ID, KIND, CHUNK_KIND = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, *, with_usage: bool = False) -> None:
        super().__init__(model, with_usage=with_usage)
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
        return self._whole(message, choice)

    def begins(self) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def text(self, part: str) -> bytes:
        return self._delta({"content": part})

    def tool_begins(self, index: int, call_id: str, name: str) -> bytes:
        number = self._tools[index] = len(self._tools)
        function = {"name": name, "arguments": ""}
        return self._delta({"tool_calls": [{"index": number, "id": call_id, "type": "function", "function": function}]})

    def tool_arguments(self, index: int, part: str) -> bytes:
        return self._delta({"tool_calls": [{"index": self._tools[index], "function": {"arguments": part}}]})

    def finishes(self, finish: str) -> bytes:
        return self._delta({}, finish)

    def _delta(self, delta: Json, finish: str | None = None) -> bytes:
        return self._chunk({"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish})
