"""Translates OpenAI's chat completions to Anthropic's messages, and the answers back, also as streams. Pure.

Fields without a counterpart that only tune the sampling (`seed`, `logit_bias` and the penalties) are left out. Others,
such as `n` above 1, are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.routers import chat
from gateway.routers.answers import AnswerIncomplete, Call, Form, Gathered, Message, StreamedEvents, Usage, error_body
from kubeapi.json_types import Json

NAME = "Anthropic"
ANSWER = "a message of Anthropic"
VERSION = "2023-06-01"
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "model_context_window_exceeded": "length",
}


# --- requests ---------------------------------------------------------------------------------------------------------


def request(values: Mapping[str, Any], model: str) -> bytes:
    """Return the body for Anthropic. Raises NotTranslatable."""
    chat.check_supported(values, NAME)
    system, messages = chat.blocks(values.get("messages"), NAME)
    made: Json = {"model": model, "max_tokens": chat.max_tokens(values), "messages": messages}
    if system:
        made["system"] = system
    if values.get("temperature") is not None:
        made["temperature"] = min(chat.number(values["temperature"], "temperature"), 1.0)
    if values.get("top_p") is not None:
        made["top_p"] = values["top_p"]
    if (stop := chat.stop_sequences(values)) is not None:
        made["stop_sequences"] = stop
    if values.get("stream"):
        made["stream"] = True
    if isinstance(user := values.get("user"), str):
        made["metadata"] = {"user_id": user}
    if functions := chat.functions(values, NAME):
        made["tools"] = [_tool(each) for each in functions]
        made["tool_choice"] = _tool_choice(values)
    return chat.encoded(made)


def _tool(function: Json) -> Json:
    made = {"name": function.get("name"), "input_schema": function.get("parameters") or {"type": "object"}}
    return {**made, "description": function["description"]} if function.get("description") else made


def _tool_choice(values: Mapping[str, Any]) -> Json:
    kind, name = chat.tool_choice(values)
    made: Json = {"type": kind, "name": name} if kind == "tool" else {"type": kind}
    if values.get("parallel_tool_calls") is False and kind != "none":
        made["disable_parallel_tool_use"] = True
    return made


# --- whole answers ----------------------------------------------------------------------------------------------------


def message_of(answer: Json) -> Message:
    """Read a message. Raises KeyError, TypeError and the like for anything else."""
    content = answer["content"]
    text = "".join(block.get("text", "") for block in content if block.get("type") == "text")
    used = (block for block in content if block.get("type") == "tool_use")
    calls = tuple(Call.of(each["id"], each["name"], each["input"]) for each in used)
    finish = _FINISH.get(str(answer.get("stop_reason")), "stop")
    return Message(text, calls, finish, _usage(answer.get("usage") or {}), str(answer.get("id") or ""))


class WholeError(Gathered):
    """Translates an error to OpenAI's form."""

    def _translated(self, body: bytes) -> bytes:
        try:
            error = json.loads(body)["error"]
            message, kind = str(error["message"]), str(error["type"])
        except (ValueError, KeyError, TypeError, RecursionError):
            message, kind = "the provider answered with an error that is not JSON", "api_error"
        return error_body(message, kind)


def _usage(usage: Mapping[str, Any]) -> Usage:
    cached = int(usage.get("cache_read_input_tokens") or 0)
    prompt = int(usage.get("input_tokens") or 0) + int(usage.get("cache_creation_input_tokens") or 0) + cached
    return Usage(prompt, int(usage.get("output_tokens") or 0), cached)


# --- streams ----------------------------------------------------------------------------------------------------------


class StreamedAnswer(StreamedEvents):
    """Translates a stream of Anthropic's events."""

    def __init__(self, form: Form) -> None:
        super().__init__(form, "one of Anthropic's")
        self._usage: Json = {}
        self._finish = ""
        self._is_complete = False

    def end(self) -> bytes:
        if not self._is_complete:
            raise AnswerIncomplete("the provider's stream ended before its last event")
        return b""

    def _translated(self, data: bytes) -> bytes:
        event = json.loads(data)
        match event.get("type"):
            case "message_start":
                message = event["message"]
                self._form.id, self._usage = message.get("id", ""), dict(message.get("usage") or {})
                return self._form.begins()
            case "content_block_start" if event["content_block"].get("type") == "tool_use":
                block = event["content_block"]
                return self._form.tool_begins(event["index"], block["id"], block["name"])
            case "content_block_delta":
                delta = event["delta"]
                if delta.get("type") == "text_delta":
                    return self._form.text(delta["text"])
                if delta.get("type") == "input_json_delta":
                    return self._form.tool_arguments(event["index"], delta["partial_json"])
            case "message_delta":
                self._usage |= event.get("usage") or {}
                self._finish = _FINISH.get(str((event.get("delta") or {}).get("stop_reason")), "stop")
            case "message_stop":
                self._is_complete = True
                return self._form.finishes(self._finish or "stop") + self._form.ends(_usage(self._usage))
            case "error":
                error = event.get("error") or {}
                raise AnswerIncomplete(f"the provider broke the stream off: {error.get('message', 'unknown')}")
        return b""
