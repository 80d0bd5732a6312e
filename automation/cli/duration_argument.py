"""Reads durations of the command line: a whole number and a unit, as in `30m`, `12h` or `90d`."""

from __future__ import annotations

import re

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FORM = re.compile(r"([1-9][0-9]{0,5})([smhdw])")


def duration_s(text: str, option: str) -> int:
    """Return a duration in seconds. Raises BadParameter that names the option."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise typer.BadParameter(f"{option}: `{text}` is not a duration, as in 30m, 12h, 90d or 4w")
    return int(form[1]) * _UNITS[form[2]]
