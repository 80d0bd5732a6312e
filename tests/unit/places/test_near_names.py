"""Near names of a misspelt name."""

from __future__ import annotations

from automation.places.near_names import did_you_mean, near_names

KNOWN = ["chat", "Embeddings", "coder", "qwen3-coder-30b-a3b-instruct"]


def test_like_names_are_found_whatever_their_case() -> None:
    assert near_names("caht", KNOWN) == ["chat"]
    assert near_names("EMBEDDING", KNOWN) == ["Embeddings"]
    assert near_names("qwen3", KNOWN) == ["qwen3-coder-30b-a3b-instruct"]
    assert near_names("zzz", KNOWN) == []


def test_the_question_lists_them() -> None:
    assert did_you_mean("zzz", KNOWN) == ""
    assert did_you_mean("chatt", ["chat"]) == "did you mean `chat`?"
    assert did_you_mean("chat-", ["chat-a", "chat-b"]) == "did you mean `chat-b` or `chat-a`?"
