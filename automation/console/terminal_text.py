"""Cleans text from other sources before a terminal gets it: statuses, names, messages, logs, fields of manifests.

Control characters in a text make a terminal move the cursor, rewrite lines, set the title or reverse the order of
letters. Every command prints by `automation.cli.output`, which calls this module. A control character becomes visible,
as `\x1b`; nothing else changes. Pure.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

_BEYOND_ASCII: Final = (
    r"\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f"
)
"""DEL and the C1 controls, bidirectional marks, line separators, zero-width characters, lone surrogates, tags."""
_NOT_IN_A_LINE = re.compile(rf"[\x00-\x1f{_BEYOND_ASCII}]")
_NOT_IN_LINES = re.compile(rf"[\x00-\x08\x0b-\x1f{_BEYOND_ASCII}]")
_NOT_IN_JSON = re.compile(rf"[{_BEYOND_ASCII}]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_BEGUN = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z|\r\Z")


def one_line(text: str) -> str:
    """Make all control characters visible, including line ends."""
    return _NOT_IN_A_LINE.sub(_visible, text)


def lines(text: str) -> str:
    """Make control characters visible, except line ends and tabs."""
    return _NOT_IN_LINES.sub(_visible, text)


def json_text(text: str) -> str:
    """Escape control characters in a JSON text; its meaning stays the same."""
    return _NOT_IN_JSON.sub(_json_escape, text)


def is_clean(text: str) -> bool:
    """Return whether `lines` would change nothing."""
    return _NOT_IN_LINES.search(text) is None


def cleaned(value: T) -> T:
    """Clean all texts in a value by `lines`: in tuples, lists, dicts, dataclasses and models."""
    return cast("T", _cleaned(value))


def _cleaned(value: Any) -> Any:
    if type(value) is str:
        return lines(value)
    if hasattr(value, "model_copy"):
        # A pydantic model. pydantic is not imported for this check, because the import is slow.
        return value.model_copy(update={name: _cleaned(getattr(value, name)) for name in type(value).model_fields})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if field.init)
        return dataclasses.replace(value, **{name: _cleaned(getattr(value, name)) for name in fields})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_cleaned, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_cleaned, value))
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(each) for key, each in value.items()}
    return value


class LogText:
    """Cleans a log in pieces for a terminal. Removes colours; a line that overwrites itself becomes several lines."""

    def __init__(self) -> None:
        self._begun = ""
        """The end of the last piece, if it may be the beginning of a sequence."""

    def __call__(self, piece: str) -> str:
        text = self._begun + piece
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun is not None else ""
        text = text[: len(text) - len(self._begun)]
        text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        return lines(text)

    def rest(self) -> str:
        """Return the text that was held back, after the last piece."""
        text, self._begun = self._begun, ""
        return lines(text.replace("\r", "\n"))


def _visible(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
