"""Arguments about hosts that `herdsman agent` and `herdsman host` parse in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterable

import typer

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,48}[a-z0-9])?")


def check_host_name(name: str) -> None:
    """Refuse a name that is invalid for a Host and its Lease. Raises BadParameter."""
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(f"`{name}` is not a host name: use at most 50 lower-case letters, digits, `-` and `.`")


def labels_of(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `KEY=VALUE` pairs. Raises BadParameter."""
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"--label `{pair}` is not KEY=VALUE")
        labels[key] = value
    return labels
