"""Durations in specs, in the notation of Go (`1m30s`). Pure."""

from __future__ import annotations

import re

from program.desired.errors import SpecInvalid

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


def seconds(text: str, field: str) -> float:
    """Return the seconds of a duration. Raises SpecInvalid, with the field, for any other text."""
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise SpecInvalid(field=field, why=f"`{text[:64]}` is not a duration; write for example `30s`")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
