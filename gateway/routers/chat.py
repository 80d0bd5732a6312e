"""Requests for OpenAI's chat completions, for the translations to providers with another API. Pure.

`anthropic` and `bedrock` use it. Messages become blocks in Anthropic's form, which `bedrock` turns into its own.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubeapi.json_types import Json

DEFAULT_MAX_TOKENS = 4096
"""The limit of an answer whose request has none. Anthropic requires one."""
_IMAGE = re.compile(r"data:(image/[a-z+.-]+);base64,(.*)", re.DOTALL)


class NotTranslatable(Exception):
    """A request asks for something that the provider's API does not have. `param` is the field."""

    def __init__(self, why: str, param: str) -> None:
        super().__init__(why)
        self.why = why
        self.param = param


def check_supported(values: Mapping[str, Any], provider: str) -> None:
    """Refuse what no translation has. `provider` is its name for messages. Raises NotTranslatable."""
    if values.get("n") not in (None, 1):
        raise NotTranslatable(f"{provider} makes one answer for a request; `n` must be 1", "n")
    if values.get("logprobs"):
        raise NotTranslatable(f"{provider} returns no `logprobs`", "logprobs")
    form = values.get("response_format")
    if isinstance(form, dict) and form.get("type") not in (None, "text"):
        raise NotTranslatable(f"`response_format` cannot be translated for {provider}; use a tool", "response_format")


def max_tokens(values: Mapping[str, Any]) -> Any:
    """Return the most tokens of an answer."""
    return values.get("max_completion_tokens") or values.get("max_tokens") or DEFAULT_MAX_TOKENS


def stop_sequences(values: Mapping[str, Any]) -> Any:
    """Return the texts that end an answer; None without any."""
    stop = values.get("stop")
    return [stop] if isinstance(stop, str) else stop


def encoded(body: Json) -> bytes:
    """Return a body for a provider. Raises NotTranslatable."""
    try:
        return json.dumps(body).encode()
    except RecursionError:
        raise NotTranslatable("the request is nested too deeply", "messages") from None


def wants_usage(values: Mapping[str, Any]) -> bool:
    """Return whether a client wants the usage at the end of a stream."""
    options = values.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def blocks(given: Any, provider: str) -> tuple[str, list[Json]]:
    """Return the system's text, and the messages of user and assistant by turns, as lists of blocks.

    Raises NotTranslatable.
    """
    system: list[str] = []
    found: list[Json] = []
    for index, message in enumerate(objects(given, "messages")):
        role, field = message.get("role"), f"messages[{index}]"
        if role in ("system", "developer"):
            parts = _parts(message, field, provider)
            system.append("".join(str(part["text"]) for part in parts if part["type"] == "text"))
            continue
        if role == "assistant":
            content = [*_parts(message, field, provider), *_tool_uses(message, field)]
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": None}
            content, role = [{**result, "content": _parts(message, field, provider)}], "user"
        elif role == "user":
            content = _parts(message, field, provider)
        else:
            raise NotTranslatable(f"`{role}` is none of system, developer, user, assistant and tool", f"{field}.role")
        if found and found[-1]["role"] == role:
            found[-1]["content"] += content
        elif content:
            found.append({"role": role, "content": content})
    return "\n\n".join(system), found


def _parts(message: Json, field: str, provider: str) -> list[Json]:
    content = message.get("content")
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = objects(content, f"{field}.content")
    return [_part(each, f"{field}.content[{at}]", provider) for at, each in enumerate(parts)]


def _part(part: Json, field: str, provider: str) -> Json:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image_url":
        image = part.get("image_url")
        url = str(image.get("url") if isinstance(image, dict) else image)
        if match := _IMAGE.fullmatch(url):
            return {"type": "image", "source": {"type": "base64", "media_type": match[1], "data": match[2]}}
        return {"type": "image", "source": {"type": "url", "url": url}}
    raise NotTranslatable(f"a part of type `{part.get('type')}` cannot be translated for {provider}", field)


def _tool_uses(message: Json, field: str) -> Iterator[Json]:
    for at, call in enumerate(objects(message.get("tool_calls") or [], f"{field}.tool_calls")):
        path = f"{field}.tool_calls[{at}].function"
        function = object_(call.get("function") or {}, path)
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (ValueError, TypeError, RecursionError):
            why = "the arguments of a tool call are not a string of JSON"
            raise NotTranslatable(why, f"{path}.arguments") from None
        yield {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def functions(values: Mapping[str, Any], provider: str) -> list[Json]:
    """Return the functions that an answer may call. Raises NotTranslatable."""
    found: list[Json] = []
    for tool in objects(values.get("tools") or [], "tools"):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise NotTranslatable(f"a tool of type `{tool.get('type')}` cannot be translated for {provider}", "tools")
        found.append(function)
    return found


def tool_choice(values: Mapping[str, Any]) -> tuple[str, Any]:
    """Return `auto`, `any`, `none` or `tool`, and the name of the tool for the last one. Raises NotTranslatable."""
    choice = values.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        return "tool", object_(choice.get("function") or {}, "tool_choice.function").get("name")
    if not isinstance(choice, str):
        raise NotTranslatable("`tool_choice` is neither a string nor an object", "tool_choice")
    return {"required": "any", "none": "none"}.get(choice, "auto"), None


def number(value: Any, field: str) -> float:
    """Return a finite number. Raises NotTranslatable."""
    found = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            found = float(value)
    if not math.isfinite(found):
        raise NotTranslatable(f"`{field}` is not a number", field)
    return found


def object_(value: Any, field: str) -> Json:
    """Return an object. Raises NotTranslatable."""
    if not isinstance(value, dict):
        raise NotTranslatable(f"`{field}` is not an object", field)
    return value


def objects(value: Any, field: str) -> list[Json]:
    """Return a list of objects. Raises NotTranslatable."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise NotTranslatable(f"`{field}` is not a list of objects", field)
    return value
