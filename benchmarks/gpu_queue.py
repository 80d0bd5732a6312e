"""`python -m benchmarks gpu-queue`: the cost of a departure while 500 services wait, in time and in status writes."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable

from automation.admission.gpu_queue import FRONT, GpuQueue, Waiting
from program.desired.keys import ServiceKey

LIMIT_MS = 50.0
ROUNDS = 50
DEPARTURES = 60


def measure(size: int) -> dict[str, float]:
    """Return median milliseconds of many rounds: to fill a queue, and to compute all places after one departure."""
    chance = random.Random(1)
    members = {
        ServiceKey("llmkube", f"ns-{number % 20}", f"svc-{number}"): Waiting(
            "nvidia.com/gpu", chance.choice((100, 1_000, 10_000, 100_000)), f"2026-01-01T00:{number % 60:02}:00Z"
        )
        for number in range(size)
    }
    fills, recomputes = [], []
    for _ in range(ROUNDS):
        queue = GpuQueue(later=lambda _, __: None)
        began = time.perf_counter()
        for key, waiting in members.items():
            queue.update(key, waiting)
        fills.append(time.perf_counter() - began)
        gone = chance.choice(list(members))
        began = time.perf_counter()
        queue.update(gone, None)
        places = [queue.place(key) for key in members]
        recomputes.append(time.perf_counter() - began)
        assert sum(1 for place in places if place is not None) == size - 1
    return {
        f"fill {size} (ms)": 1000 * sorted(fills)[ROUNDS // 2],
        f"recompute {size} (ms)": 1000 * sorted(recomputes)[ROUNDS // 2],
    }


def passes(size: int) -> int:
    """Return the number of passes while the first service leaves the queue in each of 60 seconds.

    Each pass writes one status.
    """
    now, due, told = 0.0, list[tuple[float, Callable[[], None]]](), list[ServiceKey]()
    queue = GpuQueue(on_moved=told.append, later=lambda delay_s, call: due.append((now + delay_s, call)))

    def run(until_s: float) -> None:
        nonlocal now
        while ready := [each for each in due if each[0] <= until_s]:
            first = min(ready, key=lambda each: each[0])
            due.remove(first)
            now = first[0]
            first[1]()
        now = until_s

    keys = [ServiceKey("llmkube", "prod", f"svc-{number:04}") for number in range(size)]
    for key in keys:
        queue.update(key, Waiting("nvidia.com/gpu", 0, key.name))
    for key in keys:
        queue.place(key)
    run(100.0)
    told.clear()
    for number in range(DEPARTURES):
        queue.update(keys[number], None)
        run(100.0 + number + 1)
    run(200.0)
    length = size - DEPARTURES
    shown = [queue.place(key) for key in keys[DEPARTURES:]]
    assert all(place is not None and (place.position, place.length) == (n, length) for n, place in enumerate(shown, 1))
    return len(told)


def main(arguments: list[str]) -> int:
    """Measure and print; return 1 if the limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu-queue", description=__doc__)
    parser.add_argument("--size", type=int, default=500)
    options = parser.parse_args(arguments)
    result, written = measure(options.size), passes(options.size)
    everybody = sum(options.size - number for number in range(1, DEPARTURES + 1))
    counted = {f"passes for {DEPARTURES} departures": written, "the same if everybody were told of each": everybody}
    json.dump({**{name: round(value, 2) for name, value in result.items()}, **counted}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    most = DEPARTURES * FRONT + 3 * options.size
    return 0 if all(value <= LIMIT_MS for value in result.values()) and written <= most else 1
