"""Requests to Amazon Bedrock: translated to Converse, signed, and answered from frames. A local server checks them."""

from __future__ import annotations

import http.client
import json
import struct
import zlib
from typing import Any

import pytest

from gateway.routers.answers import AnswerIncomplete, message_answer
from gateway.routers.aws_event_stream import FRAME_MAX, FrameInvalid, Frames
from gateway.routers.bedrock import StreamedAnswer, message_of, path_of, region_of, request
from gateway.routers.chat import NotTranslatable
from gateway.routers.chat_form import ChatForm
from program.desired.router import ExternalModel, RouterBackend
from tests.support import sigv4
from tests.support.gateways import Front, says
from tests.support.routed_providers import AT_ROUTER, Make, body, events, route, streamed

MODEL = "anthropic.claude-3-haiku-20240307-v1:0"
KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret-key", "AWS_REGION": "cn-north-1"}
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look", "parameters": {"type": "object"}}}


def frame(kind: str, payload: Any, message_type: str = "event") -> bytes:
    """Encode a frame as AWS does, independently of the reader."""
    name = ":exception-type" if message_type == "exception" else ":event-type"
    headers = b""
    for key, value in ((name, kind), (":content-type", "application/json"), (":message-type", message_type)):
        headers += bytes([len(key)]) + key.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    data = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(data), len(headers))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + data
    return whole + struct.pack(">I", zlib.crc32(whole))


STREAM = (
    frame("messageStart", {"role": "assistant"}),
    frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hel"}}),
    frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "lo"}}),
    frame("contentBlockStop", {"contentBlockIndex": 0}),
    frame("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t1", "name": "look"}}}),
    frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"q": 1}'}}}),
    frame("messageStop", {"stopReason": "tool_use"}),
    frame("metadata", {"usage": {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}, "metrics": {"latencyMs": 1}}),
)
ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello"}]}},
    "stopReason": "max_tokens",
    "usage": {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7, "cacheReadInputTokens": 3},
}


def backend(url: str) -> RouterBackend:
    return RouterBackend("x", external=ExternalModel("bedrock", url, MODEL, "aws"))


def translated(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request({"messages": [USER]} | fields))
    return found


# --- translation ------------------------------------------------------------------------------------------------------


def test_messages_and_settings_become_those_of_converse() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    found = translated(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "See"}, picture]},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ],
        tools=[TOOL],
        tool_choice="required",
        max_tokens=9,
        temperature=1.5,
        top_p=0.5,
        stop="x",
        seed=1,
    )
    assert found == {
        "system": [{"text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"text": "See"}, {"image": {"format": "png", "source": {"bytes": "AAAA"}}}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "look", "input": {"q": 1}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "42"}]}}]},
        ],
        "inferenceConfig": {"maxTokens": 9, "temperature": 1.0, "topP": 0.5, "stopSequences": ["x"]},
        "toolConfig": {
            "tools": [
                {"toolSpec": {"name": "look", "description": "Look", "inputSchema": {"json": {"type": "object"}}}}
            ],
            "toolChoice": {"any": {}},
        },
    }
    named = translated(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}})
    assert named["toolConfig"]["toolChoice"] == {"tool": {"name": "look"}}
    assert "toolConfig" not in translated(tools=[TOOL], tool_choice="none")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}
                ]
            },
            "messages[0].content",
        ),
    ],
)
def test_what_converse_does_not_have_is_refused_with_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(NotTranslatable) as caught:
        translated(**fields)
    assert caught.value.param == param


def test_an_answer_becomes_a_completion_with_its_usage() -> None:
    answer = message_answer(message_of, ChatForm("public"), "one")
    answer.feed(json.dumps(ANSWER).encode())
    found = json.loads(answer.end())
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["prompt_tokens"] == 8
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_stream_in_any_pieces_becomes_chunks(size: int) -> None:
    answer, whole = StreamedAnswer(ChatForm("public", with_usage=True)), b"".join(STREAM)
    text = b"".join(answer.feed(whole[at : at + size]) for at in range(0, len(whole), size)) + answer.end()
    *lines, last = text.decode().split("\n\n")[:-1]
    assert last == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    deltas = [each["choices"][0]["delta"] for each in chunks[:-1]]
    assert "".join(each.get("content") or "" for each in deltas) == "Hello"
    calls = [each["tool_calls"][0] for each in deltas if "tool_calls" in each]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("t1", "look")
    assert calls[1]["function"]["arguments"] == '{"q": 1}'
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["total_tokens"] == 7


def test_an_exception_in_a_stream_is_named_without_its_text() -> None:
    answer = StreamedAnswer(ChatForm("public", with_usage=False))
    answer.feed(STREAM[0])
    with pytest.raises(AnswerIncomplete, match="throttlingException") as caught:
        answer.feed(frame("throttlingException", {"message": "the prompt"}, "exception"))
    assert "prompt" not in str(caught.value)


