"""Streamed chat completions of OpenAI's API, as server-sent events. Used by `herdsman chat` and `bench`.

Calls the service at the address of a `Reached`. llama-server, vLLM, SGLang, TGI and the gateway answer in this form.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import urllib3
import urllib3.exceptions

from automation.places.place import Reached

CONNECT_S = 10.0
SILENCE_S = 900.0
"""Longest time in seconds between two pieces of an answer; before the first one a sleeping service may load."""
_MOST_ERROR_BYTES = 65536

Message = Mapping[str, Any]


class CompletionFailed(Exception):
    """The service refused the request, or its answer broke off. `status` is 0 without an answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Piece:
    """A part of an answer."""

    text: str = ""
    reasoning: str = ""
    """What a reasoning model thinks before it answers."""


@dataclass
class Measured:
    """The times and tokens of one answer."""

    began_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None
    ended_at: float | None = None
    prompt_tokens: int | None = None
    """As the service reports; None if it does not."""
    completion_tokens: int | None = None
    pieces: int = 0
    finish_reason: str = ""

    @property
    def first_token_s(self) -> float | None:
        """Seconds until the first piece of the answer."""
        return None if self.first_at is None else self.first_at - self.began_at

    @property
    def tokens(self) -> int:
        """Tokens of the answer: reported, else its pieces, of which engines send one for each token."""
        return self.pieces if self.completion_tokens is None else self.completion_tokens

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second after the first one; None for an answer of fewer than two."""
        if self.first_at is None or self.ended_at is None or self.tokens < 2 or self.ended_at <= self.first_at:
            return None
        return (self.tokens - 1) / (self.ended_at - self.first_at)


class Completions:
    """The chat completions of one service. Threads may share it. A context manager."""

    def __init__(self, reached: Reached, *, connections: int = 1) -> None:
        self._reached = reached
        self._pool = urllib3.PoolManager(
            retries=False,
            maxsize=connections,
            ca_certs=reached.ca_file or None,
            timeout=urllib3.Timeout(CONNECT_S, SILENCE_S),
        )

    def __enter__(self) -> Completions:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.clear()

    def stream(self, messages: Sequence[Message], measured: Measured | None = None, **fields: Any) -> Iterator[Piece]:
        """Yield an answer piece by piece. `fields` are more fields of the request, such as max_tokens.

        Closing the iterator ends the request. Raises CompletionFailed.
        """
        measured = measured if measured is not None else Measured()
        body = {
            "model": self._reached.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name, value in fields.items() if value is not None},
        }
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "User-Agent": "herdsman"}
        if self._reached.key:
            headers["Authorization"] = f"Bearer {self._reached.key}"
        url = f"{self._reached.base_url}/chat/completions"
        try:
            response = self._pool.request(
                "POST", url, body=json.dumps(body).encode(), headers=headers, preload_content=False, redirect=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise CompletionFailed(f"no answer from {self._reached.how}: {error}") from error
        try:
            if response.status != 200:
                raise CompletionFailed(
                    _error_text(response.read(_MOST_ERROR_BYTES), response.status), status=response.status
                )
            for event in _events(response):
                piece = _read(event, measured)
                if piece.text or piece.reasoning:
                    measured.pieces += 1
                    measured.first_at = measured.first_at or time.monotonic()
                    yield piece
            measured.ended_at = time.monotonic()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise CompletionFailed(f"the answer of {self._reached.how} broke off: {error}") from error
        finally:
            response.close()


def _events(response: urllib3.BaseHTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each event until `[DONE]`. Raises CompletionFailed for an error event and a broken stream."""
    pending, is_done = b"", False
    while not is_done and (data := response.read1(65536)):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            name, _, value = line.strip().partition(b":")
            value = value.strip()
            if name == b"data" and value == b"[DONE]":
                is_done = True
            elif name in (b"data", b"error") and value:
                yield _parsed(value)
    if not is_done:
        raise CompletionFailed("the answer broke off before its end; the replica may have stopped")


def _parsed(value: bytes) -> dict[str, Any]:
    try:
        event = json.loads(value)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise CompletionFailed(f"the service sent an event that is no JSON object: {value[:200]!r}")
    if event.get("error"):
        raise CompletionFailed(_error_text(value, 0))
    return event


def _read(event: dict[str, Any], measured: Measured) -> Piece:
    usage = event.get("usage")
    if isinstance(usage, dict):
        measured.prompt_tokens = _count(usage.get("prompt_tokens"), measured.prompt_tokens)
        measured.completion_tokens = _count(usage.get("completion_tokens"), measured.completion_tokens)
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    measured.finish_reason = str(choice.get("finish_reason") or measured.finish_reason)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return Piece()
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    return Piece(_text(delta.get("content")), _text(reasoning))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) else otherwise


def _error_text(body: bytes, status: int) -> str:
    """Return the message of an error of OpenAI's form, else the beginning of the text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    text = str(message or text[:500] or "no reason given")
    return f"the service answered {status}: {text}" if status else text
