"""Chat completions become messages of Anthropic, and the answers completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.routers.answers import AnswerIncomplete, message_answer
from gateway.routers.anthropic import ANSWER, StreamedAnswer, WholeError, message_of, request
from gateway.routers.chat import NotTranslatable
from gateway.routers.chat_form import ChatForm

USER = {"role": "user", "content": "Hi"}

TOOL = {"type": "function", "function": {"name": "look"}}


def called(function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]}


def made(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request({"messages": [USER]} | fields, "claude"))
    return found


def test_messages_of_all_roles() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "In English."}]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "And?"},
    ]
    found = made(messages=messages)
    assert found["system"] == "Be brief.\n\nIn English."
    assert found["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {"q": 1}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "42"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]


def test_images() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]
    [message] = made(messages=[{"role": "user", "content": parts}])["messages"]
    assert [each["source"] for each in message["content"]] == [
        {"type": "base64", "media_type": "image/png", "data": "AAAA"},
        {"type": "url", "url": "https://example.org/a.png"},
    ]


def test_settings() -> None:
    found = made(max_completion_tokens=7, temperature=1.5, top_p=0.9, stop="x", user="u", stream=True, seed=1)
    assert found["max_tokens"] == 7
    assert (found["temperature"], found["top_p"], found["stop_sequences"]) == (1.0, 0.9, ["x"])
    assert (found["metadata"], found["stream"]) == ({"user_id": "u"}, True)
    assert "seed" not in found
    assert made()["max_tokens"] == 4096


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, {"type": "auto"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ({"type": "function", "function": {"name": "look"}}, {"type": "tool", "name": "look"}),
    ],
)
def test_tools(choice: Any, wanted: Any) -> None:
    tool = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}
    found = made(tools=[tool], tool_choice=choice)
    assert found["tools"] == [{"name": "look", "description": "d", "input_schema": {"type": "object"}}]
    assert found["tool_choice"] == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": [1]}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"messages": [called("look")]}, "messages[0].tool_calls[0].function"),
        ({"messages": [called({"arguments": {"q": 1}})]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [called({"arguments": "[" * 100_000})]}, "messages[0].tool_calls[0].function.arguments"),
        ({"tools": [TOOL], "tool_choice": ["auto"]}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"function": "look"}}, "tool_choice.function"),
    ],
)
def test_what_has_no_counterpart_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(NotTranslatable) as caught:
        made(**fields)
    assert caught.value.param == param


def test_tool_calls_of_a_whole_answer() -> None:
    answer = message_answer(message_of, ChatForm("m"), ANSWER)
    content = [{"type": "tool_use", "id": "t", "name": "look", "input": {"q": 1}}]
    usage = {"input_tokens": 1, "cache_read_input_tokens": 4, "output_tokens": 2}
    answer.feed(json.dumps({"id": "i", "content": content, "stop_reason": "tool_use", "usage": usage}).encode())
    found = json.loads(answer.end())
    assert found["choices"][0]["finish_reason"] == "tool_calls"
    [call] = found["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"q": 1}
    assert found["usage"]["prompt_tokens"] == 5
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_tool_calls_of_a_stream() -> None:
    events = [
        {"type": "message_start", "message": {"id": "i", "usage": {}}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "look"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"q"'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ": 1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
    ]
    answer = StreamedAnswer(ChatForm("m", with_usage=False))
    out = b"".join(answer.feed(f"data: {json.dumps(each)}\n\n".encode()) for each in events)
    answer.end()
    chunks = [json.loads(line[6:]) for line in out.decode().split("\n\n")[:-2]]
    calls = [call for each in chunks for call in each["choices"][0]["delta"].get("tool_calls", ())]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("t", "look")
    assert "".join(each["function"].get("arguments", "") for each in calls) == '{"q": 1}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_answer_that_ends_early_is_incomplete() -> None:
    stream = StreamedAnswer(ChatForm("m", with_usage=False))
    stream.feed(b'data: {"type": "message_start", "message": {"id": "i"}}\n\n')
    with pytest.raises(AnswerIncomplete):
        stream.end()
    with pytest.raises(AnswerIncomplete, match="overloaded"):
        stream.feed(b'data: {"type": "error", "error": {"message": "overloaded"}}\n\n')
    for data in (
        b"{",
        b"[]",
        b'{"type": "message_start"}',
        b'{"type": "content_block_delta", "delta": {"type": "text_delta"}}',
    ):
        with pytest.raises(AnswerIncomplete, match="not one of Anthropic's"):
            StreamedAnswer(ChatForm("m")).feed(b"data: " + data + b"\n\n")
    whole = message_answer(message_of, ChatForm("m"), ANSWER)
    whole.feed(b"<html>")
    with pytest.raises(AnswerIncomplete):
        whole.end()
    error = WholeError()
    error.feed(b"<html>")
    assert json.loads(error.end())["error"]["type"] == "api_error"
