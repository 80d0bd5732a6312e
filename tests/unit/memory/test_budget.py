"""The memory budget of a host: configured values first, then those of the system, then an estimate."""

from __future__ import annotations

import pytest

from agent.server.memory.budget import Capacity, MemoryLimits, host_budget, process_budget

GIB = 1 << 30


def test_an_amount_wins_over_a_share_and_both_over_the_default() -> None:
    machine = Capacity(64 * GIB)
    assert host_budget(MemoryLimits(20 * GIB, 0.5), machine).bytes == 20 * GIB
    assert host_budget(MemoryLimits(None, 0.5), machine).bytes == 32 * GIB
    default = host_budget(MemoryLimits(), machine)
    assert default.bytes == pytest.approx(57.6 * GIB)
    assert default.source == "memory less max(2 GiB, 10 %)"
    greedy = host_budget(MemoryLimits(100 * GIB), machine)
    assert greedy.bytes == 64 * GIB
    assert "limited to the existing 64 GiB" in greedy.source


def test_the_host_object_s_budget_wins_over_the_agent_s_option() -> None:
    option = MemoryLimits(budget_bytes=10 * GIB)
    assert MemoryLimits(eviction=True).over(option) == MemoryLimits(10 * GIB, eviction=True)
    assert MemoryLimits(fraction=0.25).over(option) == MemoryLimits(fraction=0.25)


@pytest.mark.parametrize(("memory_gib", "budget_gib"), [(8, 5.3), (16, 10.7), (32, 21.3), (128, 107.5), (512, 384.0)])
def test_without_a_word_of_metal_a_mac_s_budget_is_what_was_measured_on_such_macs(
    memory_gib: int, budget_gib: float
) -> None:
    budget = host_budget(MemoryLimits(), Capacity(memory_gib * GIB, "darwin"))
    assert budget.bytes == pytest.approx(budget_gib * GIB, abs=1)
    assert "Metal's recommended working set" in budget.source


def test_what_a_mac_says_itself_is_not_guessed() -> None:
    mac = Capacity(64 * GIB, "darwin", working_set_bytes=48 * GIB)
    assert host_budget(MemoryLimits(), mac).bytes == 48 * GIB
    raised = Capacity(64 * GIB, "darwin", wired_limit_bytes=56 * GIB, working_set_bytes=48 * GIB)
    assert host_budget(MemoryLimits(), raised).bytes == 56 * GIB
    assert host_budget(MemoryLimits(), raised).source == "sysctl iogpu.wired_limit_mb"
    # On a Mac with a size that was not measured, max(8 GiB, 35 %) stays free.
    assert host_budget(MemoryLimits(), Capacity(96 * GIB, "darwin")).bytes == pytest.approx(62.4 * GIB)


def test_small_machines_control_groups_and_gpus() -> None:
    assert host_budget(MemoryLimits(), Capacity(3 * GIB)).bytes == 1.5 * GIB
    limited = host_budget(MemoryLimits(), Capacity(8 * GIB, limited=True))
    assert (limited.bytes, limited.source) == (6 * GIB, "the control group's limit less max(2 GiB, 10 %)")
    gpus = host_budget(MemoryLimits(), Capacity(64 * GIB, gpu_bytes=48 * GIB, gpu_count=2))
    assert gpus.gpu_bytes == 47 * GIB
    assert "47 GiB on GPUs" in str(gpus)


def test_a_model_s_own_budget_takes_the_place_of_the_host_s() -> None:
    host = host_budget(MemoryLimits(20 * GIB), Capacity(64 * GIB))
    assert process_budget(budget_bytes=None, fraction=None, host=host, total_bytes=64 * GIB) == (
        20 * GIB,
        "memoryBudget",
    )
    assert process_budget(budget_bytes=30 * GIB, fraction=0.1, host=host, total_bytes=64 * GIB)[0] == 30 * GIB
    assert process_budget(budget_bytes=None, fraction=0.25, host=host, total_bytes=64 * GIB)[0] == 16 * GIB
