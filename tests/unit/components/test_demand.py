"""The resources that a pod requests: containers run at the same time, init containers one after another."""

from __future__ import annotations

from decimal import Decimal

import pytest

from components.demand import gpus, of_pod
from kubeapi.json_types import Json


def container(count: int, *, sidecar: bool = False) -> Json:
    made: Json = {"resources": {"limits": {"nvidia.com/gpu": str(count)}}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


@pytest.mark.parametrize(
    ("starts", "containers", "total"),
    [
        ((), (1, 2), 3),
        ((container(4),), (1, 2), 4),
        ((container(1, sidecar=True),), (2,), 3),
        ((container(1, sidecar=True), container(3)), (2,), 4),
        ((container(3), container(1, sidecar=True)), (2,), 3),
        ((container(1, sidecar=True), container(2, sidecar=True)), (1,), 4),
    ],
    ids=(
        "containers",
        "a large init container",
        "a sidecar",
        "an init container beside an earlier sidecar",
        "an init container before a sidecar",
        "two sidecars",
    ),
)
def test_an_init_container_runs_beside_the_sidecars_before_it(
    starts: tuple[Json, ...], containers: tuple[int, ...], total: int
) -> None:
    pod: Json = {"initContainers": list(starts), "containers": [container(each) for each in containers]}
    assert of_pod(pod, gpus) == Decimal(total)
