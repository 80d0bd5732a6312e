"""The parts that OpenAI's chat completions and completions have in common. Pure.

Both are a list of choices, here always one, with the usage. `chat_form` and `completions` write the choice.
"""

from __future__ import annotations

import time
import uuid

from gateway.routers.answers import Message, Usage, encoded, events
from kubeapi.json_types import Json


class ChoiceForm:
    """Writes an answer around its choice, or the chunks of a stream."""

    ID: str
    """The beginning of ids."""
    KIND: str
    """The `object` of a whole answer."""
    CHUNK_KIND: str
    """The `object` of a chunk."""

    def __init__(self, model: str, *, with_usage: bool = False) -> None:
        """`with_usage`: a stream ends with a chunk that has the usage."""
        self.id = f"{self.ID}-{uuid.uuid4().hex}"
        self._model = model
        self._with_usage = with_usage
        self._created = int(time.time())

    def ends(self, usage: Usage) -> bytes:
        made = self._base(self.CHUNK_KIND) | {"choices": [], "usage": _usage(usage)}
        return (events([made]) if self._with_usage else b"") + b"data: [DONE]\n\n"

    def _whole(self, message: Message, choice: Json) -> bytes:
        made = self._base(self.KIND) | {"choices": [choice], "usage": _usage(message.usage)}
        return encoded(made | ({"id": message.id} if message.id else {}))

    def _chunk(self, choice: Json) -> bytes:
        base = self._base(self.CHUNK_KIND)
        return events([{**base, "choices": [choice], **({"usage": None} if self._with_usage else {})}])

    def _base(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
