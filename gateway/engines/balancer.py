"""Chooses the replica that gets a request. Pure except for its counters; one balancer for each model.

Two strategies: the replica with the least load, or consistent hashing with bounded loads (CHWBL, Mirrokni and others,
2016) on the beginning of the prompt, so that equal beginnings meet the same prefix cache. The load of a replica is
the number of requests that this gateway has there. If the engine's own metrics are fresh, requests of others are added.
After three failed requests in a row a replica is left out for some seconds, and then gets one request as a trial. The
last replica is never left out.
"""

from __future__ import annotations

import bisect
import hashlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.proxy.upstream import Target
from gateway.engines.load import EngineLoad

POINTS = 256
"""Points on the ring of a replica with the mean weight. More points divide the keys more evenly."""
POINTS_MIN, POINTS_MAX = 16, 2048
MEAN_LOAD_FACTOR = 1.25
"""How far the load of a replica may exceed the mean before its keys go to the next one."""
FAILURES = 3
"""After this many failed requests in a row a replica is left out."""
EJECTED_S = 10.0
"""How long it is left out at first; the time doubles with each failed trial."""
EJECTED_MAX_S = 120.0
FRESH_S = 3.0
"""How long metrics of an engine are used. Older ones are ignored, and the gateway's own counts are used alone."""
FULL_QUEUE = 5
"""An engine with more waiting requests gets no more, as long as another replica has fewer."""
FULL_CACHE = 0.8
"""The same for the used part of its key-value cache."""
LOCAL_FACTOR, LOCAL_SPARE = 1.5, 2.0
"""A near replica is preferred until its load exceeds the mean by this factor and this many requests."""


class Traits(NamedTuple):
    """What the cluster says of a replica."""

    node: str = ""
    zone: str = ""
    weight: float = 1.0
    """Its share of the requests, compared with the others."""


EVEN = Traits()


class Nearness(NamedTuple):
    """Which replicas are near; empty values: none."""

    node: str = ""
    zone: str = ""


ANYWHERE = Nearness()


@dataclass(eq=False)
class Endpoint:
    """One replica of a model."""

    target: Target
    traits: Traits = EVEN
    in_flight: int = 0
    """Requests of this gateway that the replica works on."""
    failures: int = 0
    """Failed requests in a row."""
    ejected_until: float = 0.0
    tried: bool = False
    """It has its one request after an ejection."""
    measured: EngineLoad | None = None
    """What its engine said last."""
    measured_at: float = 0.0
    others: float = 0.0
    """The requests that the engine had then, and that were not of this gateway; those that waited count twice."""


