"""Reads the values of annotations: words, names, times, labels. Pure.

An invalid value raises SpecInvalid at `metadata.annotations[<name>]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from program.desired import keys
from program.desired.errors import SpecInvalid

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}", re.ASCII)
_DURATION = re.compile(r"(?P<number>[0-9]{1,6}(\.[0-9]{1,3})?)(?P<unit>ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LABEL_KEY = re.compile(r"([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)

_Word = TypeVar("_Word", bound=str)


def invalid(annotation: str, why: str) -> SpecInvalid:
    """Make the error of an annotation."""
    return SpecInvalid(field=f"metadata.annotations[{annotation}]", why=why)


def is_secret_key(text: str) -> bool:
    """Return whether `text` can be a key of a Secret: a file name that does not leave its folder."""
    return _SECRET_KEY.fullmatch(text) is not None and text != "." and not text.startswith("..")


def is_name(text: str) -> bool:
    """Return whether `text` is an RFC 1123 subdomain, as object names are."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def flag(annotations: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Read `true` or `false`; the default if the annotation is missing or empty."""
    value = annotations.get(name, "")
    if value not in ("", "true", "false"):
        raise invalid(name, f'`{value[:64]}` is neither "true" nor "false"')
    return default if value == "" else value == "true"


def words_of(annotations: Mapping[str, str], name: str) -> list[str]:
    """Read words that commas separate."""
    return [word for part in annotations.get(name, "").split(",") if (word := part.strip())]


def one_of(annotations: Mapping[str, str], name: str, allowed: tuple[_Word, ...]) -> _Word | None:
    """Read one of the allowed words; None if the annotation is missing or empty."""
    value = annotations.get(name, "")
    if not value:
        return None
    for word in allowed:
        if word == value:
            return word
    raise invalid(name, f"`{value[:64]}` is none of {', '.join(allowed)}")


def duration_s(annotations: Mapping[str, str], name: str) -> float | None:
    """Read a time such as `90s`, `15m` or `2h`, in seconds; None if the annotation is missing or empty."""
    value = annotations.get(name, "")
    if not value:
        return None
    match = _DURATION.fullmatch(value)
    if match is None or float(match["number"]) == 0:
        raise invalid(name, f"`{value[:64]}` is not a time; write for example `90s`, `15m` or `2h`")
    return float(match["number"]) * _SECONDS[match["unit"]]


def labels_of(annotations: Mapping[str, str], name: str) -> dict[str, str]:
    """Read `key=value,…`, the equality syntax of `kubectl --selector`."""
    found: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in annotations.get(name, "").split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or _LABEL_KEY.fullmatch(key) is None or (value and not keys.is_label_value(value)):
            raise invalid(
                name, f"`{word[:64]}` is not a label; write `key=value`, and separate several labels by commas"
            )
        found[key] = value
    return found


def host_names(annotations: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Read names of hosts that commas separate, each once."""
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in annotations.get(name, "").split(",")))))
    for each in names:
        if not keys.is_label_value(each):
            raise invalid(name, f"`{each[:64]}` is not the name of a host")
    return names
