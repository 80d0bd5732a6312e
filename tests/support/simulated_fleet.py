"""Replicas with a prefix cache, and clients that talk to them, in simulated time: no wall clock, the same at each run.

A replica computes one prompt after the other, each for a time in proportion to the tokens that its cache lacks, and
then makes the answer beside others. Its cache holds a number of tokens and drops what was used least recently. Each
client has one conversation: every request repeats it and adds a turn.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean

PREFILL_S = 0.0003
"""Time to compute one token of a prompt, in simulated seconds."""
ANSWER_S = 2.0
"""Mean time to make an answer after its prompt was computed. Answers take 0.5 to 1.5 of it."""
THINKS_S = 2.0
"""Mean time from an answer to the client's next turn, with the same spread."""
TURN = 200
"""Tokens that a turn adds to a conversation."""

Choose = Callable[[int, "Fleet"], int]
"""Returns the replica for a request of a client."""


@dataclass
class Replica:
    """One replica."""

    cache_tokens: int
    cached: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Tokens of each conversation, the most recently used last."""
    queue: deque[tuple[int, int, float]] = field(default_factory=deque)
    """Client, tokens and time of arrival of each waiting prompt; the first one is being computed."""
    in_flight: int = 0

    def lacking(self, client: int, tokens: int) -> int:
        """Return how many tokens the cache lacks, and put the prompt into it."""
        known = self.cached.pop(client, 0)
        self.cached[client] = tokens
        while sum(self.cached.values()) > self.cache_tokens and len(self.cached) > 1:
            self.cached.popitem(last=False)
        return tokens - known


@dataclass
class Result:
    """What a run has measured."""

    first_token_s: float
    """Mean time to the first token."""
    computed: float
    """Computed tokens per token of the prompts; 1 without any use of the caches."""


class Fleet:
    """Some replicas, and clients that each hold one conversation."""

    def __init__(self, replicas: int, *, clients: int, turns: int, cache_tokens: int) -> None:
        self.replicas = [Replica(cache_tokens) for _ in range(replicas)]
        self.now = 0.0
        self._clients = clients
        self._turns = turns
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self, choose: Choose, *, ended: Callable[[int], None] = lambda _: None) -> Result:
        """Let each client take its turns; `ended` gets the replica of each request that ends."""
        waits: list[float] = []
        sent = computed = 0

        def send(client: int, turn: int) -> None:
            nonlocal sent
            number = choose(client, self)
            replica = self.replicas[number]
            replica.in_flight += 1
            replica.queue.append((client, TURN * (turn + 1), self.now))
            sent += TURN * (turn + 1)
            if len(replica.queue) == 1:
                compute(number)

        def compute(number: int) -> None:
            nonlocal computed
            client, tokens, _ = self.replicas[number].queue[0]
            lacking = self.replicas[number].lacking(client, tokens)
            computed += lacking
            self._at(self.now + lacking * PREFILL_S, lambda: first_token(number))

        def first_token(number: int) -> None:
            client, tokens, arrived = self.replicas[number].queue.popleft()
            waits.append(self.now - arrived)
            self._at(self.now + ANSWER_S * _spread(client, tokens), lambda: end(number, client, tokens // TURN))
            if self.replicas[number].queue:
                compute(number)

        def end(number: int, client: int, turn: int) -> None:
            self.replicas[number].in_flight -= 1
            ended(number)
            if turn < self._turns:
                thinks_s = THINKS_S * _spread(client, -turn)
                self._at(self.now + thinks_s, lambda: send(client, turn))

        for client in range(self._clients):
            # The clients begin one after the other, within the time of one answer.
            self._at(ANSWER_S * client / self._clients, lambda client=client: send(client, 0))  # type: ignore[misc]
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()
        return Result(mean(waits), computed / sent)

    def _at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), act))


def _spread(client: int, of: int) -> float:
    return random.Random(client * 1_000_003 + of).uniform(0.5, 1.5)
