"""Reads and replaces the field `model` of a body of the type multipart/form-data (RFC 7578). Pure.

All other bytes stay as they are: the boundary, the files, the order of the parts. What two parsers could read in
different ways is refused, because the engine must see the model that the gateway saw: a boundary in another form than
browsers and OpenAI's clients write it, two fields `model`, a part without a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gateway.clients.request_body import BodyInvalid

MAX_PARTS = 1000
"""Most parts of a body. An edit of images has few files and about ten fields."""
MAX_HEADERS = 4096
"""Longest headers of a part, in bytes."""
MAX_MODEL = 1024
"""Longest value of the field `model`, in bytes."""

_TYPE = re.compile(rb"multipart/form-data[ \t]*;(.*)", re.IGNORECASE | re.DOTALL)
_BOUNDARY = re.compile(
    rb"""(?:^|;)[ \t]*boundary=(?:"([0-9A-Za-z'()+_,\-./:=? ]{1,70})"|([0-9A-Za-z'+_\-.]{1,70}))[ \t]*(?=;|$)""",
    re.IGNORECASE,
)
_NAMED_BOUNDARY = re.compile(rb"boundary[*0-9 \t]*=", re.IGNORECASE)
_HEADER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00\r\n]*\r\n")
_DISPOSITION = re.compile(rb"content-disposition:[ \t]*form-data[ \t]*((?:;[^\r\n]*)?)\r\n", re.IGNORECASE)
_NAME = re.compile(rb""";[ \t]*name(\*?=(?:"([^"\\\r\n]*)"[ \t]*(?=;|$))?)""", re.IGNORECASE)
_FILE = re.compile(rb";[ \t]*filename\*?=", re.IGNORECASE)
_ENCODING = re.compile(rb"^content-transfer-encoding:[ \t]*+(?!binary|8bit|7bit)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class MultipartBody:
    """A request's form."""

    data: bytes
    model: str
    _start: int
    """Where the model's name begins in `data`."""
    _end: int
    values: dict[str, Any] = field(default_factory=dict)
    """Empty: the gateway reads no other field."""

    @classmethod
    def read(cls, data: bytes, content_type: bytes) -> MultipartBody:
        """Find the model of a form. Raises BodyInvalid."""
        found: tuple[int, int] | None = None
        for headers, start, end in _parts(data, boundary_of(content_type)):
            if _name(headers) != b"model":
                continue
            if found is not None:
                raise BodyInvalid("the form has two fields `model`", "model")
            if _FILE.search(headers) or end - start > MAX_MODEL or _ENCODING.search(headers):
                raise BodyInvalid("the field `model` of the form is not a short text", "model")
            found = start, end
        if found is None:
            raise BodyInvalid("you must provide a model field; GET /v1/models lists the models", "model")
        try:
            model = data[found[0] : found[1]].decode()
        except UnicodeDecodeError:
            raise BodyInvalid("the field `model` of the form is not UTF-8", "model") from None
        return cls(data, model, *found)

    def prefix(self) -> str:
        """Return nothing: engines keep no prefix of audio and images."""
        return ""

    def unchanged(self) -> bytes:
        """Return the body as it came."""
        return self.data

    def with_model(self, name: str) -> bytes:
        """Return the body with another model. All other bytes stay as they are."""
        view = memoryview(self.data)
        return b"".join((view[: self._start], name.encode(), view[self._end :]))


def is_form(content_type: bytes) -> bool:
    """Return whether a Content-Type is that of a form with parts."""
    return _TYPE.fullmatch(content_type) is not None


def boundary_of(content_type: bytes) -> bytes:
    """Return the text that separates the parts. Raises BodyInvalid."""
    parameters = _TYPE.fullmatch(content_type)
    found = _BOUNDARY.findall(parameters[1]) if parameters is not None else []
    if len(found) != 1 or len(_NAMED_BOUNDARY.findall(content_type)) != 1:
        raise BodyInvalid("the Content-Type has no valid boundary")
    quoted, plain = found[0]
    return bytes(quoted or plain)


def _parts(data: bytes, boundary: bytes) -> list[tuple[bytes, int, int]]:
    """Return the headers of each part, and where its content begins and ends. Raises BodyInvalid."""
    delimiter = b"\r\n--" + boundary
    if not data.startswith(delimiter[2:]):
        raise BodyInvalid("the form does not begin with its boundary")
    found: list[tuple[bytes, int, int]] = []
    at = len(delimiter) - 2
    while data[at : at + 2] == b"\r\n":
        headers_end = data.find(b"\r\n\r\n", at, at + MAX_HEADERS)
        if headers_end < 0:
            raise BodyInvalid("a part of the form has no end of its headers")
        start = headers_end + 4
        end = data.find(delimiter, start)
        if end < 0:
            raise BodyInvalid("the form has no end")
        found.append((data[at + 2 : headers_end + 2], start, end))
        if len(found) > MAX_PARTS:
            raise BodyInvalid(f"the form has more than {MAX_PARTS} parts")
        at = end + len(delimiter)
    if data[at : at + 2] != b"--" or data[at + 2 : at + 4] not in (b"", b"\r\n"):
        raise BodyInvalid("the form has no end, or its boundary is a part of its content")
    if len(data) > at + 4:
        raise BodyInvalid("the form continues after its end")
    return found


def _name(headers: bytes) -> bytes:
    """Return the name of a part. Raises BodyInvalid."""
    lines = headers.split(b"\r\n")[:-1]
    if not all(_HEADER.fullmatch(line + b"\r\n") for line in lines):
        raise BodyInvalid("a part of the form has an invalid header")
    dispositions = [found[1] for line in lines if (found := _DISPOSITION.fullmatch(line + b"\r\n"))]
    named = sum(line[:20].lower() == b"content-disposition:" for line in lines)
    names = _NAME.findall(dispositions[0]) if len(dispositions) == 1 == named else []
    if len(names) != 1 or not names[0][0].startswith(b'="') or not names[0][0].strip().endswith(b'"'):
        raise BodyInvalid('a part of the form has no name, or not in the form name="..."')
    return bytes(names[0][1])
