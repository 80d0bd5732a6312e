"""Decides whether another loop may take a Lease, by how long this process has seen no renewal and by its holder's mark.

Called by `election`. The clocks of other machines do not count.
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
"""The annotation with the mark of the holder. A process on that machine can prove by it that the holder is dead."""
FORMER_ANNOTATION = "herdsman.dev/former-leaders"
"""The annotation with hosts and marks of all holders, the latest last. A loop may break their locks on the state."""
MAX_FORMER = 16
RELEASED_S = 1
"""The duration that a holder writes, with an empty holder, when it releases a lease with no work under way."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FormerLoop:
    """A loop that led before."""

    host: str
    mark: str
    """See `automation.leadership.process_mark`."""


@dataclass
class _Observation:
    version: str
    since: float
    mark: str = ""
    """The mark of the last holder that was seen."""
    held: bool = False


class LeaseObservations:
    """The last renewals that this process saw of leases."""

    def __init__(
        self, *, duration_s: float, nobody_led: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`nobody_led` returns whether no loop worked on this cluster before; called when a lease does not exist."""
        self._duration_s = duration_s
        self._nobody_led = nobody_led
        self._clock = clock
        self._seen: dict[str, _Observation] = {}

    def is_free(self, name: str, lease: Json | None) -> bool:
        """Return whether no loop can be working under this lease; `lease` is None when it does not exist."""
        return self.free_in_s(name, lease) <= 0

    def free_in_s(self, name: str, lease: Json | None) -> float:
        """Return the seconds until the lease may be taken if its holder does not renew it."""
        now = self._clock()
        version = "" if lease is None else str(lease["metadata"].get("resourceVersion"))
        seen = self._seen.get(name)
        if seen is None or seen.version != version:
            seen = self._seen[name] = _Observation(
                version, now, seen.mark if seen else "", seen is not None and seen.held
            )
        if lease is None:
            # The lease was deleted. A holder that runs creates it again with its next renewal.
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
        """Return the time that is left of a lease. After its end, kill its holder's engine processes on this machine.

        The holder's guard has killed them, unless it is frozen together with the holder.
        """
        if left_s <= 0 and seen.mark:
            end_engines_of(seen.mark)
        return left_s

    def _is_over(self, name: str, mark: str) -> bool:
        """Return whether the holder and its engine processes are proven dead."""
        if not mark or not is_dead(mark):
            return False
        if not end_engines_of(mark):
            _log.warning("Cannot end the engine of a dead loop yet", extra={"lease": name})
            return False
        _log.info("Found the holder of the lease dead", extra={"lease": name})
        return True


def former_of(lease: Json | None) -> tuple[FormerLoop, ...]:
    """Parse the holders of a lease, the present one included. Invalid entries are left out."""
    text = (((lease or {}).get("metadata") or {}).get("annotations") or {}).get(FORMER_ANNOTATION) or "[]"
    try:
        return tuple(FormerLoop(str(host), str(mark)) for host, mark in json.loads(text))
    except (ValueError, TypeError):
        return ()


def former_text(former: tuple[FormerLoop, ...]) -> str:
    """Format the latest holders of a lease for its annotation, each once."""
    unique = dict.fromkeys((each.host, each.mark) for each in reversed(former))
    return json.dumps([list(each) for each in reversed(list(unique)[:MAX_FORMER])])
