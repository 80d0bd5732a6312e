"""Keeps a field that somebody changes again and again from being put back a hundred times a minute.

The first repairs come at once. Who goes on is answered with growing pauses, and named in the service's condition; when
it rests, so does the memory of it. Thread-safe; asked by `drift_watch`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from automation.drift.field_drift import FieldDrift, ObjectDrift
from program.desired.keys import ServiceKey

FREE_REPAIRS = 3
"""So often one field is put back at once."""
BASE_S = 5.0
CAP_S = 300.0
REST_S = 60.0
"""After so long without a change, beside twice the last pause, a contest is over."""

_Field = tuple[str, str, str, str]


@dataclass(frozen=True)
class _Repairs:
    times: int
    last: datetime
    words: str

    @property
    def pause_s(self) -> float:
        """How long the next repair waits after the last one."""
        return min(CAP_S, BASE_S * 2.0 ** (self.times - FREE_REPAIRS)) if self.times >= FREE_REPAIRS else 0.0

    @property
    def over(self) -> datetime:
        return self.last + timedelta(seconds=REST_S + 2 * self.pause_s)


class Contests:
    """How often each field of each service was put back lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._repairs: dict[ServiceKey, dict[_Field, _Repairs]] = {}

    def wait_s(self, key: ServiceKey, drifts: Iterable[ObjectDrift], *, now: datetime) -> float:
        """Seconds to wait before these may be put back; 0 for at once."""
        with self._lock:
            known = self._repairs.get(key, {})
            found = [known[field] for field, _ in _fields(drifts) if field in known and now < known[field].over]
            waits = [(each.last - now).total_seconds() + each.pause_s for each in found]
        return max(0.0, *waits) if waits else 0.0

    def repaired(self, key: ServiceKey, drifts: Iterable[ObjectDrift], *, now: datetime) -> None:
        """Note that these are being put back now."""
        with self._lock:
            known = self._repairs.setdefault(key, {})
            for field, words in _fields(drifts):
                before = known.get(field)
                times = before.times + 1 if before is not None and now < before.over else 1
                known[field] = _Repairs(times, now, words)
            for field in [field for field, each in known.items() if now >= each.over]:
                del known[field]

    def hot(self, key: ServiceKey, *, now: datetime) -> tuple[str, ...]:
        """Tell what is contested now, one phrase each; the same words as long as it is."""
        with self._lock:
            known = dict(self._repairs.get(key, {}))
        return tuple(
            f"{field[0]} {field[1]}: {each.words} by `{field[3] or 'somebody'}`"
            for field, each in sorted(known.items())
            if each.pause_s and now < each.over
        )

    def over_in_s(self, key: ServiceKey, *, now: datetime) -> float:
        """Seconds until the last contest of a service may be over; 0 where there is none."""
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
