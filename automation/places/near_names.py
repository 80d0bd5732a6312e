"""Finds the names that a misspelt name may mean. Pure. Used by the places, and for unknown commands and ids."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 3
_LIKENESS = 0.6
"""As in `difflib.get_close_matches`: 1 is equal, 0 has nothing in common."""


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names that are like `name`, the likest first. Case does not count."""
    folded: dict[str, str] = {}
    for each in known:
        folded.setdefault(each.lower(), each)
    wanted = name.lower()
    found = difflib.get_close_matches(wanted, folded, n=MOST, cutoff=_LIKENESS)
    # A name that continues the word, as `qwen3-8b` continues `qwen3`, is meant even if it is much longer.
    longer = sorted(each for each in folded if wanted and each.startswith(wanted) and each not in found)
    return [folded[each] for each in (*found, *longer)][:MOST]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the near names; empty without any."""
    found = [f"`{each}`" for each in near_names(name, known)]
    if not found:
        return ""
    return f"did you mean {' or '.join([', '.join(found[:-1]), found[-1]] if len(found) > 1 else found)}?"
