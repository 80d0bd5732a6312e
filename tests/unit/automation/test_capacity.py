"""The check whether any node could ever run a pod."""

from __future__ import annotations

import pytest

from automation.admission.capacity import NodeCapacity, largest_memory_bytes, never_fits

GPU = "nvidia.com/gpu"
NODES = (
    NodeCapacity("plain", {"cpu": "8", "memory": "64Gi"}, {"zone": "a"}),
    NodeCapacity("small", {"cpu": "16", "memory": "128Gi", GPU: "2"}, {"zone": "a", "gpu": "t4"}),
    NodeCapacity("large", {"cpu": "7500m", "memory": "32Gi", GPU: "8"}, {"zone": "b", "gpu": "h100"}),
)


@pytest.mark.parametrize(
    ("requests", "selector", "said"),
    [
        ({GPU: "8", "memory": "16Gi"}, {}, ""),
        ({}, {}, ""),
        ({GPU: "0"}, {}, ""),
        ({GPU: "9"}, {}, "9 of nvidia.com/gpu requested for each replica, and the largest node, large, has 8"),
        ({"amd.com/gpu": "1"}, {}, "1 of amd.com/gpu requested for each replica, and no node has any"),
        ({GPU: "4"}, {"gpu": "t4"}, "the largest node with the labels gpu=t4, small, has 2"),
        ({GPU: "1"}, {"gpu": "a100"}, "no node has the labels gpu=a100 that the service selects"),
        ({"memory": "200Gi"}, {}, "200Gi of memory requested for each replica, and the largest node, small, has 128Gi"),
        (
            {GPU: "4", "memory": "64Gi"},
            {},
            "64Gi of memory, 4 of nvidia.com/gpu requested together for each replica, and no single node has all of it",
        ),
        ({"cpu": "7600m", GPU: "8"}, {}, "no single node has all of it"),
        ({"cpu": "7500m", GPU: "8"}, {}, ""),
        ({"pods": "1", "hugepages-2Mi": "1"}, {}, ""),
        ({GPU: "many"}, {}, ""),
    ],
)
def test_what_never_fits(requests: dict[str, str], selector: dict[str, str], said: str) -> None:
    found = never_fits(requests, selector, NODES)
    assert found == said if not said else said in found


def test_a_cluster_without_nodes_says_nothing() -> None:
    assert never_fits({GPU: "99"}, {"a": "b"}, ()) == ""
    assert largest_memory_bytes(()) is None


def test_the_largest_memory_is_that_of_a_selected_node() -> None:
    assert largest_memory_bytes(NODES) == 128 * 2**30
    assert largest_memory_bytes(NODES, {"zone": "b"}) == 32 * 2**30
    assert largest_memory_bytes(NODES, {"zone": "c"}) is None
