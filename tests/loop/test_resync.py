"""The periodic resync visits every service, and writes nothing and runs no engine. An optional API that fails does not
stop the loop.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import extensions
from tests.support.loop import LoopProcess, deployed, eventually, find, model, service, settled

ROUND_S = 1.0


@pytest.fixture
def loop(loop_kubeconfig: Path, pulumi_cli: Path, tmp_path: Path) -> Iterator[LoopProcess]:
    """A loop that resyncs every second instead of every half hour."""
    running = LoopProcess(loop_kubeconfig, tmp_path, environment={"HERDSMAN_RESYNC_S": str(ROUND_S)})
    try:
        yield running
    finally:
        running.stop()


def test_a_round_passes_over_every_service_writes_nothing_and_runs_no_engine(
    loop: LoopProcess, client: KubeClient, namespace: str
) -> None:
    loop.start()
    model(client, namespace, source="https://example.invalid/base.gguf")
    for name in ("one", "two"):
        service(client, namespace, name, skipModelInit=True)
    for name in ("one", "two"):
        settled(client, namespace, name)

    def at_rest() -> bool:
        before, passes = versions(client, namespace), loop.metric(METRICS[0])
        eventually(lambda: loop.metric(METRICS[0]) >= passes + 10, what="more passes")
        return versions(client, namespace) == before

    eventually(lambda: is_alone(client, namespace), what="the services of earlier tests to be gone")
    eventually(at_rest, what="three rounds without a write, once the writes of the start are done")
    passes, runs = (loop.metric(each) for each in METRICS)
    written = versions(client, namespace)
    began = time.monotonic()
    eventually(lambda: loop.metric(METRICS[0]) >= passes + 10, what="passes without a cause")
    rounds = (time.monotonic() - began) / ROUND_S
    assert loop.metric(METRICS[0]) - passes <= 4 * (rounds + 2), "two services and one Model for each round"
    assert versions(client, namespace) == written, "nothing is written"
    assert loop.metric(METRICS[1]) == runs, "no engine runs"


METRICS = ("herdsman_reconciles_total", "herdsman_engine_cli_processes_total")


def is_alone(client: KubeClient, namespace: str) -> bool:
    """Whether no other namespace has services or Models: the deletion of one causes passes, too."""
    return all(
        obj["metadata"]["namespace"] == namespace
        for kind in (kinds.INFERENCE_SERVICES, kinds.MODELS)
        for obj in client.list(kind)["items"]
    )


def versions(client: KubeClient, namespace: str) -> dict[str, str]:
    """The version of each object; every write changes one."""
    of = (kinds.INFERENCE_SERVICES, kinds.MODELS, kinds.SERVICES, kinds.DEPLOYMENTS, kinds.CONTROLLER_REVISIONS)
    return {
        f"{kind.kind} {obj['metadata']['name']}": obj["metadata"]["resourceVersion"]
        for kind in of
        for obj in client.list(kind, namespace)["items"]
    }


@pytest.mark.soak
def test_a_loop_starts_and_serves_while_an_optional_api_answers_500(
    loop: LoopProcess, client: KubeClient, namespace: str
) -> None:
    with extensions.unreadable(client, kinds.SCALED_OBJECTS, namespace):
        began = time.monotonic()
        loop.start()
        assert time.monotonic() - began < 60
        model(client, namespace, source="https://example.invalid/base.gguf")
        service(client, namespace, skipModelInit=True)
        assert deployed(client, namespace)
        settled(client, namespace)
        with urllib.request.urlopen(f"{loop.url}/healthz", timeout=60) as answer:
            said = answer.read().decode()
        assert "[!] informers" in said and "ScaledObject is served, but cannot be listed" in said
        assert find(client, kinds.SERVICES, namespace, "svc")