def test_bytes_that_are_no_frames_are_refused() -> None:
    whole = STREAM[1]
    for broken in (
        b"x" * 40,
        whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:],
        whole[:9] + bytes([whole[9] ^ 1]) + whole[10:],
    ):
        with pytest.raises(FrameInvalid):
            list(Frames().feed(broken))
    prelude = struct.pack(">II", FRAME_MAX + 1, 0)
    with pytest.raises(FrameInvalid, match="cannot have"):
        list(Frames().feed(prelude + struct.pack(">I", zlib.crc32(prelude))))


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("bedrock-runtime.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("bedrock-runtime-fips.us-gov-east-1.amazonaws.com", "us-gov-east-1"),
        ("bedrock-runtime.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("vpce-1.bedrock-runtime.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
        ("proxy.example.com", ""),
    ],
)
def test_the_region_is_read_from_the_host(host: str, region: str) -> None:
    assert region_of(f"https://{host}") == region


def test_a_path_encodes_the_models_id() -> None:
    assert path_of(MODEL, streamed=False) == "/model/anthropic.claude-3-haiku-20240307-v1%3A0/converse"
    assert path_of("arn:aws:bedrock:eu-west-1:1:inference-profile/p", streamed=True).endswith("%2Fp/converse-stream")


# --- with a server ----------------------------------------------------------------------------------------------------


def test_a_request_is_signed_as_aws_computes_it(front: Front, make_provider: Make) -> None:
    provider = make_provider(says("200 OK", json.dumps(ANSWER).encode()))
    route(front, provider, backend(provider.url), secrets={"aws": KEYS | {"AWS_SESSION_TOKEN": "session"}})
    status, _, found = front.ask(body(max_tokens=9), AT_ROUTER, authorization="Bearer client", cookie="a=b")
    assert (status, found["model"], found["usage"]["total_tokens"]) == (200, "public", 10)
    method, target, _ = provider.seen[0][0].split(b"\r\n")[0].decode().split(" ")
    assert target == "/model/anthropic.claude-3-haiku-20240307-v1%3A0/converse"
    keys = {"key_id": "AKID", "secret": "secret-key", "region": "cn-north-1", "token": "session", "service": "bedrock"}
    sent = provider.headers()
    assert sigv4.refusal(method, target, sent, body=provider.seen[0][1], **keys) is None
    assert sigv4.refusal(method, target, sent, body=b"{}", **keys) == "the signature does not match"
    assert "cookie" not in sent
    assert json.loads(provider.seen[0][1])["inferenceConfig"] == {"maxTokens": 9}


def test_a_stream_of_frames_arrives_as_events(front: Front, make_provider: Make) -> None:
    provider = make_provider(events(*STREAM))
    route(front, provider, backend(provider.url), secrets={"aws": KEYS})
    text = streamed(front)
    assert text.endswith(b"data: [DONE]\n\n")
    assert b'"content": "Hel"' in text
    assert provider.seen[0][0].startswith(b"POST /model/anthropic.claude-3-haiku-20240307-v1%3A0/converse-stream ")
    for parts in (STREAM[:3], (*STREAM[:3], frame("x", {}, "exception")), (STREAM[0], b"x" * 40)):
        provider.answer = events(*parts)
        with pytest.raises(http.client.IncompleteRead):
            streamed(front)


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        ("400 Bad Request", 400, "invalid_request_error"),
        ("403 Forbidden", 502, "provider_refused_key"),
        ("404 Not Found", 404, "invalid_request_error"),
        ("429 Too Many Requests", 429, "rate_limit_exceeded"),
        ("503 Service Unavailable", 503, "server_error"),
    ],
)
def test_an_error_has_nothing_of_the_providers_text(
    front: Front, make_provider: Make, status: str, expected: int, code: str
) -> None:
    provider = make_provider(says(status, b'{"message": "the prompt Hi of AKID"}'))
    route(front, provider, backend(provider.url), secrets={"aws": KEYS})
    found, _, answer = front.ask(body(), AT_ROUTER)
    assert (found, answer["error"]["code"]) == (expected, code)
    for word in ("prompt", "AKID", "secret-key"):
        assert word not in json.dumps(answer)


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKID"}, "AWS_SECRET_ACCESS_KEY"),
        ({**KEYS, "AWS_REGION": ""}, "AWS_REGION"),
        ({**KEYS, "AWS_ACCESS_KEY_ID": "a b"}, "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_secret_without_what_is_needed_is_named_and_nothing_is_sent(
    front: Front, make_provider: Make, secret: dict[str, str], words: str
) -> None:
    provider = make_provider()
    route(front, provider, backend(provider.url), secrets={"aws": secret})
    status, _, answer = front.ask(body(), AT_ROUTER)
    assert (status, answer["error"]["code"]) == (503, "provider_not_accessible")
    assert words in answer["error"]["message"]
    assert "secret-key" not in json.dumps(answer)
    assert front.ask(body(), "/routers/prod/r/v1/embeddings")[0] in (404, 503)
    assert not provider.seen
