"""The accelerators of this host, as llama-server and the vendors' tools list them.

Called by `agent.server.main` and `agent.server.memory.machine`. The devices of llama-server come first, because it can
use them. The vendors' tools add devices for other engines, and work before llama-server is installed. A tool that is
missing, fails or hangs adds nothing. On Apple silicon llama-server prints Metal's recommendedMaxWorkingSetSize,
elsewhere the memory of the GPU. It is called once per installed file.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent.contract import Accelerator

MIB = 1 << 20
ASK_TIMEOUT_S = 20.0
"""The first use of a GPU's driver may take seconds."""
_DIRECTORIES = ("/opt/rocm/bin", "/usr/local/bin", "/usr/bin", "/usr/sbin", "/sbin")
"""Searched in addition to PATH, because launchd and systemd omit some of them."""


def detect() -> tuple[Accelerator, ...]:
    """Detect the devices with the vendors' tools. May take some seconds."""
    if platform.system() == "Darwin":
        return _metal() if platform.machine() == "arm64" else ()
    found = (*_nvidia(), *_rocm())
    # Vulkan lists the same devices, so it counts only if no other tool finds one.
    return found or _vulkan()


def merged(told: Iterable[Accelerator], detected: Iterable[Accelerator]) -> tuple[Accelerator, ...]:
    """Return the devices of an engine, plus the detected devices of other types."""
    first = tuple(told)
    known = {each.type for each in first}
    return (*first, *(each for each in detected if each.type not in known))


def _metal() -> tuple[Accelerator, ...]:
    name = _output_of("sysctl", "-n", "machdep.cpu.brand_string").strip()
    # The key is 0 by default, and absent before macOS 14. Then the limit is the system's, which only Metal reports.
    limit = _output_of("sysctl", "-n", "iogpu.wired_limit_mb").strip()
    memory = int(limit) * MIB if limit.isdecimal() and int(limit) > 0 else None
    return (Accelerator(type="metal", name=name or "Apple GPU", memory_bytes=memory),)


def _nvidia() -> tuple[Accelerator, ...]:
    text = _output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    return tuple(Accelerator(type="cuda", **group) for group in _grouped(parse_nvidia(text)))


def parse_nvidia(text: str) -> list[tuple[str, int | None]]:
    """Parse name and bytes of each GPU from nvidia-smi's CSV, which shows `[N/A]` for unified memory."""
    found = []
    for line in text.splitlines():
        name, comma, amount = line.rpartition(",")
        if comma and name.strip() and "fail" not in line.lower():
            amount = amount.strip()
            found.append((name.strip(), int(amount) * MIB if amount.isdecimal() else None))
    return found


def _rocm() -> tuple[Accelerator, ...]:
    text = _output_of("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    return tuple(Accelerator(type="rocm", **group) for group in _grouped(parse_rocm(text)))


def parse_rocm(text: str) -> list[tuple[str, int | None]]:
    """Parse name and bytes of each GPU from rocm-smi's JSON, an object of cards that warnings may precede."""
    start = text.find("{")
    try:
        cards = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return []
    found = []
    for key in sorted(cards):
        card = cards[key]
        if not key.startswith("card") or not isinstance(card, dict):
            continue
        fields = {str(name).lower(): str(value) for name, value in card.items()}
        name = fields.get("card series") or fields.get("card model") or "AMD GPU"
        amount = fields.get("vram total memory (b)", "")
        found.append((name, int(amount) if amount.isdecimal() else None))
    return found


def _vulkan() -> tuple[Accelerator, ...]:
    text = _output_of("vulkaninfo", "--summary")
    return tuple(Accelerator(type="vulkan", **group) for group in _grouped(parse_vulkan(text)))


def parse_vulkan(text: str) -> list[tuple[str, int | None]]:
    """Parse the name of each GPU from vulkaninfo's summary, without the software renderer."""
    found: list[tuple[str, int | None]] = []
    for part in re.split(r"^GPU\d+:", text, flags=re.MULTILINE)[1:]:
        kind = re.search(r"deviceType\s*=\s*(\S+)", part)
        name = re.search(r"deviceName\s*=\s*(.+)", part)
        if kind and name and kind[1] in ("PHYSICAL_DEVICE_TYPE_DISCRETE_GPU", "PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU"):
            found.append((name[1].strip(), None))
    return found


def _grouped(devices: list[tuple[str, int | None]]) -> list[dict[str, Any]]:
    """Group devices of the same name."""
    groups = []
    for name, count in Counter(name for name, _ in devices).items():
        amounts = [amount for each, amount in devices if each == name]
        known = [amount for amount in amounts if amount is not None]
        groups.append({"name": name, "count": count, "memory_bytes": sum(known) if len(known) == count else None})
    return groups


def _output_of(program: str, *arguments: str) -> str:
    path = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_DIRECTORIES]))
    if path is None:
        return ""
    try:
        asked = subprocess.run([path, *arguments], capture_output=True, timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.decode("utf-8", "replace") if asked.returncode == 0 else ""


LIST_TIMEOUT_S = 30.0
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
    """Parse the output of `--list-devices`, without unknown back ends (BLAS, RPC)."""
    found = []
    for match in _LINE.finditer(text):
        kind = _KINDS.get(match["id"].upper())
        if kind is not None:
            found.append(Device(kind, match["name"], int(match["total"]) * _MIB))
    return found


def accelerators(devices: Sequence[Device]) -> tuple[Accelerator, ...]:
    """Group devices of the same kind and name."""
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
    """Return the devices of an installed llama-server. Empty if there is none or it does not answer."""
    if llama_server is None:
        return ()
    try:
        stat = Path(llama_server).stat()
    except OSError:
        return ()
    identity = (llama_server, stat.st_mtime_ns, stat.st_size)
    with _lock:
        if identity not in _known:
            _known[identity] = accelerators(parse_devices(_list_devices(llama_server)))
        return _known[identity]


def _list_devices(llama_server: str) -> str:
    try:
        asked = subprocess.run(
            [llama_server, "--list-devices"], capture_output=True, timeout=LIST_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (asked.stdout + asked.stderr).decode("utf-8", "replace")
