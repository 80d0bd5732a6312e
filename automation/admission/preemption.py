"""Records preemptions by the scheduler and explains them on both services: the victim's and the nominee's.

The scheduler marks a victim (condition DisruptionTarget, reason PreemptionByScheduler) and names the node for the pod
that takes its place (`status.nominatedNodeName`), in either order. `cluster_cache` records both. Both services explain
the preemption as long as the victim's service lacks a replica.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from program.desired.facts import Problem
from program.desired.keys import ServiceKey

LOST = "Preempted"
TOOK = "PreemptedOthers"


class Victim(NamedTuple):
    """A pod that the scheduler took off its node."""

    key: ServiceKey
    pod: str
    node: str
    priority: int


class Nominee(NamedTuple):
    """A pod that the scheduler makes, or made, room for."""

    key: ServiceKey
    pod: str
    node: str
    priority: int


def explain(key: ServiceKey, victims: Iterable[Victim], nominees: Iterable[Nominee]) -> tuple[Problem, ...]:
    """Describe a service's preemptions: which service took its place, and whose place it took."""
    takers = sorted(nominees)
    taken = {nominee.node for nominee in takers if nominee.key == key}
    found: dict[tuple[str, str], None] = {}
    for victim in sorted(v for v in victims if v.key == key or v.node in taken):
        by = [n for n in takers if n.node == victim.node and n.priority > victim.priority and n.key != victim.key]
        taker = max(by, key=lambda n: n.priority) if by else None
        if victim.key == key:
            if taker is None:
                to = f"a pod of higher priority (its own is {victim.priority})"
            else:
                to = f"{_name(taker.key)} (priority {taker.priority} over {victim.priority})"
            found[(LOST, f"was preempted on node {victim.node} by {to}")] = None
        elif taker is not None and taker.key == key:
            text = f"preempted {_name(victim.key)} on node {victim.node}"
            found[(TOOK, f"{text} (priority {taker.priority} over {victim.priority})")] = None
    return tuple(Problem(reason=reason, message=message) for reason, message in found)


def _name(key: ServiceKey) -> str:
    return f"{key.namespace}/{key.name}"


class PreemptionLog:
    """The preemptions whose victim still lacks a replica. Thread-safe; methods return the services to explain again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._victims: set[Victim] = set()
        self._nominees: set[Nominee] = set()

    def record_victim(self, victim: Victim) -> frozenset[ServiceKey]:
        """Record a preempted pod."""
        with self._lock:
            if victim in self._victims:
                return frozenset()
            self._victims.add(victim)
            return frozenset({victim.key, *(n.key for n in self._nominees if n.node == victim.node)})

    def record_nominee(self, nominee: Nominee) -> frozenset[ServiceKey]:
        """Record a pod for which the scheduler makes room on a node."""
        with self._lock:
            if nominee in self._nominees:
                return frozenset()
            self._nominees.add(nominee)
            return frozenset({nominee.key, *(v.key for v in self._victims if v.node == nominee.node)})

    def drop_nominee(self, key: ServiceKey, pod: str) -> None:
        """Drop a nominated pod that was deleted."""
        with self._lock:
            self._nominees = {n for n in self._nominees if (n.key, n.pod) != (key, pod)}

    def has_victims(self, key: ServiceKey) -> bool:
        """Return whether a preempted pod of the service is not replaced yet."""
        with self._lock:
            return any(victim.key == key for victim in self._victims)

    def drop_victims(self, key: ServiceKey) -> frozenset[ServiceKey]:
        """Drop the victims of a service that has all its replicas again, or is deleted."""
        with self._lock:
            nodes = {v.node for v in self._victims if v.key == key}
            if not nodes:
                return frozenset()
            self._victims = {v for v in self._victims if v.key != key}
            return frozenset({key, *(n.key for n in self._nominees if n.node in nodes)})

    def explain(self, key: ServiceKey) -> tuple[Problem, ...]:
        """Describe the recorded preemptions of a service."""
        with self._lock:
            if not self._victims:
                return ()
            victims, nominees = frozenset(self._victims), frozenset(self._nominees)
        return explain(key, victims, nominees)
