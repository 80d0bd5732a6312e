"""Chooses the replica that gets a request. Pure except for its counters; one balancer for each model.

Two strategies: the replica with the fewest requests in progress, or consistent hashing with bounded loads (CHWBL,
Mirrokni and others, 2016) on the beginning of the prompt, so that equal beginnings meet the same prefix cache. After
three failed requests in a row a replica is left out for some seconds, and then gets one request as a trial. The last
replica is never left out.
"""

from __future__ import annotations

import bisect
import hashlib
import random
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

from agent.proxy.upstream import Target

POINTS = 256
"""Points of each replica on the ring. More points divide the keys more evenly."""
MEAN_LOAD_FACTOR = 1.25
"""How far the load of a replica may exceed the mean before its keys go to the next one."""
FAILURES = 3
"""After this many failed requests in a row a replica is left out."""
EJECTED_S = 10.0
"""How long it is left out at first; the time doubles with each failed trial."""
EJECTED_MAX_S = 120.0


@dataclass(eq=False)
class Endpoint:
    """One replica of a model."""

    target: Target
    zone: str = ""
    in_flight: int = 0
    """Requests of this gateway that the replica works on."""
    failures: int = 0
    """Failed requests in a row."""
    ejected_until: float = 0.0
    tried: bool = False
    """It gets its one request after an ejection."""


@dataclass
class Balancer:
    """The replicas of one model."""

    clock: Callable[[], float] = time.monotonic
    dice: random.Random = field(default_factory=random.Random)
    endpoints: tuple[Endpoint, ...] = ()
    _ring: tuple[list[int], list[Endpoint]] = ((), ())  # type: ignore[assignment]

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Take over the replicas that run now. Those that stay keep their counters."""
        known = {each.target: each for each in self.endpoints}
        self.endpoints = tuple(known.get(target) or Endpoint(target) for target in sorted(set(targets)))
        points = (
            sorted(
                (_hash(f"{each.target[0]}:{each.target[1]}#{n}"), i)
                for i, each in enumerate(self.endpoints)
                for n in range(POINTS)
            )
            if len(self.endpoints) > 1
            else []
        )
        self._ring = ([point for point, _ in points], [self.endpoints[i] for _, i in points])

    def choose(self, key: str = "", excluded: Set[Target] = frozenset()) -> Endpoint | None:
        """Return the replica for a request; None when there is no other than those `excluded`.

        A request with a `key` goes by its hash, another one to the replica with the fewest requests.
        """
        candidates = self._candidates(excluded)
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        if key:
            return self._by_hash(key, candidates)
        least = min(each.in_flight for each in candidates)
        return self.dice.choice([each for each in candidates if each.in_flight == least])

    def _candidates(self, excluded: Set[Target]) -> list[Endpoint]:
        left = [each for each in self.endpoints if each.target not in excluded]
        now = self.clock()
        usable = [each for each in left if not each.ejected_until or (each.ejected_until <= now and not each.tried)]
        return usable or left

    def _by_hash(self, key: str, candidates: list[Endpoint]) -> Endpoint:
        bound = (sum(each.in_flight for each in candidates) + 1) / len(candidates) * MEAN_LOAD_FACTOR
        points, owners = self._ring
        start = bisect.bisect_left(points, _hash(key))
        allowed = set(map(id, candidates))
        passed: set[int] = set()
        first: Endpoint | None = None
        for step in range(len(owners)):
            owner = owners[(start + step) % len(owners)]
            if id(owner) not in allowed or id(owner) in passed:
                continue
            if owner.in_flight <= bound:
                return owner
            passed.add(id(owner))
            first = first or owner
        assert first is not None
        return first

    def started(self, endpoint: Endpoint) -> None:
        """Count a request that is sent to a replica."""
        endpoint.in_flight += 1
        endpoint.tried = bool(endpoint.ejected_until)

    def ended(self, endpoint: Endpoint) -> None:
        """Count the end of a request, however it ended."""
        endpoint.in_flight -= 1

    def succeeded(self, endpoint: Endpoint) -> None:
        """Record an answer of a replica: it takes part again."""
        endpoint.failures = 0
        endpoint.ejected_until, endpoint.tried = 0.0, False

    def failed(self, endpoint: Endpoint) -> None:
        """Record that a replica could not be reached, gave no answer in time, or answered with a server error."""
        endpoint.failures += 1
        if endpoint.failures >= FAILURES:
            doubled = endpoint.failures - FAILURES
            endpoint.ejected_until = self.clock() + min(EJECTED_MAX_S, EJECTED_S * 2 ** min(doubled, 8))
            endpoint.tried = False


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
