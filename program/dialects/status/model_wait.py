"""How long a new service waits for its Model before the Model counts as missing. Pure."""

from __future__ import annotations

from datetime import datetime

from kubeapi.json_types import Json

MODEL_FOLLOWS_S = 5.0
"""The time after a service's creation in which its Model may follow.

Both are often applied together. The file may name the service first, and the watches of two kinds deliver in any order.
Tools that wait for a service (kstatus, Flux) give up at a `Stalled` that would be true for a moment only.
"""


def model_wait_s(cr: Json, *, now: datetime) -> float:
    """Return for how many seconds more the Model of a service may be missing; 0 if it should exist by now.

    A creation that lies in the future by this clock counts like one in the past: a wrong clock delays by seconds.
    """
    try:
        created = datetime.fromisoformat(cr["metadata"].get("creationTimestamp") or "")
    except ValueError:
        return 0.0
    age_s = (now - created).total_seconds()
    return max(0.0, MODEL_FOLLOWS_S - abs(age_s))
