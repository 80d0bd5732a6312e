"""What the gateway reads of a request for its account: about how many tokens, and whether it asks for usage. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.accounting.tokens import estimated
from gateway.clients.request_body import RequestBody

WITH_STREAM_OPTIONS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""The paths whose streams report usage only if `stream_options.include_usage` asks for it."""
GENERATING = WITH_STREAM_OPTIONS | {"/v1/responses", "/v1/messages"}
"""The paths whose answers have tokens that an engine generates."""
DEFAULT_COMPLETION = 1024
"""How many tokens are reserved for the answer of a request that names no maximum."""
_TEXTS = ("messages", "prompt", "input", "instructions", "system", "query", "documents")
_MAXIMUMS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
_MOST = 1 << 32


@dataclass(frozen=True)
class Expected:
    """What a request may cost, before it is sent."""

    path: str = ""
    prompt: int = 0
    """Estimated tokens of the prompt."""
    completion: int = 0
    """The most tokens that the answer may have; an estimate if the request names no maximum."""
    drop_usage: bool = False
    """The gateway asks the engine for the usage of the stream, and the client did not."""

    @property
    def total(self) -> int:
        """The tokens to reserve."""
        return self.prompt + self.completion


def expected(path: str, values: Mapping[str, Any]) -> Expected:
    """Return what a request may cost."""
    prompt = sum([_tokens(values[name]) for name in _TEXTS if name in values])
    completion = 0
    if path in GENERATING:
        maximums = [n for name in _MAXIMUMS if name in values and (n := _count(values[name]))]
        completion = maximums[0] if maximums else DEFAULT_COMPLETION
        completion = min(_MOST, completion * max(1, _count(values.get("n"))))
    return Expected(path, prompt, completion, path in WITH_STREAM_OPTIONS and _is_silent_stream(values))


def asking_for_usage(body: RequestBody, payload: bytes) -> bytes:
    """Return the payload of a stream with `stream_options.include_usage`. `body` is the client's request."""
    options = body.values.get("stream_options")
    if "stream_options" not in body.values:
        at = payload.index(b"{") + 1
        comma = b"" if len(body.values) == 0 else b","
        return payload[:at] + b'"stream_options":{"include_usage":true}' + comma + payload[at:]
    given = options if isinstance(options, dict) else {}
    text = json.dumps({**given, "include_usage": True})
    return RequestBody(payload.decode(), body.model, body.values).with_value("stream_options", text)


def _is_silent_stream(values: Mapping[str, Any]) -> bool:
    options = values.get("stream_options")
    if options is not None and not isinstance(options, dict):
        return False  # the engine refuses it
    return values.get("stream") is True and not (options or {}).get("include_usage")


def _tokens(value: Any) -> int:
    """Estimate the tokens of texts at any depth. A list of numbers is a list of tokens. Images are not estimated."""
    tokens = 0
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            tokens += estimated(len(value))
        elif isinstance(value, list):
            if value and isinstance(value[0], int):
                tokens += len(value)
            else:
                left += value
        elif isinstance(value, dict):
            left += (value.get("content"), value.get("text"))
    return tokens


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST else 0