@dataclass
class Balancer:
    """The replicas of one model."""

    clock: Callable[[], float] = time.monotonic
    dice: random.Random = field(default_factory=random.Random)
    endpoints: tuple[Endpoint, ...] = ()
    near: Nearness = ANYWHERE
    """Replicas that are preferred."""
    _ring: tuple[list[int], list[Endpoint]] = ((), ())  # type: ignore[assignment]

    def set_targets(self, targets: Iterable[Target], traits: Mapping[Target, Traits] | None = None) -> None:
        """Take over the replicas that run now. Those that stay keep their counters."""
        traits = traits or {}
        known = {each.target: each for each in self.endpoints}
        self.endpoints = tuple(known.get(target) or Endpoint(target) for target in sorted(set(targets)))
        for each in self.endpoints:
            each.traits = traits.get(each.target, EVEN)
        if len(self.endpoints) < 2:
            self._ring = ([], [])
            return
        mean = sum(each.traits.weight for each in self.endpoints) / len(self.endpoints)
        points = sorted(
            (_hash(f"{each.target[0]}:{each.target[1]}#{n}"), i)
            for i, each in enumerate(self.endpoints)
            for n in range(min(POINTS_MAX, max(POINTS_MIN, round(POINTS * each.traits.weight / mean))))
        )
        self._ring = ([point for point, _ in points], [self.endpoints[i] for _, i in points])

    def choose(self, key: str = "", excluded: Set[Target] = frozenset()) -> Endpoint | None:
        """Return the replica for a request; None when there is no other than those `excluded`.

        A request with a `key` goes by its hash, another one to the replica with the least load.
        """
        candidates = self._candidates(excluded)
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        if self.near is not ANYWHERE:
            candidates = self._nearest(candidates)
        if key and len(candidates) > 1:
            return self._by_hash(key, candidates)
        loads = [self.load(each) for each in candidates]
        least = min(loads)
        return self.dice.choice([each for each, load in zip(candidates, loads, strict=True) if load == least])

    def load(self, endpoint: Endpoint) -> float:
        """Return the load of a replica: its requests, divided by its weight."""
        others = endpoint.others if self._is_fresh(endpoint) else 0.0
        return (endpoint.in_flight + others) / endpoint.traits.weight

    def _is_fresh(self, endpoint: Endpoint) -> bool:
        return endpoint.measured is not None and self.clock() - endpoint.measured_at <= FRESH_S

    def _is_full(self, endpoint: Endpoint) -> bool:
        measured = endpoint.measured
        if measured is None or not self._is_fresh(endpoint):
            return False
        return measured.waiting > FULL_QUEUE or (measured.kv_use or 0.0) > FULL_CACHE

    def _candidates(self, excluded: Set[Target]) -> Sequence[Endpoint]:
        left = [each for each in self.endpoints if each.target not in excluded] if excluded else self.endpoints
        if len(left) <= 1:
            return left
        now = self.clock()
        usable = [each for each in left if not each.ejected_until or (each.ejected_until <= now and not each.tried)]
        not_full = [each for each in usable if not self._is_full(each)]
        return not_full or usable or left

    def _nearest(self, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Return those on the same node, else those in the same zone, unless they have far more load than all."""
        bound = LOCAL_FACTOR * sum(map(self.load, candidates)) / len(candidates) + LOCAL_SPARE
        free = [each for each in candidates if self.load(each) <= bound]
        here = [each for each in free if self.near.node and each.traits.node == self.near.node]
        close = here or [each for each in free if self.near.zone and each.traits.zone == self.near.zone]
        return close or candidates

    def _by_hash(self, key: str, candidates: Sequence[Endpoint]) -> Endpoint:
        weights = sum(each.traits.weight for each in candidates)
        total = sum(self.load(each) * each.traits.weight for each in candidates)
        bound = (total + 1) / weights * MEAN_LOAD_FACTOR
        points, owners = self._ring
        start = bisect.bisect_left(points, _hash(key))
        allowed = set(map(id, candidates))
        passed: set[int] = set()
        first: Endpoint | None = None
        for step in range(len(owners)):
            owner = owners[(start + step) % len(owners)]
            if id(owner) not in allowed or id(owner) in passed:
                continue
            if self.load(owner) <= bound:
                return owner
            passed.add(id(owner))
            first = first or owner
        assert first is not None
        return first

    def started(self, endpoint: Endpoint) -> bool:
        """Count a request that is sent to a replica. Return whether it is the trial after an ejection."""
        endpoint.in_flight += 1
        endpoint.tried = bool(endpoint.ejected_until)
        return endpoint.tried

    def ended(self, endpoint: Endpoint, *, trial: bool = False) -> None:
        """Count the end of a request, however it ended. A `trial` without a result allows another one."""
        endpoint.in_flight -= 1
        if trial:
            endpoint.tried = False

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

    def measured(self, endpoint: Endpoint, load: EngineLoad) -> None:
        """Record what an engine says of its load now."""
        endpoint.measured, endpoint.measured_at = load, self.clock()
        endpoint.others = max(0.0, load.running + load.waiting - endpoint.in_flight) + load.waiting


def _hash(text: str) -> int:
    # JSON may contain half of a character (a lone surrogate), as clients send that cut texts.
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())
