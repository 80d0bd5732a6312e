"""How much of a host's memory its processes may take together, and who says so. Pure.

Called by `agent.server.memory.host_memory` with what `meminfo` and `accelerators` measured. An amount wins over
a share, and both win over the default. The default leaves the system enough to stay alive; on Macs it is
what Metal says it can keep resident, which is no fixed share of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.server.memory.need import amount, percent

GIB = 1 << 30
MIB = 1 << 20

# Metal's recommendedMaxWorkingSetSize as measured on Macs with so much memory.
_MEASURED_WORKING_SETS = {
    8 * GIB: int(5.3 * GIB),
    16 * GIB: int(10.7 * GIB),
    32 * GIB: int(21.3 * GIB),
    128 * GIB: int(107.5 * GIB),
    512 * GIB: 384 * GIB,
}
_MAC_RESERVE_BYTES = 8 * GIB
_MAC_RESERVE_SHARE = 0.35
_LINUX_RESERVE_BYTES = 2 * GIB
_LINUX_RESERVE_SHARE = 0.10
_LEAST_SHARE = 0.5
"""A small machine is there to serve, too: the default never leaves it less than this."""
_GPU_RESERVE_BYTES = 512 * MIB
"""Of each discrete GPU, for its driver's contexts."""


@dataclass(frozen=True)
class MemoryLimits:
    """What people say of a host's memory: its Host object, or the options of its agent."""

    budget_bytes: int | None = None
    fraction: float | None = None
    warning: float = 0.20
    """Share of all memory below which what is available means pressure…"""
    critical: float = 0.10
    """…and critical pressure."""
    eviction: bool = False
    """Stop processes under critical pressure."""

    def over(self, other: MemoryLimits) -> MemoryLimits:
        """Let these limits win over the other's budget, wherever they name one; either may allow evictions."""
        either = replace(self, eviction=self.eviction or other.eviction)
        if self.budget_bytes is not None or self.fraction is not None:
            return either
        return replace(either, budget_bytes=other.budget_bytes, fraction=other.fraction)


@dataclass(frozen=True)
class Capacity:
    """What the machine has, as it was measured; None where nothing tells."""

    total_bytes: int
    """All memory, or the limit of the control group where that is lower."""
    system: str = "linux"
    """`linux` or `darwin`."""
    limited: bool = False
    """`total_bytes` is the limit of a control group."""
    wired_limit_bytes: int | None = None
    """macOS: what somebody allowed the GPU to wire (`sysctl iogpu.wired_limit_mb`)."""
    working_set_bytes: int | None = None
    """macOS: Metal's recommended working set, in the words of llama-server."""
    gpu_bytes: int | None = None
    """Memory of discrete GPUs, of all together; None where computing shares the machine's own."""
    gpu_count: int = 0


@dataclass(frozen=True)
class Budget:
    """What all processes of a host may take together."""

    bytes: int
    source: str
    """Who says so, for people."""
    gpu_bytes: int | None = None
    """The same of discrete GPUs; None: there are none, and everything counts in `bytes`."""

    @property
    def total_bytes(self) -> int:
        """Both together: the most that could be placed here, whichever memory it takes."""
        return self.bytes + (self.gpu_bytes or 0)

    def __str__(self) -> str:
        gpus = f", and {amount(self.gpu_bytes)} on GPUs" if self.gpu_bytes is not None else ""
        return f"{amount(self.bytes)} ({self.source}){gpus}"


def host_budget(limits: MemoryLimits, capacity: Capacity) -> Budget:
    """Work out the budget of a host. A wish for more than there is counts as a wish for all."""
    gpus = None
    if capacity.gpu_bytes is not None:
        gpus = max(0, capacity.gpu_bytes - capacity.gpu_count * _GPU_RESERVE_BYTES)
    total = capacity.total_bytes
    if limits.budget_bytes is not None:
        cut = f", cut to the {amount(total)} that there are" if limits.budget_bytes > total else ""
        return Budget(min(limits.budget_bytes, total), f"memoryBudget{cut}", gpus)
    if limits.fraction is not None:
        share = min(max(limits.fraction, 0.0), 1.0)
        return Budget(int(total * share), f"memoryFraction, {percent(share)} of {amount(total)}", gpus)
    size, source = _default_on_mac(capacity) if capacity.system == "darwin" else _default_on_linux(capacity)
    return Budget(size, source, gpus)


def process_budget(
    *, budget_bytes: int | None, fraction: float | None, host: Budget, total_bytes: int
) -> tuple[int, str]:
    """Give the bound for one process and all before it: its Model's own, or the host's. Second, who says so."""
    if budget_bytes is not None:
        return min(budget_bytes, total_bytes), "the Model's memoryBudget"
    if fraction is not None:
        return int(total_bytes * min(max(fraction, 0.0), 1.0)), f"the Model's memoryFraction, {percent(fraction)}"
    return host.bytes, host.source


def _default_on_mac(capacity: Capacity) -> tuple[int, str]:
    total = capacity.total_bytes
    if capacity.wired_limit_bytes:
        return min(capacity.wired_limit_bytes, total), "sysctl iogpu.wired_limit_mb"
    if capacity.working_set_bytes:
        return min(capacity.working_set_bytes, total), "Metal's recommended working set"
    for memory, working_set in _MEASURED_WORKING_SETS.items():
        if abs(total - memory) <= memory // 50:
            return working_set, f"Metal's recommended working set on Macs with {amount(memory)}"
    reserve = max(_MAC_RESERVE_BYTES, int(total * _MAC_RESERVE_SHARE))
    return max(total - reserve, int(total * _LEAST_SHARE)), "memory less max(8 GiB, 35 %); Metal's limit is not known"


def _default_on_linux(capacity: Capacity) -> tuple[int, str]:
    total = capacity.total_bytes
    reserve = max(_LINUX_RESERVE_BYTES, int(total * _LINUX_RESERVE_SHARE))
    what = "the control group's limit" if capacity.limited else "memory"
    return max(total - reserve, int(total * _LEAST_SHARE)), f"{what} less max(2 GiB, 10 %)"
