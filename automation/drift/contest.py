"""Slows down the repairs of a field that another client changes again and again.

The first repairs of a field come at once, later ones after growing pauses. A condition of the service names the field
until the changes stop. Called by `drift_watch`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from automation.drift.field_drift import FieldDrift, ObjectDrift
from program.desired.keys import ServiceKey

FREE_REPAIRS = 3
"""Repairs of one field without a pause."""
BASE_S = 5.0
CAP_S = 300.0
REST_S = 60.0
"""A contest is over after this time and twice the last pause without a change."""

_Field = tuple[str, str, str, str]


@dataclass(frozen=True)
class _Repairs:
    times: int
    last: datetime
    words: str

    @property
    def pause_s(self) -> float:
        """Seconds from the last repair to the next one."""
        return min(CAP_S, BASE_S * 2.0 ** (self.times - FREE_REPAIRS)) if self.times >= FREE_REPAIRS else 0.0

    @property
    def over(self) -> datetime:
        return self.last + timedelta(seconds=REST_S + 2 * self.pause_s)


class Contests:
    """Counts the recent repairs of each field of each service. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._repairs: dict[ServiceKey, dict[_Field, _Repairs]] = {}

    def wait_s(self, key: ServiceKey, drifts: Iterable[ObjectDrift], *, now: datetime) -> float:
        """Return the seconds until these may be repaired; 0 for at once."""
        with self._lock:
            known = self._repairs.get(key, {})
            found = [known[field] for field, _ in _fields(drifts) if field in known and now < known[field].over]
            waits = [(each.last - now).total_seconds() + each.pause_s for each in found]
        return max(0.0, *waits) if waits else 0.0

    def note_repairs(self, key: ServiceKey, drifts: Iterable[ObjectDrift], *, now: datetime) -> None:
        """Note that these are repaired now."""
        with self._lock:
            known = self._repairs.setdefault(key, {})
            for field, words in _fields(drifts):
                before = known.get(field)
                times = before.times + 1 if before is not None and now < before.over else 1
                known[field] = _Repairs(times, now, words)
            for field in [field for field, each in known.items() if now >= each.over]:
                del known[field]

    def contested_texts(self, key: ServiceKey, *, now: datetime) -> tuple[str, ...]:
        """Return a phrase for each field that is contested now. The phrase of a field does not change meanwhile."""
        with self._lock:
            known = dict(self._repairs.get(key, {}))
        return tuple(
            f"{field[0]} {field[1]}: {each.words} by `{field[3] or 'unknown'}`"
            for field, each in sorted(known.items())
            if each.pause_s and now < each.over
        )

    def remaining_s(self, key: ServiceKey, *, now: datetime) -> float:
        """Return the seconds until the last contest of a service may be over; 0 where there is none."""
        with self._lock:
            ends = [each.over for each in self._repairs.get(key, {}).values() if each.pause_s and now < each.over]
        return max(((end - now).total_seconds() for end in ends), default=0.0)

    def drop_service(self, key: ServiceKey) -> None:
        with self._lock:
            self._repairs.pop(key, None)


def _fields(drifts: Iterable[ObjectDrift]) -> Iterable[tuple[_Field, str]]:
    gone = FieldDrift(path="", ours="", live="", words="deleted")
    for drifted in drifts:
        for field in drifted.fields or (gone,):
            yield (drifted.kind, drifted.name, field.path, field.by.manager if field.by else ""), field.words
