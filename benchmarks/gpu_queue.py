"""`python -m benchmarks gpu-queue`: how long it takes to know the places of 500 waiting services anew."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from automation.admission.gpu_queue import GpuQueue, Waiting
from program.desired.keys import ServiceKey

LIMIT_MS = 50.0
ROUNDS = 50


def measure(size: int) -> dict[str, float]:
    """Milliseconds, the median of many rounds: to fill a queue, and to know all places after one departure."""
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


def main(arguments: list[str]) -> int:
    """Measure and print; 1 when the limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu-queue", description=__doc__)
    parser.add_argument("--size", type=int, default=500)
    options = parser.parse_args(arguments)
    result = measure(options.size)
    json.dump({name: round(value, 2) for name, value in result.items()}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(value <= LIMIT_MS for value in result.values()) else 1
