"""An API server that refuses writes for a while, and a terminating namespace. The loop reports both and keeps running,
and other services are not affected.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import controlplane
from tests.support.loop import (
    LoopProcess,
    arguments,
    await_condition,
    deployed,
    edit,
    eventually,
    find,
    grant_loop_rights,
    install_crds,
    loop_process,
    model,
    service,
    settled,
    status,
)
from tests.support.storm import Storm
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.soak

VLLM: dict[str, Any] = {"runtime": "vllm", "skipModelInit": True}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane without the controller that empties namespaces, so that a deleted one stays in phase
    Terminating.
    """
    with controlplane.running(("etcd", "kube-apiserver")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    install_crds(made)
    yield made
    made.close()


@pytest.fixture(scope="module")
def storm(admin: KubeClient, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    kubeconfig = grant_loop_rights(admin, cluster, tmp_path_factory.mktemp("storm") / "direct")
    with Storm(kubeconfig) as relay:
        yield relay


@pytest.fixture(scope="module")
def stormy_loop(storm: Storm, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopProcess]:
    """A loop whose requests to the API server all go through `storm`."""
    directory = tmp_path_factory.mktemp("loop")
    with loop_process(storm.kubeconfig(directory / "kubeconfig"), directory) as running:
        yield running


def requests_in(seconds: float, storm: Storm) -> int:
    """Return the number of requests that the loop sends to the API server within `seconds`."""
    before = storm.requests
    time.sleep(seconds)
    return storm.requests - before


def failed_removals(loop: LoopProcess) -> list[dict[str, Any]]:
    return [each for each in loop.lines() if each.get("event") == "Could not remove or release a service"]


def namespace(admin: KubeClient, name: str) -> str:
    admin.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    model(admin, name)
    return name


def test_a_storm_of_refusals_is_told_and_outlived(admin: KubeClient, storm: Storm, stormy_loop: LoopProcess) -> None:
    """Expected: Ready=False, ApplyFailed with the server's message while writes are refused; objects whose writes are
    not refused are created; requests stay few; afterwards every service has its objects, and the loop never exited.
    """
    where = namespace(admin, "storm")
    codes = itertools.cycle((429, 409, 409))
    storm.refuse = lambda method, path: next(codes) if method != "GET" and f"/{where}/deployments/" in path else 0
    for number in range(3):
        service(admin, where, f"svc-{number}", **VLLM)
    told = await_condition(admin, where, "svc-1", "Ready", "False", saying="a storm of Conflict")
    assert told["reason"] == "ApplyFailed"
    assert storm.refused[429] and storm.refused[409]
    assert find(admin, kinds.SERVICES, where, "svc-1"), "what is not refused is made"
    assert requests_in(3.0, storm) < 60, "three services whose writes are refused are tried again with back-off"
    # Now every second request except watches gets 429: also reads, Events, statuses and the Lease.
    every = itertools.cycle((429, 0))
    storm.refuse = lambda method, path: next(every) if "watch=1" not in path else 0
    eventually(lambda: storm.refused[429] > 20, what="a storm on all requests")
    assert stormy_loop.poll() is None
    storm.refuse = lambda method, path: 0
    for number in range(3):
        deployed(admin, where, f"svc-{number}", timeout_s=90)
        settled(admin, where, f"svc-{number}")
    assert stormy_loop.poll() is None
    # No further change of a deleted service triggers the removal of its objects again: the loop retries by itself.
    storm.refuse = lambda method, path: 500 if method == "DELETE" and f"/{where}/deployments/" in path else 0
    admin.delete(kinds.INFERENCE_SERVICES, where, "svc-0")
    eventually(lambda: failed_removals(stormy_loop), what="a removal that fails")
    storm.refuse = lambda method, path: 0
    eventually(lambda: find(admin, kinds.DEPLOYMENTS, where, "svc-0") is None, what="the removal to be tried again")
    eventually(lambda: requests_in(2.0, storm) < 20, what="the last retry of the requests that the storm refused")


def test_a_namespace_on_its_way_out_is_told_and_stops_nobody_else(
    admin: KubeClient, storm: Storm, stormy_loop: LoopProcess
) -> None:
    """Expected: Ready=False, NamespaceTerminating; no run of the engine there; other namespaces are not affected."""
    going, staying = namespace(admin, "going"), namespace(admin, "staying")
    service(admin, going, **VLLM)
    before = deployed(admin, going)
    settled(admin, going)
    admin.delete(kinds.NAMESPACES, None, going)
    told = await_condition(admin, going, "svc", "Ready", "False", saying="is being deleted")
    assert told["reason"] == "NamespaceTerminating"
    # Only now: the loop may see an edit earlier than the deletion of its namespace.
    wanted = edit(admin, going, vllmConfig={"maxModelLen": 512})["metadata"]["generation"]
    eventually(lambda: status(admin, going).get("observedGeneration") == wanted, what="the loop to have seen the edit")
    service(admin, staying, **VLLM, vllmConfig={"maxModelLen": 256})
    assert "256" in arguments(deployed(admin, staying))
    assert deployed(admin, going)["metadata"]["generation"] == before["metadata"]["generation"]
    admin.delete(kinds.INFERENCE_SERVICES, going, "svc")
    eventually(lambda: find(admin, kinds.DEPLOYMENTS, going, "svc") is None, what="no Deployment of a deleted service")
    assert stormy_loop.poll() is None
