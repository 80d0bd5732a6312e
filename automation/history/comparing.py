"""The difference of two versions of a service. Pure. Shown by the web console."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import yaml

from automation.engine.differences import differences
from kubeapi.json_types import Json

_CONTEXT_LINES = 3


@dataclass(frozen=True)
class Comparison:
    """What differs between two versions."""

    changes: tuple[str, ...]
    """One phrase for each field, as in the Events of a service: `spec.contextSize 4096 -> 8192`."""
    lines: tuple[str, ...]
    """The unified diff of the versions as YAML, without its header. Each line begins with `+`, `-`, a blank or `@@`."""


def compare(old: Json, new: Json) -> Comparison:
    """Compare the `data` of two versions (`revision.data_of`)."""
    diff = list(difflib.unified_diff(_lines(old), _lines(new), n=_CONTEXT_LINES, lineterm=""))
    return Comparison(differences(old, new), tuple(diff[2:]))


def _lines(data: Json) -> list[str]:
    return yaml.safe_dump(data, allow_unicode=True, width=100).splitlines()
