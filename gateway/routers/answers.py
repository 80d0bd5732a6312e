"""Answers of providers on their way to a client, whole or as streams, in the form of OpenAI's endpoints. Pure.

A translator, such as `anthropic` or `bedrock`, reads what its provider sends, as a `Message` or piece by piece, and a
`Form` writes it. So each provider is read in one way for all endpoints.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from kubeapi.json_types import Json

LINE_MAX = 1 << 20
"""The longest line of a stream, in bytes."""


class AnswerIncomplete(Exception):
    """An answer ended before it was complete, or it is not valid."""


class Usage(NamedTuple):
    """The tokens of an answer."""

    prompt: int = 0
    """The tokens of the prompt, with the cached ones."""
    completion: int = 0
    cached: int = 0


class Call(NamedTuple):
    """A call of a tool."""

    id: str
    name: str
    arguments: str
    """JSON."""

    @classmethod
    def of(cls, call_id: str, name: str, arguments: object) -> Call:
        """Return a call whose arguments are not text yet."""
        return cls(call_id, name, json.dumps(arguments))


class Message(NamedTuple):
    """A whole answer."""

    text: str
    calls: tuple[Call, ...]
    finish: str
    """The reason of its end, as in chat completions: `stop`, `length`, `tool_calls` or `content_filter`."""
    usage: Usage
    id: str = ""
    """The provider's id; empty without one."""


class Form(Protocol):
    """Writes the answer to one request, whole or as the events of a stream."""

    id: str
    """The id of the answer; a provider's id may replace it before the first event."""

    def whole(self, message: Message) -> bytes:
        """Return a whole answer."""

    def begins(self) -> bytes:
        """Return the first events of a stream."""

    def text(self, part: str) -> bytes:
        """Return the events of the next part of the text."""

    def tool_begins(self, index: int, call_id: str, name: str) -> bytes:
        """Return the events of a call that begins. `index` is the provider's own number for it."""

    def tool_arguments(self, index: int, part: str) -> bytes:
        """Return the events of the next part of a call's arguments."""

    def finishes(self, finish: str) -> bytes:
        """Return the events of the message's end."""

    def ends(self, usage: Usage) -> bytes:
        """Return the last events of a stream."""


class Gathered(ABC):
    """Gathers the body of an answer, and translates it when it is whole."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        self._parts.append(data)
        return b""

    def end(self) -> bytes:
        return self._translated(b"".join(self._parts))

    @abstractmethod
    def _translated(self, body: bytes) -> bytes:
        """Return what the client gets. Raises AnswerIncomplete."""


class WholeAnswer(Gathered):
    """An answer in JSON."""

    def __init__(self, write: Callable[[Json], bytes], kind: str) -> None:
        """`write` translates the provider's JSON; `kind` names its form, as in `a message of Anthropic`."""
        super().__init__()
        self._write = write
        self._kind = kind

    def _translated(self, body: bytes) -> bytes:
        try:
            return self._write(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise AnswerIncomplete(f"the provider's answer is not {self._kind}") from None


def message_answer(read: Callable[[Json], Message], form: Form, kind: str) -> WholeAnswer:
    """Return what translates a whole message. `read` may raise KeyError and the like for one that is not valid."""
    return WholeAnswer(lambda answer: form.whole(read(answer)), kind)


class StreamedEvents(ABC):
    """Translates a stream of events whose data is JSON."""

    def __init__(self, form: Form, kind: str) -> None:
        """`kind` names the form of an event, as in `one of Anthropic's`."""
        self._form = form
        self._kind = kind
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_MAX:
            raise AnswerIncomplete(f"the provider sent a line with more than {LINE_MAX} bytes")
        try:
            return b"".join(self._translated(line[5:].strip()) for line in lines if line.startswith(b"data:"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise AnswerIncomplete(f"the provider sent an event that is not {self._kind}") from None

    @abstractmethod
    def end(self) -> bytes:
        """Return the last events for the client. Raises AnswerIncomplete if the stream is not complete."""

    @abstractmethod
    def _translated(self, data: bytes) -> bytes:
        """Return the events for the client. Raises AnswerIncomplete, and KeyError and the like for an event that is not
        valid.
        """


def encoded(body: Json) -> bytes:
    """Return the JSON of a whole answer."""
    return json.dumps(body).encode() + b"\n"


def events(bodies: Iterable[Json]) -> bytes:
    """Return events of a stream that have no names."""
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in bodies)


def error_body(message: str, kind: str) -> bytes:
    """Return an error in OpenAI's form."""
    return encoded({"error": {"message": message, "type": kind, "param": None, "code": kind}})


class FixedError:
    """Replaces a provider's error by a text of the gateway. A provider may repeat a prompt in its error."""

    def __init__(self, provider: str, status: int) -> None:
        """`status`: of the answer, 400 or above."""
        why, kind = f"{provider} failed to answer ({status})", "server_error"
        match status:
            case 400 | 413 | 422:
                why = f"{provider} refused the request as not valid ({status}); check its fields and its length"
                kind = "invalid_request_error"
            case 404:
                why = f"{provider} does not know the model, or does not serve it at the router's `url` (404)"
                kind = "invalid_request_error"
            case 429:
                why = f"{provider} limits the requests of the gateway's account (429); try again later"
                kind = "rate_limit_exceeded"
        self._body = error_body(why, kind)

    def feed(self, data: bytes) -> bytes:  # noqa: ARG002 - the error is not passed on
        return b""

    def end(self) -> bytes:
        return self._body
