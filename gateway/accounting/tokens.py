"""The tokens of a request, as engines report them. Pure.

Engines report `usage`: OpenAI's chat and completions with `prompt_tokens` and `completion_tokens`, its Responses API
and Anthropic's Messages with `input_tokens` and `output_tokens`. llama-server also reports `timings`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CHARACTERS_PER_TOKEN = 4
"""For estimates. English text has about four characters in a token."""

_USAGE, _TIMINGS = b'"usage"', b'"timings"'
"""The keys of reports. They cannot be inside a JSON string, which has its quotes escaped."""
_OPENING = re.compile(rb"\s*:\s*\{")


_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens; None where nothing was reported."""

    prompt: int | None = None
    """With those that the engine took from its prefix cache."""
    completion: int | None = None
    cached: int | None = None
    """Tokens of the prompt that the engine took from its prefix cache."""

    def __or__(self, later: Tokens) -> Tokens:
        """Return these tokens, replaced by those of a later report. Anthropic reports them in two parts."""
        return Tokens(
            later.prompt if later.prompt is not None else self.prompt,
            later.completion if later.completion is not None else self.completion,
            later.cached if later.cached is not None else self.cached,
        )

    def __bool__(self) -> bool:
        return self.prompt is not None or self.completion is not None


NOTHING = Tokens()


def reports(data: bytes) -> bool:
    """Return whether JSON text contains a report. Events with text only, or with a usage of null, have none."""
    return (_USAGE in data and _has(data, _USAGE)) or (_TIMINGS in data and _has(data, _TIMINGS))


def reported(data: bytes) -> Tokens:
    """Return the last report of tokens in JSON text, which may begin anywhere."""
    for at in _openings(data, _USAGE):
        if tokens := of_usage(_object_at(data, at)):
            return tokens
    timings = NOTHING
    for at in _openings(data, _TIMINGS):
        timings = timings or of_timings(_object_at(data, at))
    return timings


def of_usage(usage: dict[str, Any]) -> Tokens:
    """Read a `usage` object of any of the APIs."""
    prompt = _number(usage, "prompt_tokens", "input_tokens")
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _number(details, "cached_tokens") if isinstance(details, dict) else None
    from_cache = _number(usage, "cache_read_input_tokens")
    if prompt is not None and from_cache is not None:
        # Anthropic's `input_tokens` lacks what the cache held.
        prompt, cached = prompt + from_cache + (_number(usage, "cache_creation_input_tokens") or 0), from_cache
    completion = _number(usage, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        prompt = _number(usage, "total_tokens")  # of a rerank
    return Tokens(prompt, completion, cached)


def of_timings(timings: dict[str, Any]) -> Tokens:
    """Read the `timings` of llama-server."""
    processed, cached = _number(timings, "prompt_n"), _number(timings, "cache_n")
    prompt = processed + (cached or 0) if processed is not None else None
    return Tokens(prompt, _number(timings, "predicted_n"), cached)


def estimated(text_length: int) -> int:
    """Return about how many tokens a text of this length in characters has."""
    return -(-text_length // CHARACTERS_PER_TOKEN)


def _has(data: bytes, key: bytes) -> bool:
    return next(_openings(data, key), None) is not None


def _openings(data: bytes, key: bytes) -> Iterator[int]:
    """Return where the objects of a key begin in JSON text, from the last one to the first."""
    at = len(data)
    while (at := data.rfind(key, 0, at)) >= 0:
        if (opening := _OPENING.match(data, at + len(key))) is not None:
            yield opening.end() - 1


def _object_at(data: bytes, at: int) -> dict[str, Any]:
    try:
        value, _ = _DECODER.raw_decode(data[at:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(values: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40:
            return value
    return None
