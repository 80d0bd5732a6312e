"""Translates OpenAI's chat completions to Amazon Bedrock's Converse API, and the answers back, also as streams. Pure.

Converse has one form for the models of all vendors. `aws_event_stream` reads the frames of its streams. The forms are
those of "Converse" and "ConverseStream" in the Amazon Bedrock API Reference. Fields that only tune the sampling and
have no counterpart there are left out, others are refused, as for Anthropic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from gateway.routers import chat
from gateway.routers.answers import AnswerIncomplete, Call, Form, Message, Usage
from gateway.routers.aws_event_stream import Frame, FrameInvalid, Frames
from gateway.routers.chat import NotTranslatable
from kubeapi.json_types import Json

NAME = "Bedrock"
ANSWER = "one of Converse"
SERVICE = "bedrock"
"""The name of the service in signatures, also for the endpoints `bedrock-runtime`."""
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
_FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_HOST = re.compile(r"(?:.+\.)?bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?.+")
_EXCEPTION = re.compile(r"[A-Za-z]{1,64}")


def region_of(url: str) -> str:
    """Return the region that the host of an address of AWS names; empty for other hosts."""
    found = _HOST.fullmatch(urlsplit(url).hostname or "")
    return found[1] if found else ""


def path_of(model: str, *, streamed: bool) -> str:
    """Return the path for a model: an id such as `anthropic.claude-3-haiku-20240307-v1:0`, a profile's id or an ARN."""
    return f"/model/{quote(model, safe='-_.~')}/converse{'-stream' if streamed else ''}"


def invoke_path_of(model: str) -> str:
    """Return the path of InvokeModel for a model."""
    return f"/model/{quote(model, safe='-_.~')}/invoke"


# --- requests ---------------------------------------------------------------------------------------------------------


def request(values: Mapping[str, Any]) -> bytes:
    """Return the body for Converse. Raises NotTranslatable."""
    chat.check_supported(values, NAME)
    system, messages = chat.blocks(values.get("messages"), NAME)
    settings: Json = {"maxTokens": chat.max_tokens(values)}
    if values.get("temperature") is not None:
        settings["temperature"] = min(chat.number(values["temperature"], "temperature"), 1.0)
    if values.get("top_p") is not None:
        settings["topP"] = chat.number(values["top_p"], "top_p")
    if (stop := chat.stop_sequences(values)) is not None:
        settings["stopSequences"] = stop
    made: Json = {
        "messages": [
            {**message, "content": [_block(each, index) for each in message["content"]]}
            for index, message in enumerate(messages)
        ],
        "inferenceConfig": settings,
    }
    if system:
        made["system"] = [{"text": system}]
    if (tools := _tools(values, messages)) is not None:
        made["toolConfig"] = tools
    return chat.encoded(made)


def _block(block: Json, index: int) -> Json:
    match block["type"]:
        case "text":
            return {"text": block["text"]}
        case "image":
            return {"image": _image(block["source"], f"messages[{index}].content")}
        case "tool_use":
            return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
        case _:
            content = [_block(each, index) for each in block["content"]]
            return {"toolResult": {"toolUseId": block["tool_use_id"], "content": content}}


def _image(source: Json, field: str) -> Json:
    if source["type"] == "url":
        raise NotTranslatable("Bedrock reads no images from addresses; send them as `data:image/png;base64,…`", field)
    kind = _FORMATS.get(source["media_type"])
    if kind is None:
        raise NotTranslatable(f"Bedrock takes no images of type {source['media_type']}", field)
    return {"format": kind, "source": {"bytes": source["data"]}}


def _tools(values: Mapping[str, Any], messages: list[Json]) -> Json | None:
    functions = chat.functions(values, NAME)
    if not functions:
        return None
    kind, name = chat.tool_choice(values)
    if kind == "none":
        # Converse has no such choice, and wants the tools of earlier calls.
        if any(block["type"] == "tool_use" for message in messages for block in message["content"]):
            why = "Bedrock cannot be kept from calls of tools after an earlier one; leave `tool_choice` out"
            raise NotTranslatable(why, "tool_choice")
        return None
    if values.get("parallel_tool_calls") is False:
        raise NotTranslatable("Bedrock cannot be kept from several calls at a time", "parallel_tool_calls")
    return {
        "tools": [{"toolSpec": _tool(each)} for each in functions],
        "toolChoice": {"tool": {"name": name}} if kind == "tool" else {kind: {}},
    }


def _tool(function: Json) -> Json:
    schema = function.get("parameters") or {"type": "object"}
    made = {"name": function.get("name"), "inputSchema": {"json": schema}}
    return {**made, "description": function["description"]} if function.get("description") else made


# --- answers ----------------------------------------------------------------------------------------------------------


def message_of(answer: Json) -> Message:
    """Read an answer of Converse. Raises KeyError, TypeError and the like for anything else."""
    content = answer["output"]["message"]["content"]
    text = "".join(block.get("text", "") for block in content)
    used = [block["toolUse"] for block in content if "toolUse" in block]
    calls = tuple(Call.of(each["toolUseId"], each["name"], each["input"]) for each in used)
    finish = _FINISH.get(str(answer.get("stopReason")), "stop")
    return Message(text, calls, finish, _usage(answer.get("usage") or {}))


def _usage(usage: Mapping[str, Any]) -> Usage:
    cached = int(usage.get("cacheReadInputTokens") or 0)
    prompt = int(usage.get("inputTokens") or 0) + int(usage.get("cacheWriteInputTokens") or 0) + cached
    return Usage(prompt, int(usage.get("outputTokens") or 0), cached)


class StreamedAnswer:
    """Translates a stream of ConverseStream."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._frames = Frames()
        self._usage: Json = {}
        self._stopped = False

    def feed(self, data: bytes) -> bytes:
        try:
            return b"".join(map(self._translated, self._frames.feed(data)))
        except FrameInvalid as error:
            raise AnswerIncomplete(f"the provider's stream is not valid: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise AnswerIncomplete("the provider sent an event that is not one of ConverseStream") from None

    def end(self) -> bytes:
        if not self._stopped:
            raise AnswerIncomplete("the provider's stream ended before its last event")
        return self._form.ends(_usage(self._usage))

    def _translated(self, frame: Frame) -> bytes:
        if frame.headers.get(":message-type") != "event":
            raise AnswerIncomplete(f"the provider broke the stream off ({_exception(frame)})")
        event = json.loads(frame.payload)
        match frame.headers.get(":event-type"):
            case "messageStart":
                return self._form.begins()
            case "contentBlockStart" if "toolUse" in event["start"]:
                tool = event["start"]["toolUse"]
                return self._form.tool_begins(event["contentBlockIndex"], tool["toolUseId"], tool["name"])
            case "contentBlockDelta":
                delta = event["delta"]
                if "text" in delta:
                    return self._form.text(delta["text"])
                if "toolUse" in delta:
                    return self._form.tool_arguments(event["contentBlockIndex"], delta["toolUse"]["input"])
            case "messageStop":
                self._stopped = True
                return self._form.finishes(_FINISH.get(str(event.get("stopReason")), "stop"))
            case "metadata":
                self._usage = event.get("usage") or {}
        return b""


def _exception(frame: Frame) -> str:
    """Return the name of an exception, without its text, which may repeat the request."""
    name = frame.headers.get(":exception-type") or frame.headers.get(":error-code") or ""
    return name if _EXCEPTION.fullmatch(name) else "without a reason"
