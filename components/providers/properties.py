"""The values that pass through the providers: plain Python, and two marks. Pure; does not import protobuf.

Called by all code that reads inputs: the providers' decisions, previews. `marshalling` converts the wire form.
`UNKNOWN` is a value that becomes known only after another resource was made (previews only). `Secret` wraps a value
that must never be shown or stored in the clear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

Properties = dict[str, Any]
"""An object of plain Python values, which may contain `UNKNOWN` and `Secret` at any depth."""


class Unknown(Enum):
    """The type of the value that is not known yet."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True)
class Secret:
    """A value that the engine encrypts in its state and hides in its output."""

    value: Any

    def __repr__(self) -> str:
        return "Secret(…)"


def plain(value: Any) -> Any:
    """Copy a value without its secret marks. Unknowns stay."""
    if isinstance(value, Secret):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, list):
        return [plain(child) for child in value]
    return value


def has_unknown(value: Any) -> bool:
    """Return whether the value contains an unknown."""
    if value is UNKNOWN:
        return True
    if isinstance(value, Secret):
        return has_unknown(value.value)
    if isinstance(value, dict):
        return any(has_unknown(child) for child in value.values())
    if isinstance(value, list):
        return any(has_unknown(child) for child in value)
    return False


def has_secret(value: Any) -> bool:
    """Return whether the value contains a secret."""
    if isinstance(value, Secret):
        return True
    if isinstance(value, dict):
        return any(has_secret(child) for child in value.values())
    if isinstance(value, list):
        return any(has_secret(child) for child in value)
    return False


def marked_like(value: Any, model: Any) -> Any:
    """Copy `value` with a secret mark wherever `model` has one.

    Lists correspond by position if they have the same length. Otherwise the whole list becomes secret, because its
    items may have moved.
    """
    if isinstance(value, Secret) or not has_secret(model):
        return value
    if isinstance(model, Secret):
        return Secret(value)
    if isinstance(model, dict) and isinstance(value, dict):
        return {key: marked_like(child, model[key]) if key in model else child for key, child in value.items()}
    if isinstance(model, list) and isinstance(value, list) and len(model) == len(value):
        return [marked_like(child, of) for child, of in zip(value, model, strict=True)]
    return Secret(value)


def secret_texts(value: Any, *, inside: bool = False) -> Iterator[str]:
    """Yield all texts with a secret mark, so that they can be removed from messages."""
    if isinstance(value, Secret):
        yield from secret_texts(value.value, inside=True)
    elif isinstance(value, dict):
        for child in value.values():
            yield from secret_texts(child, inside=inside)
    elif isinstance(value, list):
        for child in value:
            yield from secret_texts(child, inside=inside)
    elif inside and isinstance(value, str) and value:
        yield value
