"""Estimates how long builds still take, and records how long they took. Called by `progress` and `build`.

A build counts with the duration of its last run on this machine, else with the one in `tools.versions`. Where a build
reports its steps, they count instead, once a part of them is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_STEPS_COUNT_FROM = 0.1
"""The share of a build's steps from which they tell its duration; the first ones differ from the rest."""
_LEAST_SHARE_LEFT = 0.05
"""What remains of a build that takes longer than it usually does."""


@dataclass
class _Build:
    usual_s: float | None
    started_at: float | None = None
    steps: float = 0.0
    """The share of finished steps."""
    ended: bool = False

    def left_s(self, now: float) -> float | None:
        if self.ended:
            return 0.0
        if self.started_at is None:
            return self.usual_s
        took_s = now - self.started_at
        if self.steps >= _STEPS_COUNT_FROM:
            return took_s * (1 - self.steps) / self.steps
        if self.usual_s is None:
            return None
        return max(self.usual_s - took_s, _LEAST_SHARE_LEFT * self.usual_s)


class Forecast:
    """The builds of one command. Not thread-safe."""

    def __init__(self, lanes: Sequence[Mapping[str, float]], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`lanes`: usual durations in seconds by title; lanes run at the same time, the builds of a lane do not."""
        self._clock = clock
        self._started_at = clock()
        self._lanes = [{title: _Build(usual_s) for title, usual_s in lane.items()} for lane in lanes]
        self._most = 0.0

    def begin(self, title: str) -> None:
        """Note that a build starts, also one that was not announced."""
        found = self._find(title)
        if found is None:
            found = _Build(None)
            self._lanes.append({title: found})
        found.started_at = self._clock()

    def step(self, title: str, done: int | None, total: int | None) -> None:
        """Note the number of finished and of all steps of a build."""
        found = self._find(title)
        if found is not None and done is not None and total:
            found.steps = min(1.0, done / total)

    def end(self, title: str) -> None:
        """Note that a build is complete."""
        found = self._find(title)
        if found is not None:
            found.ended = True

    def left_s(self) -> float | None:
        """Return the seconds until the longest lane ends; None while a build that runs cannot be estimated."""
        now = self._clock()
        longest = 0.0
        for lane in self._lanes:
            parts = [build.left_s(now) for build in lane.values()]
            if None in parts:
                return None
            longest = max(longest, sum(part for part in parts if part is not None))
        return longest

    def share(self) -> float | None:
        """Return the finished share of the whole time, from 0 to 1. It never goes back; None without an estimate."""
        left_s = self.left_s()
        if left_s is None:
            return None
        took_s = self._clock() - self._started_at
        self._most = max(self._most, took_s / (took_s + left_s) if took_s + left_s else 1.0)
        return self._most

    def _find(self, title: str) -> _Build | None:
        return next((lane[title] for lane in self._lanes if title in lane), None)


def time_text(seconds: float) -> str:
    """Format a time left, as people say it."""
    return (
        f"{seconds / 60:.0f} min"
        if seconds >= 90
        else f"{max(1, round(seconds / 5) * 5 if seconds > 10 else round(seconds))} s"
    )


def recorded(path: Path) -> dict[str, float]:
    """Return the durations in seconds of the last builds, by the folder of the program; empty if none is known."""
    try:
        found = json.loads(path.read_bytes())
        return {str(name): float(seconds) for name, seconds in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def record(path: Path, name: str, seconds: float) -> None:
    """Record the duration of a build. A record that cannot be written is left out; it only helps the estimate."""
    known = {**recorded(path), name: round(seconds, 1)}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")
        draft.replace(path)
