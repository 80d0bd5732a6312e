"""`python -m benchmarks failover`: leaders that fail in many ways during a constant stream of changes.

Several real loops over one state, a real API server, the real engine (`benchmarks.arena`). Two simultaneous engine runs
of one stack are always recorded (`benchmarks.engine_book`). tests/loop/test_failover.py runs a short form of this.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.arena import Arena
from kubeapi.json_types import Json
from tools.localcluster import LocalCluster

LIMIT_S = 20.0
SLOW = ("stopped", "cut", "frozen", "vanished", "stolen")
"""Failures after which the next leader must wait until the lease expires."""


def schedule(failovers: int, slow: int) -> Iterator[str]:
    """Return the kinds of the failovers in random order: each slow one `slow` times, the rest killed, and deletions."""
    kinds_ = [kind for kind in SLOW for _ in range(slow)]
    kinds_ += ["killed"] * (failovers - len(kinds_)) + ["deleted"] * (2 * slow)
    random.shuffle(kinds_)
    return iter(kinds_)


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks failover", description=__doc__)
    parser.add_argument("--failovers", type=int, default=200)
    parser.add_argument("--slow", type=int, default=6, help="how many of each kind that has to be waited out")
    parser.add_argument(
        "--lease", type=float, help="duration of the lease, for a quick try; the limit is for the default"
    )
    parser.add_argument("--loops", type=int, default=3, help="2 or 3: with a third, none waits for a restart")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    cluster = LocalCluster(directory / "cluster", components=("etcd", "kube-apiserver"))
    arena: Arena | None = None
    took: dict[str, list[float]] = {}
    failures: list[str] = []
    try:
        cluster.up()
        environment = {"HERDSMAN_LEASE_DURATION_S": str(options.lease)} if options.lease else {}
        arena = Arena(cluster, directory, environment=environment, loops=options.loops)
        arena.prepare()
        for member in arena.members:
            member.start()
        arena.await_leader()
        arena.await_change()
        for number, kind in enumerate(schedule(options.failovers, options.slow), start=1):
            try:
                seconds = arena.fail_over(kind)
            except (TimeoutError, subprocess.TimeoutExpired) as error:
                failures.append(f"{number} {kind}: {error}")
                break
            if seconds is not None:
                took.setdefault(kind, []).append(seconds)
            sys.stderr.write(f"{number} {kind}: {seconds if seconds is None else round(seconds, 2)}\n")
            sys.stderr.flush()
        result: Json = {
            "failovers": sum(len(each) for each in took.values()),
            "engine runs": len(arena.runs()),
            "overlapping engine runs": len(arena.overlaps()),
            "converged": arena.converged(),
            "failures": failures,
            "lease (s)": options.lease or "default",
            **{f"{kind} (s)": _figures(took[kind]) for kind in sorted(took)},
            "all (s)": _figures([seconds for each in took.values() for seconds in each]),
        }
    finally:
        if arena is not None:
            arena.close()
        cluster.down()
        if not failures:
            shutil.rmtree(directory, ignore_errors=True)
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    good = result["converged"] and not result["overlapping engine runs"] and not failures
    return 0 if good and result["all (s)"]["max"] <= LIMIT_S else 1


def _figures(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    found = {name: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) for name, part in at.items()}
    return {"count": len(ordered), **found}
