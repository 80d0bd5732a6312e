"""Judges of a Lease whether another may take it: what was seen of it, since when, and what is known of its holder.

Used by `election` alone. No clock of another machine counts: only how long this process has seen no renewal.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from automation.leadership.fencing import end_engines_of
from automation.leadership.process_mark import is_dead
from kubeapi.json_types import Json

MARK_ANNOTATION = "herdsman.dev/process"
"""On the lease: by it another process on the holder's machine can tell that the holder is dead."""
FORMER_ANNOTATION = "herdsman.dev/former-leaders"
"""On the lease: host and mark of those who held it, the latest last. A lock that one of them left in the state is not a
stranger's."""
MAX_FORMER = 16
RELEASED_S = 1
"""The duration of a lease whose holder let it go with nothing under way, together with no holder."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FormerLoop:
    """One who led before."""

    host: str
    mark: str
    """See `automation.leadership.process_mark`."""


@dataclass
class _Observation:
    version: str
    since: float
    mark: str = ""
    """Of the last holder that was seen."""
    held: bool = False


class LeaseObservations:
    """What one process has seen of some leases."""

    def __init__(
        self, *, duration_s: float, nobody_led: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`nobody_led` tells whether a lease that never was there means that no loop has worked here either."""
        self._duration_s = duration_s
        self._nobody_led = nobody_led
        self._clock = clock
        self._seen: dict[str, _Observation] = {}

    def is_free(self, name: str, lease: Json | None) -> bool:
        """Whether nobody can be at work under this lease; `lease` is None where there is none."""
        return self.free_in_s(name, lease) <= 0

    def free_in_s(self, name: str, lease: Json | None) -> float:
        """Seconds until the lease may be taken if nothing is heard of its holder."""
        now = self._clock()
        version = "" if lease is None else str(lease["metadata"].get("resourceVersion"))
        seen = self._seen.get(name)
        if seen is None or seen.version != version:
            seen = self._seen[name] = _Observation(
                version, now, seen.mark if seen else "", seen is not None and seen.held
            )
        if lease is None:
            # Somebody deleted it. A holder that lives makes it again with its next renewal.
            if self._is_over(name, seen.mark) or (not seen.held and self._nobody_led()):
                return 0.0
            return self._left_s(seen, seen.since + self._duration_s - now)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if not holder and spec.get("leaseDurationSeconds") == RELEASED_S:
            seen.held, seen.mark = False, ""
            return 0.0
        seen.held, seen.mark = True, str((lease["metadata"].get("annotations") or {}).get(MARK_ANNOTATION) or "")
        if self._is_over(name, seen.mark):
            return 0.0
        duration_s = max(self._duration_s, float(spec.get("leaseDurationSeconds") or 0))
        return self._left_s(seen, seen.since + duration_s - now)

    @staticmethod
    def _left_s(seen: _Observation, left_s: float) -> float:
        """Give the time that is left of a lease. When it is over, end what its holder runs on this machine.

        The holder's guard has done so, unless it is frozen together with the holder.
        """
        if left_s <= 0 and seen.mark:
            end_engines_of(seen.mark)
        return left_s

    def _is_over(self, name: str, mark: str) -> bool:
        """Whether the holder is proven dead, and with it all that it had started."""
        if not mark or not is_dead(mark):
            return False
        if not end_engines_of(mark):
            _log.warning("Cannot end the engine of a dead loop yet", extra={"lease": name})
            return False
        _log.info("Found the holder of the lease dead", extra={"lease": name})
        return True


def former_of(lease: Json | None) -> tuple[FormerLoop, ...]:
    """Read who held a lease, its present holder included; what makes no sense is left out."""
    text = (((lease or {}).get("metadata") or {}).get("annotations") or {}).get(FORMER_ANNOTATION) or "[]"
    try:
        return tuple(FormerLoop(str(host), str(mark)) for host, mark in json.loads(text))
    except (ValueError, TypeError):
        return ()


def former_text(former: tuple[FormerLoop, ...]) -> str:
    """Write down who held a lease, each once, no more than the latest few."""
    unique = dict.fromkeys((each.host, each.mark) for each in reversed(former))
    return json.dumps([list(each) for each in reversed(list(unique)[:MAX_FORMER])])
