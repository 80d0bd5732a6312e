"""The members of pools on hosts: their agents give turns to a model group, by the memory of the host. Without I/O.

Called by `pools` for the loop and by previews.
"""

from __future__ import annotations

from collections.abc import Iterable

from automation.serving.turns.members import AgedPool
from program.desired.pool import Pool
from program.desired.service import DesiredService, Sleep

NEVER_S = 10 * 365 * 86400.0
"""The idle timeout of a member without the annotation: the member stays until another one needs its memory."""


def pool_of(name: str, pools: Iterable[AgedPool]) -> Pool | None:
    """Return the pool that has a service: the oldest of the namespace that names it."""
    found = [each for each in pools if name in each.pool.members]
    return min(found, key=lambda aged: aged.rank).pool if found else None


def with_group(desired: DesiredService, pool: Pool) -> DesiredService:
    """Return a member on hosts with the pool as its model group. A service with a group, or in pods, stays unchanged.

    An agent knows of waiting requests only by the proxy of a process that may sleep. So the member gets an idle timeout
    that never ends.
    """
    placement = desired.host_placement
    if placement is None or placement.group:
        return desired
    residency = "preferred" if desired.key.name == pool.default else "onDemand"
    group = {"group": f"modelpool/{pool.name}", "residency": residency, "min_dwell_s": pool.min_turn_s}
    sleep = desired.sleep or Sleep(idle_timeout_s=NEVER_S, wake_timeout_s=pool.hold_s)
    return desired.model_copy(update={"host_placement": placement.model_copy(update=group), "sleep": sleep})
