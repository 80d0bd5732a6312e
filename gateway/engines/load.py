"""Reads the load of an engine from its metrics in Prometheus' format. Pure; called by `scraper`."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

PATHS = ("/metrics", "/prometheus/metrics")
"""Where engines have their metrics; the second one is TensorRT-LLM's."""


class EngineLoad(NamedTuple):
    """The load of one engine at one moment."""

    running: float
    """Requests that it works on."""
    waiting: float
    """Requests in its queue."""
    kv_use: float | None = None
    """The used part of its key-value cache, 0 to 1; None if it does not tell."""


_RUNNING = (
    b"llamacpp:requests_processing",
    b"vllm:num_requests_running",
    b"sglang:num_running_reqs",
    b"tgi_batch_current_size",
    b"trtllm_num_requests_running",
)
_WAITING = (
    b"llamacpp:requests_deferred",
    b"vllm:num_requests_waiting",
    b"sglang:num_queue_reqs",
    b"tgi_queue_size",
    b"trtllm_num_requests_waiting",
)
_KV_USE = (
    b"vllm:kv_cache_usage_perc",
    b"vllm:gpu_cache_usage_perc",  # older versions of vLLM
    b"sglang:token_usage",
    b"trtllm_kv_cache_utilization",
)
_TRITON, _TRITON_KV = b"nv_trt_llm_request_metrics", b"nv_trt_llm_kv_cache_block_metrics"
_NAMES = b"|".join((*_RUNNING, *_WAITING, *_KV_USE, _TRITON, _TRITON_KV))
_SAMPLE = re.compile(
    rb"^(" + _NAMES + rb")(\{(?:[^\"}\n]|\"(?:[^\"\\\n]|\\.)*\")*\})?[ \t]+([0-9.eE+-]+|NaN|[+-]?Inf)", re.MULTILINE
)


def read_load(text: bytes) -> EngineLoad | None:
    """Return the load that metrics show; None if they do not show how many requests run and wait.

    An engine with several ranks or models has several series: requests are summed, of the caches the fullest counts.
    """
    running: list[float] = []
    waiting: list[float] = []
    used: list[float] = []
    for name, labels, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        if not math.isfinite(value) or value < 0:
            continue
        if name in _RUNNING or (name == _TRITON and b'request_type="scheduled"' in labels):
            running.append(value)
        elif name in _WAITING or (name == _TRITON and b'request_type="waiting"' in labels):
            waiting.append(value)
        elif name in _KV_USE or (name == _TRITON_KV and b'kv_cache_block_type="fraction"' in labels):
            used.append(value)
    if not running or not waiting:
        return None
    return EngineLoad(sum(running), sum(waiting), max(used) if used else None)
