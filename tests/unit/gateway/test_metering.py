"""What an answer cost, read from its bytes, however they are divided."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.accounting.answer_meters import BodyMeter, StreamMeter
from gateway.accounting.request_meter import asking_for_usage, expected
from gateway.accounting.tokens import Tokens, of_usage, reported, reports
from gateway.clients.request_body import RequestBody

CHAT = "/v1/chat/completions"
WORDS = [b'data: {"choices":[{"delta":{"content":"\xc3\xa4%d"}}]}\n\n' % n for n in range(3)]
LAST = (
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"timings":{"prompt_n":2,"cache_n":5,"predicted_n":3}}\n\n'
)
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":5}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = [*WORDS, LAST, USAGE, DONE]


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def content(framed: bytes) -> bytes:
    """The content of a whole chunked body."""
    found = b""
    while True:
        size, _, framed = framed.partition(b"\r\n")
        if size == b"0":
            assert framed == b"\r\n"
            return found
        found += framed[: int(size, 16)]
        framed = framed[int(size, 16) + 2 :]


def cut(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}, Tokens(7, 3)),
        ({"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}, Tokens(7, None, 5)),
        ({"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 5}}, Tokens(7, 3, 5)),
        ({"input_tokens": 2, "output_tokens": 3, "cache_read_input_tokens": 5}, Tokens(7, 3, 5)),
        ({"total_tokens": 9}, Tokens(9)),
        ({"prompt_tokens": -1, "completion_tokens": True, "prompt_tokens_details": None}, Tokens()),
    ],
)
def test_usage_of_all_apis_is_read(usage: dict[str, Any], tokens: Tokens) -> None:
    assert of_usage(usage) == tokens


def test_text_of_an_answer_is_not_taken_for_its_usage() -> None:
    fake = json.dumps({"content": 'I say "usage": {"prompt_tokens": 999, "completion_tokens": 999}'})
    true = json.dumps(
        {"choices": [{"message": json.loads(fake)}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    )
    assert reported(fake.encode()) == Tokens()
    assert reported(true.encode()) == Tokens(1, 2)
    schema = b'{"usage":{"prompt_tokens":1,"completion_tokens":2},"tools":[{"properties":{"usage":{"type":"object"}}}]}'
    assert reported(schema) == Tokens(1, 2)
    assert reported(b'{"usage": {"prompt_tokens": 1') == Tokens()


@pytest.mark.parametrize(
    ("event", "is_report"),
    [
        (b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}', False),
        (b'data: {"choices":[{"delta":{"content":"say \\"usage\\": {"}}]}', False),
        (b'data: {"timings" : {"prompt_n":1}}', True),
        (b'data: {"usage":{"prompt_tokens":1},"x":{"usage":null}}', True),
    ],
)
def test_only_an_object_is_a_report(event: bytes, is_report: bool) -> None:
    assert reports(event) is is_report
    assert bool(reported(event)) is is_report


@pytest.mark.parametrize("step", [1, 7, 100000])
@pytest.mark.parametrize("with_chunks", [True, False])
def test_an_answer_of_json_passes_unchanged_and_is_read(step: int, with_chunks: bool) -> None:
    body = b'{"data": [' + b"0.25," * 20000 + b'0], "usage": {"prompt_tokens": 5, "total_tokens": 5}}'
    data = chunked(body[:999], body[999:]) if with_chunks else body
    meter = BodyMeter(chunked=with_chunks)
    parts = cut(data, step) if step > 1 else [*cut(data[:300], 1), data[300:-300], *cut(data[-300:], 1)]
    assert b"".join(map(meter.passes, parts)) == data
    meter.ends()
    assert meter.tokens == Tokens(5)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50, 100000])
def test_a_stream_whose_client_asked_for_usage_passes_unchanged(step: int) -> None:
    data = chunked(*STREAM)
    meter = StreamMeter(chunked=True, drop_usage=False)
    assert [meter.passes(part) for part in cut(data, step)] == cut(data, step)
    assert (meter.tokens, meter.events) == (Tokens(7, 3, 5), len(STREAM))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50, 100000])
@pytest.mark.parametrize("together", [1, 2, 6])
def test_the_event_that_only_the_gateway_asked_for_is_left_out(step: int, together: int) -> None:
    data = chunked(*(b"".join(STREAM[at : at + together]) for at in range(0, len(STREAM), together)))
    meter = StreamMeter(chunked=True, drop_usage=True)
    passed = b"".join(map(meter.passes, cut(data, step)))
    assert content(passed) == b"".join([*WORDS, LAST, DONE])
    assert meter.tokens == Tokens(7, 3, 5)


def test_whole_events_pass_at_once_and_unchanged() -> None:
    meter = StreamMeter(chunked=True, drop_usage=True)
    for word in WORDS:
        part = b"%x;name=value\r\n%s\r\n" % (len(word), word)
        assert meter.passes(part) == part


@pytest.mark.parametrize("step", [1, 40, 100000])
def test_a_stream_without_chunks_keeps_its_rest(step: int) -> None:
    rest = b"data: no end"
    meter = StreamMeter(chunked=False, drop_usage=True)
    passed = b"".join(map(meter.passes, cut(b"".join(STREAM) + rest, step))) + meter.left()
    assert passed == b"".join([*WORDS, LAST, DONE]) + rest


def test_line_ends_of_two_characters_divide_events_too() -> None:
    events = [event.replace(b"\n", b"\r\n") for event in STREAM]
    meter = StreamMeter(chunked=True, drop_usage=True)
    passed = b"".join(map(meter.passes, cut(chunked(*events), 11)))
    assert content(passed) == b"".join(events[:-2] + events[-1:])
    assert meter.tokens == Tokens(7, 3, 5)


def test_an_event_without_an_end_is_not_held_for_ever() -> None:
    for drop in (True, False):
        meter = StreamMeter(chunked=True, drop_usage=drop)
        sent = [b"%x\r\n%s\r\n" % (10000, b"x" * 10000)] * 100
        passed = sum(len(meter.passes(part)) for part in sent)
        assert passed > 500_000
        assert len(meter._partial) <= 300_000


def test_llama_servers_timings_replace_missing_usage() -> None:
    meter = StreamMeter(chunked=True, drop_usage=True)
    meter.passes(chunked(*WORDS, LAST, DONE))
    assert meter.tokens == Tokens(7, 3, 5)


def test_streams_of_typed_events_are_read() -> None:
    responses = [
        b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n',
        b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":4,"output_tokens":1}}}\n\n',
    ]
    messages = [
        b'event: message_start\ndata: {"message":{"usage":{"input_tokens":4,"output_tokens":1}}}\n\n',
        b'event: message_delta\ndata: {"usage":{"output_tokens":9}}\n\n',
    ]
    for events, tokens in ((responses, Tokens(4, 1)), (messages, Tokens(4, 9))):
        meter = StreamMeter(chunked=True, drop_usage=False)
        meter.passes(chunked(*events))
        assert meter.tokens == tokens


def body_of(**values: Any) -> RequestBody:
    return RequestBody.read(json.dumps({"model": "m", **values}).encode())


@pytest.mark.parametrize(
    ("values", "asks"),
    [
        ({"stream": True}, True),
        ({"stream": True, "stream_options": None}, True),
        ({"stream": True, "stream_options": {"include_usage": False, "other": 1}}, True),
        ({"stream": True, "stream_options": {"include_usage": True}}, False),
        ({"stream": False}, False),
        ({"stream": True, "stream_options": "no"}, False),
    ],
)
def test_the_engine_is_asked_for_usage_where_the_client_did_not(values: dict[str, Any], asks: bool) -> None:
    body = body_of(**values)
    assert expected(CHAT, body.values).drop_usage is asks
    if asks:
        sent = json.loads(asking_for_usage(body, body.text.encode()))
        assert sent.pop("stream_options")["include_usage"] is True
        assert sent == {key: value for key, value in body.values.items() if key != "stream_options"}
    assert not expected("/v1/responses", body.values).drop_usage


def nested(depth: int) -> object:
    value: object = "abcd"
    for _ in range(depth):
        value = [value]
    return value


def test_the_cost_of_a_request_is_estimated_before_it_is_sent() -> None:
    messages = [
        {"role": "user", "content": "x" * 400},
        {"role": "user", "content": [{"type": "text", "text": "y" * 40}]},
    ]
    assert expected(CHAT, {"messages": messages, "max_tokens": 50, "n": 2}).total == 110 + 100
    assert expected("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 5}).total == 8
    assert expected("/v1/embeddings", {"input": ["abcd", "abcde"]}).total == 3
    assert expected(CHAT, {"messages": []}).completion == 1024
    assert expected(CHAT, {"messages": nested(900), "max_tokens": 5}).total == 6
    assert expected(CHAT, {"messages": [{"content": None}, 5], "max_tokens": -3, "n": "x"}).completion == 1024
