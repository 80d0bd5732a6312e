"""The answers of OpenAI's responses, whole and as the named events of a stream. Pure."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from gateway.routers.answers import Message, Usage, encoded
from kubeapi.json_types import Json

_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""The fields of a request that a response repeats, with their values if the request has none."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by the reason of a chat completion."""


class ResponseForm:
    """Writes a response that is not stored, or the events of its stream."""

    def __init__(self, model: str, request: Mapping[str, Any]) -> None:
        """`request` has the fields of the client's request."""
        self.id = ""
        self._own_id = _new_id("resp")  # those of providers do not begin as OpenAI's
        self._model = model
        self._request = request
        self._created = int(time.time())
        self._number = 0
        self._items: list[Json] = []
        self._text: Json | None = None
        """The message that is open, which the next part of the text belongs to."""
        self._calls: dict[int, Json] = {}
        """The calls that are open, by the provider's index."""
        self._finish = "stop"

    def whole(self, message: Message) -> bytes:
        if message.text or not message.calls:
            self._items.append(_message(message.text, "completed"))
        self._items += [_call(each.id, each.name, each.arguments, "completed") for each in message.calls]
        self._items[-1]["status"] = _status(message.finish)
        return encoded(self._response(message.finish, message.usage))

    def begins(self) -> bytes:
        response = self._response(None, None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def text(self, part: str) -> bytes:
        made = b""
        if self._text is None:
            item = self._text = _message("", "in_progress")
            self._items.append(item)
            made = self._item("added", {**item, "content": []})
            made += self._part("response.content_part.added", item, part=dict(item["content"][0]))
        self._text["content"][0]["text"] += part
        return made + self._part("response.output_text.delta", self._text, delta=part, logprobs=[])

    def tool_begins(self, index: int, call_id: str, name: str) -> bytes:
        made = self._text_ends("completed")
        item = self._calls[index] = _call(call_id, name, "", "in_progress")
        self._items.append(item)
        return made + self._item("added", dict(item))

    def tool_arguments(self, index: int, part: str) -> bytes:
        item = self._calls[index]
        item["arguments"] += part
        return self._of_item("response.function_call_arguments.delta", item, delta=part)

    def finishes(self, finish: str) -> bytes:
        self._finish = finish
        made = [self._text_ends(_status(finish))]
        for item in self._calls.values():
            # Only the last item was cut off: a model writes one after the other.
            item["status"] = _status(finish) if item is self._items[-1] else "completed"
            text = item["arguments"] = item["arguments"] or "{}"
            made.append(self._of_item("response.function_call_arguments.done", item, arguments=text, name=item["name"]))
            made.append(self._item("done", item))
        self._calls = {}
        return b"".join(made)

    def ends(self, usage: Usage) -> bytes:
        response = self._response(self._finish, usage)
        return self._event(f"response.{response['status']}", response=response)

    def _text_ends(self, status: str) -> bytes:
        item, self._text = self._text, None
        if item is None:
            return b""
        item["status"] = status
        [content] = item["content"]
        made = self._part("response.output_text.done", item, text=content["text"], logprobs=[])
        return made + self._part("response.content_part.done", item, part=content) + self._item("done", item)

    def _item(self, what: str, item: Json) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=self._index(item), item=item)

    def _of_item(self, kind: str, item: Json, **fields: Any) -> bytes:
        return self._event(kind, item_id=item["id"], output_index=self._index(item), **fields)

    def _index(self, item: Json) -> int:
        return [each["id"] for each in self._items].index(item["id"])

    def _part(self, kind: str, item: Json, **fields: Any) -> bytes:
        return self._of_item(kind, item, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(body)}\n\n".encode()

    def _response(self, finish: str | None, usage: Usage | None) -> Json:
        """Return the response. `finish` is None while it is in progress."""
        why = _INCOMPLETE.get(finish or "")
        status = "in_progress" if finish is None else _status(finish)
        given = {name: self._request.get(name) for name in _ECHOED}
        return {
            "id": self._own_id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": why} if why else None,
            **{name: other if given[name] is None else given[name] for name, other in _ECHOED.items()},
            "model": self._model,
            "output": self._items,
            "previous_response_id": None,
            "store": False,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": _usage(usage) if usage is not None else None,
        }


def _status(finish: str) -> str:
    """Return the status of an answer that ended, and of its last item."""
    return "incomplete" if finish in _INCOMPLETE else "completed"


def _message(text: str, status: str) -> Json:
    content = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": _new_id("msg"), "type": "message", "status": status, "role": "assistant", "content": [content]}


def _call(call_id: str, name: str, arguments: str, status: str) -> Json:
    return {
        "id": _new_id("fc"),
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
