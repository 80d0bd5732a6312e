"""The tests that may be skipped in CI, with reasons, read from tests/allowed_skips.toml. Called by `suite_run`."""

from __future__ import annotations

import fnmatch
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "allowed_skips.toml"
_PLACES: dict[str, Callable[[], bool]] = {
    "anywhere": lambda: True,
    "not root": lambda: os.geteuid() != 0,
    "not Linux": lambda: sys.platform != "linux",
}


@dataclass(frozen=True)
class AllowedSkip:
    """One row of the file. In `tests` and `reason`, `*` and `?` are wildcards; brackets are literal."""

    tests: str
    reason: str
    where: str
    why: str

    def covers(self, test: str, reason: str) -> bool:
        """Return whether this row allows the skip on this machine."""
        return _PLACES[self.where]() and _matches(test, self.tests) and _matches(reason, self.reason)


class AllowListBroken(Exception):
    """The file cannot be read, or a row lacks a field or has an invalid one."""


def read(path: Path = FILE) -> tuple[AllowedSkip, ...]:
    """Read the rows. Raises AllowListBroken."""
    try:
        rows = tomllib.loads(path.read_text())["skip"]
        found = tuple(AllowedSkip(**row) for row in rows)
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise AllowListBroken(f"{path}: {error}") from error
    for row in found:
        if row.where not in _PLACES:
            raise AllowListBroken(f"{path}: where = {row.where!r} is none of {', '.join(_PLACES)}")
        if not row.why.strip() or not row.reason.strip(" *") or not row.tests.strip(" *"):
            raise AllowListBroken(f"{path}: the row for {row.tests!r} needs a test, a reason and a why")
    return found


def unlisted(skipped: Mapping[str, str], allowed: Iterable[AllowedSkip]) -> dict[str, str]:
    """Return the skips that no row allows."""
    rows = tuple(allowed)
    return {test: why for test, why in skipped.items() if not any(row.covers(test, why) for row in rows)}


def _matches(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))
