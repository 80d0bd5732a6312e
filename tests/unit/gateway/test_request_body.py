"""What the gateway reads of a request's body."""

from __future__ import annotations

import json

import pytest

from gateway.clients.request_body import BodyInvalid, RequestBody


@pytest.mark.parametrize(
    "text",
    [
        '{"model": "chat", "messages": []}',
        '{"messages":[{"model":"inner","content":"\\"model\\": 1"}],\n "model" : "chat" , "n":1}',
        '{"a\\u0022b": {"model": "inner"}, "model":"ch\\u0061t"}',
        '\ufeff{"model":"chat"}',
    ],
)
def test_another_model_changes_nothing_else(text: str) -> None:
    body = RequestBody.read(text.encode())
    assert body.model == "chat"
    changed = json.loads(body.with_model('o"ther'))
    assert changed == {**json.loads(text.removeprefix("\ufeff")), "model": 'o"ther'}


def test_all_other_bytes_stay() -> None:
    text = '{ "x":1.0,\t"model":"chat" ,"y" : [1e3, "é", "\\u00e9"]}'
    assert RequestBody.read(text.encode()).with_model("b").decode() == text.replace('"chat"', '"b"')


@pytest.mark.parametrize(
    "text",
    ['{"model": "a", "model": "b"}', '{"model": "a", "messages": [{"role": "user", "content": "x", "content": "y"}]}'],
)
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    """Else the gateway could check one value, and the engine read the other."""
    with pytest.raises(BodyInvalid, match=r"`(model|content)` twice"):
        RequestBody.read(text.encode())


@pytest.mark.parametrize(
    ("data", "says", "param"),
    [
        (b"", "not valid JSON", None),
        (b"{", "not valid JSON", None),
        (b"\xff\xfe", "not valid JSON", None),
        (b"[" * 100_000, "not valid JSON", None),
        (b"[]", "not a JSON object", None),
        (b"{}", "you must provide a model", "model"),
        (b'{"model": 1}', "not a string", "model"),
    ],
)
def test_a_body_that_cannot_be_sent_on_is_refused(data: bytes, says: str, param: str | None) -> None:
    with pytest.raises(BodyInvalid, match=says) as refused:
        RequestBody.read(data)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("values", "prefix"),
    [
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "x" * 200}]}, "x" * 100),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}, {}]}]}, "ab"),
        ({"messages": [{"role": "user", "content": None}, 1]}, ""),
        ({"messages": "no list"}, ""),
        ({"prompt": "once"}, "once"),
        ({"prompt": ["once", "twice"]}, "once"),
        ({"prompt": [[1, 2]]}, ""),
        ({}, ""),
    ],
)
def test_the_beginning_of_the_prompt(values: dict[str, object], prefix: str) -> None:
    assert RequestBody.read(json.dumps({"model": "m", **values}).encode()).prefix() == prefix


def test_a_body_of_countless_small_values_is_refused() -> None:
    """A parsed value takes far more memory than its text."""
    with pytest.raises(BodyInvalid, match="more than 1000000 values"):
        RequestBody.read(b'{"model": "a", "x": [' + b"{}," * 600_000 + b"{}]}")
