"""Calculates how much of a host's memory its processes may take together. Without I/O.

Called by `agent.server.memory.host_memory` with the measurements of `machine`. An absolute amount has precedence over a
share, and both over the default. The default leaves enough memory for the operating system. On Macs it is the amount
that Metal can keep resident, which is not a fixed share of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.server.memory.need import amount, percent

GIB = 1 << 30
MIB = 1 << 20

# Metal's recommendedMaxWorkingSetSize, measured on Macs with these amounts of memory.
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
"""The default budget is at least this share of the memory, even on a small machine."""
_GPU_RESERVE_BYTES = 512 * MIB
"""Reserved on each discrete GPU for the contexts of its driver."""


@dataclass(frozen=True)
class MemoryLimits:
    """The configured limits of a host's memory, from its Host object or from the options of its agent."""

    budget_bytes: int | None = None
    fraction: float | None = None
    warning: float = 0.20
    """Below this share of available memory the pressure is Warning…"""
    critical: float = 0.10
    """…and below this share it is Critical."""
    eviction: bool = False
    """Stop processes under critical pressure."""

    def over(self, other: MemoryLimits) -> MemoryLimits:
        """Return these limits, with the other's budget if these set none.

        Evictions are allowed if either allows them.
        """
        either = replace(self, eviction=self.eviction or other.eviction)
        if self.budget_bytes is not None or self.fraction is not None:
            return either
        return replace(either, budget_bytes=other.budget_bytes, fraction=other.fraction)


@dataclass(frozen=True)
class Capacity:
    """The measured capacity of the machine. None: unknown."""

    total_bytes: int
    """The memory of the machine, or the limit of its control group if that is lower."""
    system: str = "linux"
    """`linux` or `darwin`."""
    limited: bool = False
    """`total_bytes` is the limit of a control group."""
    wired_limit_bytes: int | None = None
    """macOS: the configured limit of wired GPU memory (`sysctl iogpu.wired_limit_mb`)."""
    working_set_bytes: int | None = None
    """macOS: Metal's recommended working set, as llama-server prints it."""
    gpu_bytes: int | None = None
    """Memory of all discrete GPUs together. None: the GPU uses the machine's memory."""
    gpu_count: int = 0


@dataclass(frozen=True)
class Budget:
    """The memory that all processes of a host may take together."""

    bytes: int
    source: str
    """Where the budget comes from, for people."""
    gpu_bytes: int | None = None
    """The budget on discrete GPUs. None: there are none, and all memory counts in `bytes`."""

    @property
    def total_bytes(self) -> int:
        """The sum of both, for placement."""
        return self.bytes + (self.gpu_bytes or 0)

    def __str__(self) -> str:
        gpus = f", and {amount(self.gpu_bytes)} on GPUs" if self.gpu_bytes is not None else ""
        return f"{amount(self.bytes)} ({self.source}){gpus}"


def host_budget(limits: MemoryLimits, capacity: Capacity) -> Budget:
    """Return the budget of a host. A configured budget above the machine's memory is reduced to it."""
    gpus = None
    if capacity.gpu_bytes is not None:
        gpus = max(0, capacity.gpu_bytes - capacity.gpu_count * _GPU_RESERVE_BYTES)
    total = capacity.total_bytes
    if limits.budget_bytes is not None:
        cut = f", limited to the existing {amount(total)}" if limits.budget_bytes > total else ""
        return Budget(min(limits.budget_bytes, total), f"memoryBudget{cut}", gpus)
    if limits.fraction is not None:
        share = min(max(limits.fraction, 0.0), 1.0)
        return Budget(int(total * share), f"memoryFraction, {percent(share)} of {amount(total)}", gpus)
    size, source = _default_on_mac(capacity) if capacity.system == "darwin" else _default_on_linux(capacity)
    return Budget(size, source, gpus)


def process_budget(
    *, budget_bytes: int | None, fraction: float | None, host: Budget, total_bytes: int
) -> tuple[int, str]:
    """Return the bound for one process and those before it, and its source: set by its Model, or the host's."""
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
    return max(total - reserve, int(total * _LEAST_SHARE)), "memory less max(8 GiB, 35 %); Metal's limit is unknown"


def _default_on_linux(capacity: Capacity) -> tuple[int, str]:
    total = capacity.total_bytes
    reserve = max(_LINUX_RESERVE_BYTES, int(total * _LINUX_RESERVE_SHARE))
    what = "the control group's limit" if capacity.limited else "memory"
    return max(total - reserve, int(total * _LEAST_SHARE)), f"{what} less max(2 GiB, 10 %)"
