"""Encodes request bodies as Go's encoding/json does. Called by `rest`.

The API server stores some parts of an object, such as `data` of a ControllerRevision, as the bytes that it received. At
each patch of the object, also by the garbage collector, it compares those bytes with Go's encoding of the values. Other
bytes count as a change of an immutable field, and the patch is refused.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_USUAL = 10**18
"""Python and Go write whole numbers below this one alike."""
_STRING_OR_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*')


def encoded(value: Any) -> bytes:
    """Encode a JSON value with sorted keys, no spaces, and Go's form of numbers and escapes.

    Raises ValueError for a number that JSON does not have (NaN, Infinity).
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # The search goes through the value, because a search through a text of 20 kB takes longer than its encoding.
    if _has_unusual_number(value):
        text = _STRING_OR_NUMBER.sub(lambda found: _number(found.group()), text)
    # These characters occur in strings only.
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub("\ufffd", text).encode()


def _has_unusual_number(value: Any) -> bool:
    """Return whether a JSON value has a number that Python may write in another form than Go."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            # Most values are texts, which need no visit.
            waiting.extend([child for child in each.values() if not isinstance(child, str)])
        elif isinstance(each, (list, tuple)):
            waiting.extend([child for child in each if not isinstance(child, str)])
        elif isinstance(each, float) or (isinstance(each, int) and not -_USUAL < each < _USUAL):
            return True
    return False


def _number(token: str) -> str:
    """Return a number in Go's form after a parse as int64 or else as float64. Strings stay."""
    if token.startswith('"'):
        return token
    if not any(mark in token for mark in ".eE") and -(1 << 63) <= int(token) < 1 << 63:
        return token
    number = float(token)
    if number == 0:
        return "0"
    exact = Decimal(repr(number))
    if 1e-6 <= abs(number) < 1e21:
        plain = format(exact, "f")
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    sign, digits, _ = exact.as_tuple()
    figures = "".join(map(str, digits)).rstrip("0")
    mantissa = figures[0] + ("." + figures[1:] if len(figures) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{exact.adjusted():+d}"
