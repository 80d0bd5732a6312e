"""Reads from llama-server's log which hardware computes, because a GPU that is requested and not used is expensive.

Called by the controller for llama.cpp services with a GPU. Reads the beginning of one ready replica's log once for each
start, in a thread of `background`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from automation.serving.background import BackgroundProbes
from automation.serving.engine_start import EngineStart, is_healthy, start_of
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.json_types import Json
from kubeapi.pods import log_head
from program.desired.engines import LlamaCpp
from program.desired.facts import AccelerationFacts
from program.desired.service import DesiredService

HEAD_BYTES = 64 << 10
"""The lines are printed while the model is loaded, after many others for a model with many tensors and metadata
keys."""
RETRY_S = 300.0
THREADS = 2

_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_DEVICES = (
    # First what llama.cpp prints about the devices that it uses, then what each backend prints at its start.
    ("ROCm", re.compile(r"using device ROCm|\d ROCm devices|hipBLAS", re.IGNORECASE)),
    ("CUDA", re.compile(r"using device CUDA|\d CUDA devices|cuBLAS|\bCUDA\d* model buffer", re.IGNORECASE)),
    ("Vulkan", re.compile(r"using device Vulkan|ggml_vulkan: Found|\bVulkan\d* model buffer", re.IGNORECASE)),
    ("Metal", re.compile(r"using device (?:Metal|MTL)|ggml_metal_init", re.IGNORECASE)),
    ("OpenCL", re.compile(r"using device GPUOpenCL|ggml_opencl|CLBlast", re.IGNORECASE)),
    ("SYCL", re.compile(r"using device SYCL|\bSYCL\d* model buffer", re.IGNORECASE)),
)


class Acceleration:
    """Reads logs and remembers their results. Thread-safe."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._answers: BackgroundProbes[EngineStart, tuple[AccelerationFacts | None, bool]] = BackgroundProbes(
            "acceleration", again_s=lambda answer: math.inf if answer[1] else RETRY_S, threads=THREADS
        )

    def latest(
        self, desired: DesiredService, pods: tuple[Json, ...], *, changed: Callable[[], None]
    ) -> AccelerationFacts | None:
        """Return the result from the log of a ready replica; None while that is not known. Never blocks."""
        if not isinstance(desired.engine, LlamaCpp) or desired.gpu is None:
            return None
        starts = sorted(start for pod in pods if is_healthy(pod) and (start := start_of(pod)) is not None)
        if not starts:
            return None
        known = self._answers.latest(starts[0], lambda _before: self._read(starts[0]), who="", changed=changed)
        return known[0] if known is not None else None

    def idle(self) -> bool:
        return self._answers.idle()

    def close(self) -> None:
        self._answers.close()

    def _read(self, start: EngineStart) -> tuple[AccelerationFacts | None, bool]:
        """Read one log; the second value is whether the result is final."""
        try:
            head = log_head(self._client, start.namespace, start.pod, start.container, limit_bytes=HEAD_BYTES)
        except ApiError:
            return None, False
        return parse(head), True


def parse(text: str) -> AccelerationFacts | None:
    """Parse from llama-server's log how many layers were offloaded, and to which device; None without such lines.

    Pure.
    """
    found = _OFFLOADED.search(text)
    if found is None:
        return None
    offloaded, total = int(found[1]), int(found[2])
    device = "CPU" if offloaded == 0 else next((name for name, sign in _DEVICES if sign.search(text)), "GPU")
    return AccelerationFacts(device=device, layers_offloaded=offloaded, layers_total=total)


def reported(cr: Json) -> AccelerationFacts | None:
    """Read the result of an earlier loop from the status. It holds until the log shows another one."""
    told = (cr.get("status") or {}).get("acceleration") or {}
    if not all(key in told for key in ("device", "layersOffloaded", "layersTotal")):
        return None
    return AccelerationFacts(
        device=str(told["device"]),
        layers_offloaded=int(told["layersOffloaded"]),
        layers_total=int(told["layersTotal"]),
    )
