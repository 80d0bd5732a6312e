"""Parses Kubernetes quantities: `1500m`, `24Gi`, `1e3`. Pure.

Called by the dialects' parsers, the loop's caches and agents.

This is the only parser of quantities in the project. It follows the grammar of Kubernetes' `resource.Quantity`, and
rounds and caps the number as Kubernetes does. The parser of the package `kubernetes` accepts more than the API server
does (ADR 49), and agents are installed without that package (ADR 74).
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context, Decimal, localcontext
from math import ceil

from program.desired.errors import SpecInvalid

_FORM = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d+))?",
    re.ASCII,
)
_FACTORS = {
    "": Decimal(1),
    **{
        suffix: Decimal(1000) ** power
        for suffix, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6), strict=True)
    },
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)},
}
"""The number by which a suffix multiplies."""
_EXAMPLE = {"memory": "`16Gi` or `512Mi`", "cpu": "`2` or `500m`"}
_LARGEST = Decimal(2) ** 63
_NANO = Decimal("1e-9")
_LARGEST_EXPONENT = 999
_LONGEST = 256
"""The longest text in characters that is read. The API server's own quantities are shorter."""
_EXACT = Context(prec=2 * _LARGEST_EXPONENT + _LONGEST, rounding=ROUND_UP)
"""Precise enough for every number that such a text can represent."""


def read_quantity(text: str) -> Decimal:
    """Read a quantity of an object that the API server accepted. Raises ValueError for text that is not a quantity.

    As in Kubernetes, a fraction of a billionth is rounded away from zero, and an amount with a binary suffix is at most
    2^63 - 1.
    """
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"`{text[:64]}` is not a quantity")
    if abs(int(match["exponent"] or "0")) > _LARGEST_EXPONENT:
        raise ValueError(f"`{text[:64]}` is out of range")
    suffix = match["suffix"] or ""
    with localcontext(_EXACT):
        value = Decimal(f"{match['number']}e{match['exponent'] or 0}") * _FACTORS[suffix]
    if suffix.endswith("i"):
        value = max(min(value, _LARGEST - 1), 1 - _LARGEST)
    exact = value.as_tuple().exponent
    if isinstance(exact, int) and exact < -9:
        value = _EXACT.quantize(value, _NANO)
    return value or Decimal(0)


def parse_quantity(text: str, *, field: str, example: str = "`2`, `500m` or `16Gi`") -> Decimal:
    """Read a quantity from a user's custom resource.

    Raises SpecInvalid at `field` for text that is not a quantity, for a negative amount and for 2^63 or more.
    """
    try:
        value = read_quantity(text)
    except ValueError as error:
        hint = f"; write for example {example}" if str(error).endswith("is not a quantity") else ""
        raise SpecInvalid(field=field, why=f"{error}{hint}") from None
    if value < 0:
        raise SpecInvalid(field=field, why=f"`{text[:64]}` is negative")
    if value >= _LARGEST:
        raise SpecInvalid(field=field, why=f"`{text[:64]}` is out of range")
    return value


def check_quantity(text: str | None, *, field: str, unit: str) -> str | None:
    """Return `text` if it is a quantity, else raise SpecInvalid.

    `unit` (cpu, memory) chooses the example of the error.
    """
    if text is not None:
        parse_quantity(text, field=field, example=_EXAMPLE[unit])
    return text


def bytes_of(text: str | None, *, field: str) -> int | None:
    """Read a quantity of memory as bytes, rounded up."""
    if text is None:
        return None
    return ceil(parse_quantity(text, field=field, example=_EXAMPLE["memory"]))
