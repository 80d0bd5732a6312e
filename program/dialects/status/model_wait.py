"""How long a changed service waits for its Model before the Model counts as missing. Pure."""

from __future__ import annotations

from datetime import datetime

from kubeapi.json_types import Json

MODEL_FOLLOWS_S = 5.0
"""The time after the last change of a service in which its Model may be missing.

Both are often applied together. The file may contain the service first, and the events of two watches arrive in any
order. kstatus counts `Stalled` as a failure, also if it is True for a moment only.
"""


def model_wait_s(cr: Json, *, now: datetime) -> float:
    """Return the seconds for which the Model of a service may still be missing; 0 after the wait.

    The wait starts at the last write of the spec, which the loop's cache keeps as `metadata.changedBy`
    (`automation.cache.trim.custom_resource`), else at the creation. The API server's clock may be ahead of `now`. A
    service that seems to be changed later than MODEL_FOLLOWS_S after `now` does not wait, so a wrong clock adds at most
    MODEL_FOLLOWS_S.
    """
    metadata = cr["metadata"]
    time = (metadata.get("changedBy") or {}).get("time") or metadata.get("creationTimestamp")
    try:
        changed = datetime.fromisoformat(time or "")
    except ValueError:
        return 0.0
    age_s = (now - changed).total_seconds()
    return max(0.0, MODEL_FOLLOWS_S - abs(age_s))
