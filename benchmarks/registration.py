"""`python -m benchmarks registration`: the CPU for one resource in the loop's program, and in a program of the SDK.

A second process takes the requests and answers each with the inputs as outputs. Both programs register the same
services in turns. Only the process of the programs is measured: neither the CLI nor the provider takes part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto.language_pb2 import RunRequest
from pulumi.runtime.proto.resource_pb2 import RegisterResourceRequest, RegisterResourceResponse

from automation.engine.fleet_run import FleetProgram, run_fleet
from components import naming
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi import kinds
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service
from tests.support.recorded_monitor import Answer, Recorded, recording, without_engine
from tests.support.sdk_programs import run_fleet_by_sdk

LIMIT_RATIO = 0.5
"""The CPU of the loop's program as a part of the CPU of the SDK's."""
PROGRAMS: dict[str, FleetProgram] = {"monitor": run_fleet, "SDK": run_fleet_by_sdk}
NAMESPACE = "ns"


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if the limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks registration", description=__doc__)
    parser.add_argument("--services", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return 0
    fleet = services(options.services)
    resources = 1 + sum(len(each.objects) + len({obj.component for obj in each.objects}) for each in fleet)
    resources += 2 * len({obj.name for each in fleet for obj in each.shared})
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with monitor() as address:
        for program in PROGRAMS.values():
            cpu_s(program, fleet[:5], address)
        for number in range(options.rounds):
            names = list(PROGRAMS)
            for name in names if number % 2 else reversed(names):
                found[name].append(1000 * cpu_s(PROGRAMS[name], fleet, address) / resources)
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = medians["monitor"] / medians["SDK"]
    result = {
        "services": options.services,
        "resources": resources,
        "rounds": options.rounds,
        "cores": os.cpu_count(),
        **{f"{name}: CPU for each resource (ms)": _figures(values) for name, values in found.items()},
        "monitor / SDK": round(ratio, 3),
    }
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if ratio <= LIMIT_RATIO else 1


def services(number: int) -> list[RenderedService]:
    """Render services with an autoscaler, as the loop does."""
    model = model_of(
        {"metadata": {"name": "m", "namespace": NAMESPACE}, "spec": {"source": "https://example.com/m.gguf"}}
    )
    return [
        render(
            parse_service(
                {
                    "apiVersion": kinds.INFERENCE_SERVICES.api_version,
                    "kind": "InferenceService",
                    "metadata": {"name": f"svc-{each:04}", "namespace": NAMESPACE, "uid": f"uid-{each}"},
                    "spec": {"modelRef": model.name, "autoscaling": {"maxReplicas": 3}},
                },
                model,
            ),
            RenderOptions(),
        )
        for each in range(number)
    ]


def cpu_s(program: FleetProgram, fleet: Sequence[RenderedService], address: str) -> float:
    """Run a program in a thread, as the program server does, and return the CPU seconds of this process."""
    request = RunRequest(
        project=naming.PROJECT, stack=NAMESPACE, monitor_address=address, args=[address], parallel=8, dryRun=False
    )
    with ThreadPoolExecutor(max_workers=1) as thread:
        began = time.process_time()
        answered = thread.submit(program, fleet, request).result()
        spent = time.process_time() - began
    if answered.error:
        raise RuntimeError(answered.error)
    return spent


@contextmanager
def monitor() -> Iterator[str]:
    """Run the process that takes the requests. Yields its address."""
    command = [sys.executable, "-m", "benchmarks", "registration", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def serve() -> None:
    """Serve a monitor until the standard input ends."""
    with recording(Recorded(kept=False), _echo(without_engine(NAMESPACE))) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        sys.stdin.read()


def _echo(answer: Answer) -> Answer:
    """Return the inputs of a resource as its outputs."""

    def echoed(method: str, raw: bytes) -> bytes:
        answered = answer(method, raw)
        if method != "RegisterResource":
            return answered
        outputs: Struct = RegisterResourceRequest.FromString(raw).object
        return answered + RegisterResourceResponse(object=outputs).SerializeToString()

    return echoed


def _figures(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }
