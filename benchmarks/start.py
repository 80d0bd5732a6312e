"""`python -m benchmarks start`: the operator's pod on a real node, from the start of its process until it leads.

The pod is deleted many times. Each next pod starts with the state of the one before and a released Lease. Needs root on
Linux, as the tests of the node do (docs/how-to/local-node.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from automation.cli.cluster_node import provide
from automation.leadership.election import LEASE_NAME
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import node as real
from tests.support.operator_pods import NAMESPACE, OperatorPods, build_operator_image, installable

LIMIT_S = 5.0
"""Seconds, on two cores without other work."""
_POLL_S = 0.05
_TIMEOUT_S = 120.0
_PROGRAM = "herdsman"


@dataclass(frozen=True)
class Start:
    """The measurements of one start."""

    seconds: float
    """From the start of the process until it held the Lease."""
    cpu_s: float
    """Processor time of the process until then."""


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if the limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks start", description=__doc__)
    parser.add_argument("--starts", type=int, default=10)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="herdsman-bench-") as folder, real.running() as (cluster, node):
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        try:
            provide(node, client)
            image = build_operator_image(Path(folder))
            node.load_archive(image.archive)
            with installable(cluster, node, client, Path(folder) / "operator", image.name) as operator:
                operator.install()
                operator.await_leading()
                load, found = os.getloadavg()[0], []
                for number in range(1, options.starts + 1):
                    found.append(start(operator))
                    sys.stderr.write(f"{number}: {found[-1].seconds:.2f} s, {found[-1].cpu_s:.2f} s of CPU\n")
                    sys.stderr.flush()
        finally:
            client.close()
    result = {
        "starts": len(found),
        "cores": os.cpu_count(),
        "load before": round(load, 1),
        "process start to Lease (s)": _figures([each.seconds for each in found]),
        "CPU (s)": _figures([each.cpu_s for each in found]),
    }
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if max(each.seconds for each in found) <= LIMIT_S else 1


def start(operator: OperatorPods) -> Start:
    """Delete the leading pod, and measure the next one. Raises TimeoutError."""
    old = operator.await_leading()
    operator.client.delete(kinds.PODS, NAMESPACE, old["metadata"]["name"])
    deadline = time.monotonic() + _TIMEOUT_S
    process: psutil.Process | None = None
    while time.monotonic() < deadline:
        pod = next((each for each in operator.pods() if each["metadata"]["uid"] != old["metadata"]["uid"]), None)
        if process is None and pod is not None:
            process = _loop_of(pod)
        if process is not None and pod is not None and (taken_at := _taken_at(operator.client, pod)):
            times = process.cpu_times()
            return Start(taken_at - _started_at(process), times.user + times.system)
        time.sleep(_POLL_S)
    raise TimeoutError(f"no pod took the Lease within {_TIMEOUT_S:g} s: {operator.told()}")


def _loop_of(pod: dict[str, Any]) -> psutil.Process | None:
    """Return the loop's own process, which has the lowest number of the pod's processes."""
    return min(real.processes_of(pod, _PROGRAM), key=lambda process: process.pid, default=None)


def _taken_at(client: KubeClient, pod: dict[str, Any]) -> float:
    """Return the time at which the pod took the Lease, in seconds since the epoch; 0 before."""
    spec = client.get(kinds.LEASES, NAMESPACE, LEASE_NAME)["spec"]
    if not str(spec.get("holderIdentity") or "").startswith(f"{pod['metadata']['name']}_"):
        return 0.0
    return datetime.fromisoformat(str(spec["acquireTime"])).timestamp()


def _started_at(process: psutil.Process) -> float:
    """Return the start time of a process in seconds since the epoch.

    psutil's value is not used: it is only as exact as the boot time in Linux, to a second.
    """
    ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def _figures(values: list[float]) -> dict[str, float]:
    return {
        "min": round(min(values), 2),
        "median": round(statistics.median(values), 2),
        "max": round(max(values), 2),
    }
