"""Reads what the gateway must know of a request's JSON body, and puts another model's name into it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PREFIX_CHARACTERS = 100
"""How much of the prompt's beginning is hashed, as KubeAI does by default."""

VALUES_MAX = 1_000_000
"""Most values of a body. A parsed value takes 70 bytes, however short it is in JSON. Commas of texts count, too."""
_SHOWN = 100
"""How much of a client's text an error repeats, in characters."""
_SPACE = re.compile(r"[ \t\n\r]*")


class BodyInvalid(Exception):
    """The body is not one that the gateway can send on. `param` is the field at fault, if one is."""

    def __init__(self, why: str, param: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.param = param


@dataclass(frozen=True)
class RequestBody:
    """A request's body."""

    text: str
    model: str
    values: dict[str, Any]

    @classmethod
    def read(cls, data: bytes) -> RequestBody:
        """Parse a body. Raises BodyInvalid."""
        if len(data) > VALUES_MAX and sum(map(data.count, (b"{", b"[", b","))) > VALUES_MAX:
            raise BodyInvalid(f"the request's body has more than {VALUES_MAX} values")
        try:
            text = data.decode("utf-8-sig")
            values = json.loads(text, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise BodyInvalid(f"the request's body is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise BodyInvalid("the request's body is not a JSON object")
        model = values.get("model")
        if model is None:
            raise BodyInvalid("you must provide a model parameter; GET /v1/models lists the models", "model")
        if not isinstance(model, str):
            raise BodyInvalid("`model` is not a string", "model")
        return cls(text, model, values)

    def prefix(self) -> str:
        """Return the beginning of the prompt: of the first user message, or of the first prompt."""
        for message in _list(self.values.get("messages")):
            if isinstance(message, dict) and message.get("role") == "user":
                return _text(message.get("content"))[:PREFIX_CHARACTERS]
        prompt = self.values.get("prompt", self.values.get("input"))
        first = prompt[0] if isinstance(prompt, list) and prompt else prompt
        return first[:PREFIX_CHARACTERS] if isinstance(first, str) else ""

    def unchanged(self) -> bytes:
        """Return the body as it came, without a byte order mark."""
        return self.text.encode()

    def with_model(self, name: str) -> bytes:
        """Return the body with another model. All other bytes stay as they are."""
        return self.with_value("model", json.dumps(name))

    def with_values(self, values: Mapping[str, str]) -> bytes:
        """Return the body with these values, given as JSON, also of keys that it lacks. Other bytes stay as they are.

        The body has a key at least: `model`.
        """
        text = self.text
        for key, value in values.items():
            if key in self.values:
                start, end = _span(text, key)
                text = f"{text[:start]}{value}{text[end:]}"
            else:
                at = text.index("{") + 1
                text = f"{text[:at]}{json.dumps(key)}:{value},{text[at:]}"
        return text.encode()

    def with_value(self, key: str, value: str) -> bytes:
        """Return the body with another value of a key that it has, given as JSON. All other bytes stay as they are."""
        start, end = _span(self.text, key)
        return f"{self.text[:start]}{value}{self.text[end:]}".encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object. Raises BodyInvalid for a key that is there twice: an engine could read the other value."""
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BodyInvalid(f"the request's body has the key `{key[:_SHOWN]}` twice in one object")
    return made


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = (part.get("text") for part in _list(content) if isinstance(part, dict))
    return "".join(part for part in parts if isinstance(part, str))


def _span(text: str, wanted: str) -> tuple[int, int]:
    """Return where the value of a key of a valid JSON object begins and ends."""
    decoder = json.JSONDecoder()
    at = text.index("{") + 1
    while True:
        at = _skip_space(text, at)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        key, at = decoder.raw_decode(text, at)
        start = _skip_space(text, text.index(":", at) + 1)
        _, at = decoder.raw_decode(text, start)
        if key == wanted:
            return start, at


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at
