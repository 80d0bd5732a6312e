"""Translates OpenAI's chat completions to Anthropic's messages, and the answers back, also as streams. Pure.

Fields without a counterpart that only tune the sampling (`seed`, `logit_bias` and the penalties) are left out. Others,
such as `n` above 1, are refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kubeapi.json_types import Json

VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 4096
"""Anthropic requires a limit."""
LINE_MAX = 1 << 20
"""The longest line of a stream, in bytes."""
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "model_context_window_exceeded": "length",
}
_IMAGE = re.compile(r"data:(image/[a-z+.-]+);base64,(.*)", re.DOTALL)


class NotTranslatable(Exception):
    """A request asks for something that Anthropic's API does not have. `param` is the field."""

    def __init__(self, why: str, param: str) -> None:
        super().__init__(why)
        self.why = why
        self.param = param


class AnswerIncomplete(Exception):
    """An answer ended before it was complete."""


# --- requests ---------------------------------------------------------------------------------------------------------


def request(values: Mapping[str, Any], model: str) -> bytes:
    """Return the body for Anthropic. Raises NotTranslatable."""
    if values.get("n") not in (None, 1):
        raise NotTranslatable("Anthropic makes one answer for a request; `n` must be 1", "n")
    if values.get("logprobs"):
        raise NotTranslatable("Anthropic returns no `logprobs`", "logprobs")
    form = values.get("response_format")
    if isinstance(form, dict) and form.get("type") not in (None, "text"):
        raise NotTranslatable("`response_format` cannot be translated for Anthropic; use a tool", "response_format")
    system, messages = _messages(values.get("messages"))
    made: Json = {
        "model": model,
        "max_tokens": values.get("max_completion_tokens") or values.get("max_tokens") or DEFAULT_MAX_TOKENS,
        "messages": messages,
    }
    if system:
        made["system"] = system
    if values.get("temperature") is not None:
        made["temperature"] = min(_number(values["temperature"], "temperature"), 1.0)
    if values.get("top_p") is not None:
        made["top_p"] = values["top_p"]
    if (stop := values.get("stop")) is not None:
        made["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if values.get("stream"):
        made["stream"] = True
    if isinstance(user := values.get("user"), str):
        made["metadata"] = {"user_id": user}
    if tools := values.get("tools"):
        made["tools"] = [_tool(each) for each in _objects(tools, "tools")]
        made["tool_choice"] = _tool_choice(values)
    try:
        return json.dumps(made).encode()
    except RecursionError:
        raise NotTranslatable("the request is nested too deeply", "messages") from None


def wants_usage(values: Mapping[str, Any]) -> bool:
    """Return whether a client wants the usage at the end of a stream."""
    options = values.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _messages(given: Any) -> tuple[str, list[Json]]:
    system: list[str] = []
    found: list[Json] = []
    for index, message in enumerate(_objects(given, "messages")):
        role, field = message.get("role"), f"messages[{index}]"
        if role in ("system", "developer"):
            system.append("".join(str(part["text"]) for part in _parts(message, field) if part["type"] == "text"))
            continue
        if role == "assistant":
            content = [*_parts(message, field), *_tool_uses(message, field)]
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": None}
            content, role = [{**result, "content": _parts(message, field)}], "user"
        elif role == "user":
            content = _parts(message, field)
        else:
            raise NotTranslatable(f"`{role}` is none of system, developer, user, assistant and tool", f"{field}.role")
        if found and found[-1]["role"] == role:
            found[-1]["content"] += content
        elif content:
            found.append({"role": role, "content": content})
    return "\n\n".join(system), found


def _parts(message: Json, field: str) -> list[Json]:
    content = message.get("content")
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(each, f"{field}.content[{at}]") for at, each in enumerate(_objects(content, f"{field}.content"))]


def _part(part: Json, field: str) -> Json:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image_url":
        image = part.get("image_url")
        url = str(image.get("url") if isinstance(image, dict) else image)
        if match := _IMAGE.fullmatch(url):
            return {"type": "image", "source": {"type": "base64", "media_type": match[1], "data": match[2]}}
        return {"type": "image", "source": {"type": "url", "url": url}}
    raise NotTranslatable(f"a part of type `{part.get('type')}` cannot be translated for Anthropic", field)


