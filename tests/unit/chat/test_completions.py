"""Streamed completions, of a real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from automation.chat.completions import CompletionFailed, Completions, Measured
from automation.places.place import Reached
from tests.support.completion_server import CompletionServer, completion_server

HELLO = [{"role": "user", "content": "hello to you"}]


@pytest.fixture
def server() -> Iterator[CompletionServer]:
    with completion_server() as running:
        yield running


def reached(server: CompletionServer) -> Reached:
    return Reached(base_url=server.base_url, model="tiny", how="a test", key="secret")


def test_an_answer_comes_in_pieces_and_is_measured(server: CompletionServer) -> None:
    measured = Measured()
    with Completions(reached(server)) as completions:
        pieces = list(completions.stream(HELLO, measured, max_tokens=5, temperature=None))
    assert [each.text for each in pieces] == ["hello ", "to ", "you "]
    assert (measured.prompt_tokens, measured.tokens, measured.finish_reason) == (7, 3, "stop")
    assert measured.first_token_s is not None and measured.tokens_per_s
    [body] = server.requests
    assert (body["model"], body["max_tokens"], body["stream"]) == ("tiny", 5, True)
    assert "temperature" not in body
    assert server.keys == ["Bearer secret"]


def test_reasoning_is_told_apart(server: CompletionServer) -> None:
    server.fault = "thinks"
    with Completions(reached(server)) as completions:
        first, *rest = completions.stream(HELLO)
    assert (first.reasoning, first.text) == ("Let me see.", "")
    assert "".join(each.text for each in rest) == "hello to you "


@pytest.mark.parametrize(
    ("fault", "told"), [("refused", "400: context size exceeded"), ("cut", "broke off"), ("event", "was killed")]
)
def test_a_failed_answer_says_why(server: CompletionServer, fault: str, told: str) -> None:
    server.fault = fault
    with Completions(reached(server)) as completions, pytest.raises(CompletionFailed, match=told):
        list(completions.stream(HELLO))


def test_a_service_that_is_gone_is_named() -> None:
    nobody = Reached(base_url="http://127.0.0.1:1/v1", model="m", how="host mac")
    with Completions(nobody) as completions, pytest.raises(CompletionFailed, match="no answer from host mac"):
        list(completions.stream(HELLO))
