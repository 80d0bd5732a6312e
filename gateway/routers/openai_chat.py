"""Reads answers of providers that serve OpenAI's chat completions, for clients of the other endpoints. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.routers.answers import AnswerIncomplete, Call, Form, Message, StreamedEvents, Usage
from kubeapi.json_types import Json

ANSWER = "a chat completion"
_FINISH = ("stop", "length", "tool_calls", "content_filter")


def message_of(answer: Json) -> Message:
    """Read a chat completion. Raises KeyError, TypeError and the like for anything else."""
    choice = answer["choices"][0]
    said = choice["message"]
    used = [(each["id"], each["function"]) for each in said.get("tool_calls") or ()]
    calls = tuple(Call(call_id, each["name"], each.get("arguments") or "{}") for call_id, each in used)
    finish = _finish(choice.get("finish_reason"))
    return Message(
        said.get("content") or "", calls, finish, _usage(answer.get("usage") or {}), str(answer.get("id") or "")
    )


def _finish(reason: Any) -> str:
    return reason if reason in _FINISH else "stop"


def _usage(usage: Mapping[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        int(details.get("cached_tokens") or 0),
    )


class StreamedAnswer(StreamedEvents):
    """Translates the chunks of a chat completion."""

    def __init__(self, form: Form) -> None:
        super().__init__(form, "a chunk of a chat completion")
        self._usage = Usage()
        self._has_begun = False
        self._finish = ""
        self._tools: set[int] = set()

    def end(self) -> bytes:
        if not self._finish:
            raise AnswerIncomplete("the provider's stream ended before its last event")
        return self._form.finishes(self._finish) + self._form.ends(self._usage)

    def _translated(self, data: bytes) -> bytes:
        if data == b"[DONE]":
            return b""
        chunk = json.loads(data)
        if "error" in chunk:
            raise AnswerIncomplete("the provider broke the stream off")
        if chunk.get("usage"):
            self._usage = _usage(chunk["usage"])
        made = b""
        if not self._has_begun:
            self._has_begun = True
            made = self._form.begins()
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("content"):
                made += self._form.text(delta["content"])
            for call in delta.get("tool_calls") or ():
                made += self._called(call)
            if choice.get("finish_reason"):
                self._finish = _finish(choice["finish_reason"])
        return made

    def _called(self, call: Json) -> bytes:
        index, function = int(call.get("index") or 0), call.get("function") or {}
        made = b""
        if index not in self._tools:
            self._tools.add(index)
            made = self._form.tool_begins(index, call["id"], function["name"])
        return made + (self._form.tool_arguments(index, function["arguments"]) if function.get("arguments") else b"")
