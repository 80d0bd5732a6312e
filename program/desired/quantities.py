"""Kubernetes quantities: `1500m`, `24Gi`, `1e3`. Pure; read by the dialects' parsers and by agents."""

from __future__ import annotations

import re
from decimal import Decimal
from math import ceil

from program.desired.errors import SpecInvalid

_FORM = re.compile(r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
_BINARY = {suffix: Decimal(2) ** (10 * power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {
    suffix: Decimal(10) ** power for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
}
_EXAMPLE = {"memory": "`16Gi` or `512Mi`", "cpu": "`2` or `500m`"}
_LARGEST = Decimal(2) ** 63


def parse_quantity(text: str, *, field: str, example: str = "`2`, `500m` or `16Gi`") -> Decimal:
    """Read a quantity as Kubernetes does. Raises SpecInvalid at `field` for text that is none, or a negative one."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise SpecInvalid(field=field, why=f"`{text[:64]}` is not a quantity; write for example {example}")
    number, suffix = Decimal(match["number"]), match["suffix"] or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        if len(suffix) > 4:
            raise SpecInvalid(field=field, why=f"`{text[:64]}` is out of range")
        scale = Decimal(10) ** int(suffix[1:])
    else:
        scale = _BINARY.get(suffix) or _DECIMAL.get(suffix) or Decimal(1)
    value = number * scale
    if value < 0:
        raise SpecInvalid(field=field, why=f"`{text}` is negative")
    if value >= _LARGEST:
        raise SpecInvalid(field=field, why=f"`{text[:64]}` is out of range")
    return value


def check_quantity(text: str | None, *, field: str, unit: str) -> str | None:
    """Return `text` once it is known to be a quantity; `unit` (cpu, memory) chooses the example in the error."""
    if text is not None:
        parse_quantity(text, field=field, example=_EXAMPLE[unit])
    return text


def bytes_of(text: str | None, *, field: str) -> int | None:
    """Read a quantity of memory as bytes, rounded up."""
    if text is None:
        return None
    return ceil(parse_quantity(text, field=field, example=_EXAMPLE["memory"]))
