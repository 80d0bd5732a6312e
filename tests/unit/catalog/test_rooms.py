"""The places where a model can run, from Hosts, nodes and budgets."""

from __future__ import annotations

from typing import Any

from agent.contract import Accelerator
from agent.server.memory.budget import Budget
from automation.catalog.fitting import Room
from automation.catalog.rooms import rooms_of_budget, rooms_of_host, rooms_of_node, rooms_of_this_machine

GIB = 1 << 30


def host(memory: int, *devices: dict[str, Any], ready: str = "True", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "h"},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "allocatable": {"memory": memory},
            "accelerators": list(devices),
            "processes": [{"name": "ns/a", "reserved": 6 * GIB}, {"name": "ns/b", "reserved": 2 * GIB}],
        },
    }


def test_a_mac_has_one_room_without_what_is_reserved() -> None:
    assert rooms_of_host(host(21 * GIB, {"type": "metal", "count": 1})) == [Room("h", 13 * GIB, "metal")]


def test_a_host_with_gpus_has_their_memory_and_its_own() -> None:
    gpu_budget = 24 * GIB - (512 << 20)
    found = rooms_of_host(host(gpu_budget + 50 * GIB, {"type": "cuda", "count": 1, "memory": 24 * GIB}))
    assert found == [Room("h", gpu_budget - 8 * GIB, "cuda"), Room("h", 50 * GIB)]


def test_processes_that_exceed_the_gpus_count_against_the_memory() -> None:
    gpu_budget = 4 * GIB - (512 << 20)
    found = rooms_of_host(host(gpu_budget + 50 * GIB, {"type": "cuda", "count": 1, "memory": 4 * GIB}))
    assert found == [Room("h", 0, "cuda"), Room("h", gpu_budget + 42 * GIB)]


def test_a_host_that_takes_no_service_has_no_room() -> None:
    assert rooms_of_host(host(10 * GIB)) == [Room("h", 2 * GIB)]
    assert rooms_of_host(host(10 * GIB, ready="False")) == []
    assert rooms_of_host(host(10 * GIB, unschedulable=True)) == []
    assert rooms_of_host(host(10 * GIB, drain=True)) == []
    assert rooms_of_host({"metadata": {"name": "new"}}) == []


def test_a_node_is_known_by_the_label_of_its_gpus() -> None:
    node: dict[str, Any] = {"metadata": {"name": "n", "labels": {"nvidia.com/gpu.memory": "24576"}}}
    assert rooms_of_node(node) == [Room("n", 24 * GIB - (512 << 20), "cuda", "node")]
    assert rooms_of_node({"metadata": {"name": "n"}}) == []
    assert rooms_of_node({**node, "spec": {"unschedulable": True}}) == []


def test_a_machine_is_measured_as_by_an_agent() -> None:
    assert rooms_of_budget("m", Budget(10, "x"), [Accelerator(type="metal", name="M")]) == [
        Room("m", 10, "metal", "machine")
    ]
    assert rooms_of_budget("m", Budget(10, "x", 30), [Accelerator(type="cuda", name="G")]) == [
        Room("m", 30, "cuda", "machine"),
        Room("m", 10, "", "machine"),
    ]
    (found,) = rooms_of_this_machine(lambda _name: None)
    assert found.free_bytes > 0
    assert found.kind == "machine"
