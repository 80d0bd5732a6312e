"""Parsers of the systems' memory statistics, on real output."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import MemoryPressure
from agent.server.accelerators import accelerators, accelerators_of, parse_devices
from agent.server.memory import meminfo
from agent.server.memory.meminfo import Group, Memory, Unreadable

GIB = 1 << 30

# A Linux workstation.
MEMINFO = """\
MemTotal:       65735172 kB
MemFree:         1382040 kB
MemAvailable:   41912340 kB
Buffers:          612340 kB
Cached:         39876540 kB
SwapTotal:       8388604 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
"""

# A Mac with 16 GiB and pages of 16 KiB; macOS ends its numbers with a full stop and quotes one name.
VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               21544.
Pages active:                            340236.
Pages inactive:                          333011.
Pages speculative:                         6338.
Pages throttled:                              0.
Pages wired down:                        125630.
Pages purgeable:                          10110.
"Translation faults":                 894322213.
Pages copy-on-write:                   36116425.
Pages zero filled:                    412733240.
Pages reactivated:                     19330261.
Pages purged:                           3921837.
File-backed pages:                       184271.
Anonymous pages:                         495314.
Pages stored in compressor:              389101.
Pages occupied by compressor:            162350.
Decompressions:                        30126210.
Compressions:                          37190443.
Pageins:                               29122733.
Pageouts:                                240150.
Swapins:                                 513372.
Swapouts:                                718540.
"""


def test_linux_tells_total_and_available() -> None:
    memory = meminfo.parse_meminfo(MEMINFO)
    assert (memory.total_bytes, memory.available_bytes) == (65735172 << 10, 41912340 << 10)
    assert memory.share == pytest.approx(0.6376, abs=1e-4)
    assert memory.used_bytes == (65735172 - 41912340) << 10
    with pytest.raises(Unreadable, match="MemAvailable"):
        meminfo.parse_meminfo("MemTotal: 1024 kB\n")


def test_macos_counts_free_inactive_speculative_and_purgeable_pages() -> None:
    memory = meminfo.parse_vm_stat(VM_STAT, total_bytes=16 * GIB)
    assert memory.available_bytes == (21544 + 333011 + 6338 + 10110) * 16384
    with pytest.raises(Unreadable):
        meminfo.parse_vm_stat("vm_stat: command not found", total_bytes=GIB)
    # If the pages are more than the memory, the result is the total.
    assert meminfo.parse_vm_stat(VM_STAT, total_bytes=GIB).available_bytes == GIB


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("1\n", MemoryPressure.NORMAL),
        ("2\n", MemoryPressure.WARNING),
        ("4\n", MemoryPressure.CRITICAL),
        ("", None),
        ("sysctl: unknown oid", None),
    ],
)
def test_the_kernel_s_own_level(text: str, level: MemoryPressure | None) -> None:
    assert meminfo.parse_kernel_level(text) is level


def test_a_wired_limit_of_zero_is_none() -> None:
    assert meminfo.parse_wired_limit("0\n") is None
    assert meminfo.parse_wired_limit("") is None
    assert meminfo.parse_wired_limit("57344\n") == 56 * GIB


def test_a_control_group_counts_without_the_page_cache_that_it_would_drop() -> None:
    stat = "anon 1000\ninactive_file 300\nactive_file 50\n"
    assert meminfo.parse_group("2000\n", "1400\n", stat) == Group(2000, 1100)
    assert meminfo.parse_group("max\n", "1400\n", stat) is None
    assert meminfo.parse_group(f"{(1 << 63) - 4096}\n", "1400\n", stat) is None
    both = "inactive_file 1\ntotal_inactive_file 400\n"
    assert meminfo.parse_group("2000\n", "1400\n", both) == Group(2000, 1000)
    machine = Memory(10_000, 6_000)
    assert meminfo.within(machine, Group(2000, 1100)) == Memory(2000, 900, limited=True)
    assert meminfo.within(machine, Group(9000, 100)) == Memory(9000, 6000, limited=True)
    assert meminfo.within(machine, Group(10_000, 100)) == machine
    assert meminfo.within(machine, None) == machine


def test_all_control_groups_above_a_process_count() -> None:
    root = Path("/sys/fs/cgroup")
    assert meminfo.group_folders("0::/system.slice/herdsman.service\n", root) == [
        (root / "system.slice/herdsman.service", "2"),
        (root / "system.slice", "2"),
        (root, "2"),
    ]
    first = "5:memory:/docker/abc\n2:cpu,cpuacct:/\n1:name=systemd:/x\n"
    assert meminfo.group_folders(first, root) == [
        (root / "memory/docker/abc", "1"),
        (root / "memory/docker", "1"),
        (root / "memory", "1"),
    ]
    assert meminfo.group_folders("nonsense\n", root) == []


def test_another_file_may_be_read_instead_of_the_system_s(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    with pytest.raises(Unreadable, match="No such file"):
        meminfo.read(path)
    path.write_text(MEMINFO)
    assert meminfo.read(path).total_bytes == 65735172 << 10
    here = meminfo.read()
    assert 0 < here.available_bytes <= here.total_bytes


def test_llama_server_lists_what_it_computes_on() -> None:
    mac = """\
ggml_metal_device_init: recommendedMaxWorkingSetSize  = 103079.22 MB
Available devices:
  Metal: Apple M4 Max (98304 MiB, 98303 MiB free)
  BLAS: Accelerate (0 MiB, 0 MiB free)
"""
    (metal,) = accelerators(parse_devices(mac))
    assert (metal.type, metal.name, metal.count, metal.memory_bytes) == ("metal", "Apple M4 Max", 1, 96 * GIB)
    linux = """\
Available devices:
  CUDA0: NVIDIA GeForce RTX 4090 (24564 MiB, 24111 MiB free)
  CUDA1: NVIDIA GeForce RTX 4090 (24564 MiB, 24111 MiB free)
  Vulkan0: AMD Radeon RX 6600M (RADV NAVI23) (8176 MiB, 8176 MiB free)
  SYCL0: Intel(R) Arc(TM) A770 Graphics (15473 MiB, 15473 MiB free)
  ROCm0: AMD Instinct MI300X (196592 MiB, 196000 MiB free)
"""
    found = accelerators(parse_devices(linux))
    assert [(each.type, each.count) for each in found] == [("cuda", 2), ("vulkan", 1), ("intel", 1), ("rocm", 1)]
    assert found[0].memory_bytes == 2 * 24564 << 20
    assert found[1].name == "AMD Radeon RX 6600M (RADV NAVI23)"
    assert parse_devices("Available devices:\n  (none)\n") == []
    assert accelerators_of(None) == accelerators_of("/nowhere/llama-server") == ()


def test_the_free_share_that_macos_tells_is_read() -> None:
    told = (
        "The system has 17179869184 (1048576 pages with a page size of 16384).\n"
        "System-wide memory free percentage: 47%\n"
    )
    assert meminfo.parse_free_share(told) == 0.47
    assert meminfo.parse_free_share("memory_pressure: command not found") is None
