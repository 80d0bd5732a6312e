"""Detection of a host's accelerators, with programs on PATH that print the output of the vendors' tools."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from agent.contract import Accelerator
from agent.server import accelerators

GIB = 1 << 30


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the only one on PATH, on a machine that counts as Linux."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(accelerators, "_DIRECTORIES", ())
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return tmp_path


def says(tools: Path, name: str, text: str, *, exit_code: int = 0) -> None:
    answer = tools / f"{name}.txt"
    answer.write_text(text)
    program = tools / name
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {tools}/asked\n/bin/cat {answer}\nexit {exit_code}\n')
    program.chmod(0o755)


def test_a_host_without_any_tool_has_none(tools: Path) -> None:
    assert accelerators.detect() == ()


def test_gpus_of_one_name_are_counted_together(tools: Path) -> None:
    says(tools, "nvidia-smi", "NVIDIA L4, 23034\nNVIDIA L4, 23034\nNVIDIA T4, 15360\n")
    assert accelerators.detect() == (
        Accelerator(type="cuda", name="NVIDIA L4", count=2, memory_bytes=2 * 23034 << 20),
        Accelerator(type="cuda", name="NVIDIA T4", count=1, memory_bytes=15360 << 20),
    )
    assert "--query-gpu=name,memory.total --format=csv,noheader,nounits" in (tools / "asked").read_text()


def test_unified_memory_is_not_known(tools: Path) -> None:
    says(tools, "nvidia-smi", "NVIDIA GB10, [N/A]\n")
    assert accelerators.detect() == (Accelerator(type="cuda", name="NVIDIA GB10"),)


def test_a_driver_that_fails_is_no_gpu(tools: Path) -> None:
    says(tools, "nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n", exit_code=9)
    assert accelerators.detect() == ()


def test_amd_gpus_are_told_in_json_after_warnings(tools: Path) -> None:
    card = '"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"'
    says(
        tools,
        "rocm-smi",
        f'WARNING: AMD GPU device(s) is/are in a low-power state\n{{"card0": {{{card}}}, "system": {{}}}}',
    )
    assert accelerators.detect() == (
        Accelerator(type="rocm", name="AMD Instinct MI300X", count=1, memory_bytes=206141652992),
    )
    says(tools, "rocm-smi", "no json at all")
    assert accelerators.detect() == ()


def test_vulkan_counts_where_nothing_better_does_and_a_software_renderer_never(tools: Path) -> None:
    summary = """Devices:
========
GPU0:
	deviceType         = PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU
	deviceName         = Intel(R) Arc(TM) Graphics (MTL)
GPU1:
	deviceType         = PHYSICAL_DEVICE_TYPE_CPU
	deviceName         = llvmpipe (LLVM 15.0.7, 256 bits)
"""
    says(tools, "vulkaninfo", summary)
    assert accelerators.detect() == (Accelerator(type="vulkan", name="Intel(R) Arc(TM) Graphics (MTL)"),)
    says(tools, "nvidia-smi", "NVIDIA L4, 23034\n")
    assert [a.type for a in accelerators.detect()] == ["cuda"]


@pytest.mark.parametrize(("limit", "memory"), [("0", None), ("", None), ("57344", 56 * GIB)])
def test_apple_silicon_has_metal_with_the_memory_that_somebody_allowed_it(
    tools: Path, monkeypatch: pytest.MonkeyPatch, limit: str, memory: int | None
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    program = tools / "sysctl"
    program.write_text(
        f'#!/bin/sh\ncase "$2" in\nmachdep.cpu.brand_string) echo "Apple M2 Max" ;;\n'
        f'iogpu.wired_limit_mb) [ -n "{limit}" ] && echo "{limit}" || exit 1 ;;\nesac\n'
    )
    program.chmod(0o755)
    assert accelerators.detect() == (Accelerator(type="metal", name="Apple M2 Max", memory_bytes=memory),)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert accelerators.detect() == (), "an Intel Mac's GPU is none that models use"


def test_what_an_engine_says_of_its_devices_goes_first() -> None:
    told = (Accelerator(type="metal", name="Apple M2 Max", memory_bytes=48 * GIB),)
    detected = (Accelerator(type="metal", name="Apple M2 Max"), Accelerator(type="cuda", name="eGPU"))
    assert accelerators.merged(told, detected) == (*told, detected[1])
    assert accelerators.merged((), detected) == detected
