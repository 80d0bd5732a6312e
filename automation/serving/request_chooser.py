"""Chooses the number of replicas of a service from the requests at the gateways. Pure.

`request_scaling` calls `choose` in each pass. More replicas start at once. Fewer run only after no number in the last
minutes was higher, as with Kubernetes' HorizontalPodAutoscaler. While the requests are unknown, because a gateway is
silent or none runs, no replica stops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from program.desired.service import RequestScaling


@dataclass(frozen=True)
class Demand:
    """The requests of clients for one service, at all gateways together."""

    active: int = 0
    """Requests that replicas work on."""
    held: int = 0
    """Requests that wait for a replica."""
    quiet_s: float = 0.0
    """How long no gateway has had a request, as far as this loop has seen it. 0 while there is one."""
    is_whole: bool = True
    """False: a gateway is silent or none runs, so that there may be more requests."""

    @property
    def requests(self) -> int:
        """All requests under way."""
        return self.active + self.held


@dataclass(frozen=True)
class Choice:
    """The number of replicas that was chosen last, and what later choices depend on."""

    replicas: int
    started: bool = False
    """A replica was ready at least once, so that the service may sleep."""
    waking: bool = False
    """The service slept before, and none of its replicas is ready yet."""
    wanted: tuple[tuple[float, int], ...] = ()
    """Times and wanted numbers of the last minutes. A number is dropped when a later one reaches it."""

    @property
    def is_asleep(self) -> bool:
        """Whether no replica may run."""
        return self.replicas == 0


def choose(
    before: Choice, demand: Demand, rules: RequestScaling, *, ready: bool, now: float
) -> tuple[Choice, float | None]:
    """Return the next choice, and the seconds after which another one may differ although no request came or ended.

    `ready`: a replica is ready now.
    """
    started, waking = before.started or ready, before.waking and not ready
    at = replace(before, started=started, waking=waking)
    if before.is_asleep:
        # Only requests that wait wake a service: one under way is at a replica that still ends.
        return (_woken(at, demand, rules, now) if demand.held else at), None
    least = _wanted(demand, rules) if demand.is_whole else max(at.replicas, _wanted(demand, rules))
    least = min(max(least, rules.min_replicas), rules.max_replicas)
    history = _remember(at.wanted, least, now, window_s=rules.down_window_s)
    replicas = max(each for _, each in history)
    at = replace(at, replicas=replicas, wanted=history)
    again_s = history[0][0] + rules.down_window_s - now if len(history) > 1 else None
    if rules.idle_timeout_s is None or not demand.is_whole or demand.requests or not (started or waking):
        return at, again_s
    left_s = rules.idle_timeout_s - demand.quiet_s
    if left_s <= 0:
        return Choice(replicas=0, started=True), None
    return at, left_s if again_s is None else min(again_s, left_s)


def _woken(before: Choice, demand: Demand, rules: RequestScaling, now: float) -> Choice:
    replicas = min(max(_wanted(demand, rules), rules.min_replicas), rules.max_replicas)
    return replace(before, replicas=replicas, waking=True, wanted=((now, replicas),))


def _wanted(demand: Demand, rules: RequestScaling) -> int:
    """Return how many replicas the requests under way need."""
    return rules.min_replicas if rules.target is None else -(-demand.requests // rules.target)


def _remember(
    wanted: tuple[tuple[float, int], ...], number: int, now: float, *, window_s: float
) -> tuple[tuple[float, int], ...]:
    """Add a wanted number. Drop the numbers up to it, and old numbers. The first of the rest is the highest.

    The time of a number is when it was wanted last. The latest number was wanted until now.
    """
    until_now = (*wanted[:-1], (now, wanted[-1][1])) if wanted else ()
    kept = tuple((at, each) for at, each in until_now if now - at < window_s and each > number)
    return (*kept, (now, number))
