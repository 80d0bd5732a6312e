"""What llama-server computes on, in its own words: `llama-server --list-devices`.

Called by `agent.server.memory.host_memory` and for the facts of a host. On Apple silicon the size that it names is
Metal's recommendedMaxWorkingSetSize; elsewhere it is the memory of the GPU. Asked once per installed file.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from agent.contract import Accelerator

ASK_TIMEOUT_S = 30.0
"""The first use of a GPU's driver may take seconds."""

Kind = Literal["metal", "cuda", "rocm", "vulkan", "intel"]

_MIB = 1 << 20
# `  CUDA0: NVIDIA H200 (143771 MiB, 143158 MiB free)`, `  MTL0: Apple M2 Max (49152 MiB, 49151 MiB free)`
_LINE = re.compile(
    r"^\s*(?P<id>[A-Za-z]+)\d*: (?P<name>.+) \((?P<total>\d+) MiB(?:, \d+ MiB free)?\)\s*$", re.MULTILINE
)
_KINDS: dict[str, Kind] = {
    "MTL": "metal",
    "METAL": "metal",
    "CUDA": "cuda",
    "ROCM": "rocm",
    "HIP": "rocm",
    "VULKAN": "vulkan",
    "SYCL": "intel",
}


class Device(NamedTuple):
    """One device, as llama-server lists it."""

    kind: Kind
    name: str
    memory_bytes: int


def parse_devices(text: str) -> list[Device]:
    """Read the answer to `--list-devices`; lines of unknown back ends (BLAS, RPC) are left out."""
    found = []
    for match in _LINE.finditer(text):
        kind = _KINDS.get(match["id"].upper())
        if kind is not None:
            found.append(Device(kind, match["name"], int(match["total"]) * _MIB))
    return found


def accelerators(devices: Sequence[Device]) -> tuple[Accelerator, ...]:
    """Add devices of one kind and name together."""
    groups: dict[tuple[Kind, str], list[Device]] = {}
    for device in devices:
        groups.setdefault((device.kind, device.name), []).append(device)
    return tuple(
        Accelerator(type=kind, name=name, count=len(each), memory_bytes=sum(d.memory_bytes for d in each))
        for (kind, name), each in groups.items()
    )


_lock = threading.Lock()
_known: dict[tuple[str, int, int], tuple[Accelerator, ...]] = {}


def accelerators_of(llama_server: str | None) -> tuple[Accelerator, ...]:
    """Ask an installed llama-server what it computes on; nothing where there is none or it does not answer."""
    if llama_server is None:
        return ()
    try:
        stat = Path(llama_server).stat()
    except OSError:
        return ()
    identity = (llama_server, stat.st_mtime_ns, stat.st_size)
    with _lock:
        if identity not in _known:
            _known[identity] = accelerators(parse_devices(_ask(llama_server)))
        return _known[identity]


def _ask(llama_server: str) -> str:
    try:
        asked = subprocess.run(
            [llama_server, "--list-devices"], capture_output=True, timeout=ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (asked.stdout + asked.stderr).decode("utf-8", "replace")
