"""OpenAI's responses by models that have only chats: texts, images and calls of functions, without a store. Pure.

The forms are those of "Responses" and its "Streaming events" in OpenAI's API reference. What needs a store of earlier
responses, and tools that OpenAI carries out itself, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.routers.chat import NotTranslatable, object_, objects
from kubeapi.json_types import Json

_KEPT = ("temperature", "top_p", "parallel_tool_calls", "user", "stream")
_STORED = ("previous_response_id", "conversation", "prompt", "background", "store")
_TEXTS = ("input_text", "output_text", "text")


def chat_values(values: Mapping[str, Any], provider: str) -> Json:
    """Return the fields of a chat completion. Raises NotTranslatable."""
    for name in _STORED:
        if values.get(name):
            why = f"no responses are stored for {provider}, so `{name}` has no meaning; send the whole conversation"
            raise NotTranslatable(why, name)
    if values.get("truncation") not in (None, "disabled"):
        raise NotTranslatable(f"{provider} shortens no conversations; `truncation` must be `disabled`", "truncation")
    text = object_(values.get("text") or {}, "text")
    if object_(text.get("format") or {}, "text.format").get("type") not in (None, "text"):
        raise NotTranslatable(f"`text.format` cannot be translated for {provider}; use a tool", "text.format")
    made = {name: values[name] for name in _KEPT if values.get(name) is not None}
    made["messages"] = _messages(values, provider)
    if values.get("max_output_tokens") is not None:
        made["max_tokens"] = values["max_output_tokens"]
    if tools := [_tool(each, provider) for each in objects(values.get("tools") or [], "tools")]:
        made["tools"] = tools
        made["tool_choice"] = _tool_choice(values.get("tool_choice") or "auto", provider)
    return made


def _messages(values: Mapping[str, Any], provider: str) -> list[Json]:
    found: list[Json] = []
    if (instructions := values.get("instructions")) is not None:
        if not isinstance(instructions, str):
            raise NotTranslatable("`instructions` is not a text", "instructions")
        found.append({"role": "system", "content": instructions})
    given = values.get("input")
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for index, item in enumerate(objects(given, "input")):
        field = f"input[{index}]"
        match item.get("type", "message"):
            case "message":
                # Not all providers know OpenAI's newer role.
                role = "system" if item.get("role") == "developer" else item.get("role")
                found.append({"role": role, "content": _content(item.get("content"), field, provider)})
            case "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": None})
                found[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                content = _content(item.get("output"), field, provider)
                found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
            case "reasoning":
                pass  # of another model; the answer does not depend on it
            case kind:
                raise NotTranslatable(f"an item of type `{kind}` cannot be translated for {provider}", field)
    return found


def _content(given: Any, field: str, provider: str) -> Any:
    if given is None or isinstance(given, str):
        return given
    made: list[Json] = []
    for at, part in enumerate(objects(given, f"{field}.content")):
        kind = part.get("type")
        if kind in _TEXTS:
            made.append({"type": "text", "text": part.get("text")})
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            made.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            why = f"a part of type `{kind}` cannot be translated for {provider}"
            raise NotTranslatable(why, f"{field}.content[{at}]")
    return made


def _tool(tool: Json, provider: str) -> Json:
    if tool.get("type") != "function":
        raise NotTranslatable(f"a tool of type `{tool.get('type')}` cannot be translated for {provider}", "tools")
    kept = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": kept}


def _tool_choice(choice: Any, provider: str) -> Any:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    raise NotTranslatable(f"this `tool_choice` cannot be translated for {provider}", "tool_choice")