def _tool_uses(message: Json, field: str) -> Iterator[Json]:
    for at, call in enumerate(_objects(message.get("tool_calls") or [], f"{field}.tool_calls")):
        path = f"{field}.tool_calls[{at}].function"
        function = _object(call.get("function") or {}, path)
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (ValueError, TypeError, RecursionError):
            why = "the arguments of a tool call are not a string of JSON"
            raise NotTranslatable(why, f"{path}.arguments") from None
        yield {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def _tool(tool: Json) -> Json:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise NotTranslatable(f"a tool of type `{tool.get('type')}` cannot be translated for Anthropic", "tools")
    made = {"name": function.get("name"), "input_schema": function.get("parameters") or {"type": "object"}}
    return {**made, "description": function["description"]} if function.get("description") else made


def _tool_choice(values: Mapping[str, Any]) -> Json:
    choice = values.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        function = _object(choice.get("function") or {}, "tool_choice.function")
        made: Json = {"type": "tool", "name": function.get("name")}
    elif not isinstance(choice, str):
        raise NotTranslatable("`tool_choice` is neither a string nor an object", "tool_choice")
    else:
        made = {"type": {"required": "any", "none": "none"}.get(choice, "auto")}
    if values.get("parallel_tool_calls") is False and made["type"] != "none":
        made["disable_parallel_tool_use"] = True
    return made


def _number(value: Any, field: str) -> float:
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise NotTranslatable(f"`{field}` is not a number", field)
    return number


def _object(value: Any, field: str) -> Json:
    if not isinstance(value, dict):
        raise NotTranslatable(f"`{field}` is not an object", field)
    return value


def _objects(value: Any, field: str) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise NotTranslatable(f"`{field}` is not a list of objects", field)
    return value


# --- whole answers ----------------------------------------------------------------------------------------------------


class WholeAnswer:
    """Gathers an answer and translates it."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        self._parts.append(data)
        return b""

    def end(self) -> bytes:
        try:
            answer = json.loads(b"".join(self._parts))
            content = answer["content"]
        except (ValueError, KeyError, TypeError):
            raise AnswerIncomplete("the provider's answer is not a message of Anthropic") from None
        text = "".join(block.get("text", "") for block in content if block.get("type") == "text")
        calls = [
            {
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
            }
            for block in content
            if block.get("type") == "tool_use"
        ]
        message = {"role": "assistant", "content": text or (None if calls else "")}
        choice = {
            "index": 0,
            "message": {**message, "tool_calls": calls} if calls else message,
            "finish_reason": _FINISH.get(str(answer.get("stop_reason")), "stop"),
            "logprobs": None,
        }
        made = {
            "id": answer.get("id"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            "usage": _usage(answer.get("usage") or {}),
        }
        return json.dumps(made).encode() + b"\n"


class WholeError:
    """Gathers an error and translates it to OpenAI's form."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        self._parts.append(data)
        return b""

    def end(self) -> bytes:
        try:
            error = json.loads(b"".join(self._parts))["error"]
            message, kind = str(error["message"]), str(error["type"])
        except (ValueError, KeyError, TypeError, RecursionError):
            message, kind = "the provider answered with an error that is not JSON", "api_error"
        return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": kind}}).encode() + b"\n"


def _usage(usage: Mapping[str, Any]) -> Json:
    cached = int(usage.get("cache_read_input_tokens") or 0)
    prompt = int(usage.get("input_tokens") or 0) + int(usage.get("cache_creation_input_tokens") or 0) + cached
    completion = int(usage.get("output_tokens") or 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


# --- streams ----------------------------------------------------------------------------------------------------------


class StreamedAnswer:
    """Translates a stream of Anthropic's events to chunks of a chat completion."""

    def __init__(self, model: str, *, with_usage: bool) -> None:
        self._model = model
        self._with_usage = with_usage
        self._id = ""
        self._created = int(time.time())
        self._rest = b""
        self._usage: Json = {}
        self._tools: dict[int, int] = {}
        """The number of a tool call by the index of its block."""
        self._finish = ""
        self._is_complete = False

    def feed(self, data: bytes) -> bytes:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_MAX:
            raise AnswerIncomplete(f"the provider sent a line with more than {LINE_MAX} bytes")
        made = []
        for line in lines:
            if line.startswith(b"data:"):
                try:
                    event = json.loads(line[5:])
                except ValueError:
                    raise AnswerIncomplete("the provider sent an event that is not JSON") from None
                made += [_event(each) for each in self._translated(event)]
                if event.get("type") == "message_stop":
                    made += self._last()
        return b"".join(made)

    def end(self) -> bytes:
        if not self._is_complete:
            raise AnswerIncomplete("the provider's stream ended before its last event")
        return b""

    def _translated(self, event: Json) -> Iterator[Json]:
        match event.get("type"):
            case "message_start":
                message = event["message"]
                self._id, self._usage = message.get("id", ""), dict(message.get("usage") or {})
                yield self._chunk({"role": "assistant", "content": ""})
            case "content_block_start" if event["content_block"].get("type") == "tool_use":
                block = event["content_block"]
                number = self._tools[event["index"]] = len(self._tools)
                function = {"name": block["name"], "arguments": ""}
                call = {"index": number, "id": block["id"], "type": "function", "function": function}
                yield self._chunk({"tool_calls": [call]})
            case "content_block_delta":
                delta = event["delta"]
                if delta.get("type") == "text_delta":
                    yield self._chunk({"content": delta["text"]})
                elif delta.get("type") == "input_json_delta":
                    call = {"index": self._tools[event["index"]], "function": {"arguments": delta["partial_json"]}}
                    yield self._chunk({"tool_calls": [call]})
            case "message_delta":
                self._usage |= event.get("usage") or {}
                self._finish = _FINISH.get(str((event.get("delta") or {}).get("stop_reason")), "stop")
            case "message_stop":
                self._is_complete = True
                yield self._chunk({}, self._finish or "stop")
            case "error":
                error = event.get("error") or {}
                raise AnswerIncomplete(f"the provider broke the stream off: {error.get('message', 'unknown')}")

    def _last(self) -> list[bytes]:
        usage = {**self._base(), "choices": [], "usage": _usage(self._usage)}
        return [*([_event(usage)] if self._with_usage else []), b"data: [DONE]\n\n"]

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._base(), "choices": [choice], **({"usage": None} if self._with_usage else {})}

    def _base(self) -> Json:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }


def _event(value: Json) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
