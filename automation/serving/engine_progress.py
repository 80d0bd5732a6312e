"""Reads from an engine's metrics whether it computes. Called by `completion_check` and `stall_watch`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from automation.serving.engine_start import EngineStart
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.pods import request_pod
from program.runtimes.base import ProgressMetrics

METRICS_TIMEOUT_S = 5.0
METRICS_PATH = "/metrics"

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Reading:
    """One reading of an engine's metrics; None for a value that is missing, or when they did not answer."""

    running: float | None = None
    tokens: float | None = None
    absent: bool = False
    """The engine answered that it has no metrics."""


_NO_METRICS = frozenset({401, 403, 404, 405, 501})


def read_progress(client: KubeClient, start: EngineStart, metrics: ProgressMetrics) -> Reading:
    """Read an engine's metrics now; an empty reading when they do not answer."""
    try:
        answer = request_pod(
            client,
            start.namespace,
            start.pod,
            start.port,
            "GET",
            METRICS_PATH,
            timeout_s=METRICS_TIMEOUT_S,
            tls=start.tls,
        )
    except ApiError:
        return Reading()
    if answer.status in _NO_METRICS:
        return Reading(absent=True)
    if answer.status != 200 or not answer.whole:
        return Reading()
    return read_metrics(answer.body.decode("utf-8", "replace"), metrics)


def has_moved(before: Reading, after: Reading) -> bool:
    """Return whether tokens were made between two readings."""
    return before.tokens is not None and after.tokens is not None and after.tokens != before.tokens


def read_metrics(text: str, metrics: ProgressMetrics) -> Reading:
    """Parse the two metrics that show progress; both or neither."""
    found = samples(text, (metrics.running_requests, metrics.generated_tokens))
    running, tokens = found.get(metrics.running_requests), found.get(metrics.generated_tokens)
    return Reading(running, tokens) if running is not None and tokens is not None else Reading()


def samples(text: str, names: tuple[str, ...]) -> dict[str, float]:
    """Add up the samples of each of the named metrics in Prometheus' text, over all their labels."""
    return {name: value for name, value in all_samples(text).items() if name in names}


def all_samples(text: str) -> dict[str, float]:
    """Add up the samples of each metric in Prometheus' text, over all their labels."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            sums[name] = sums.get(name, 0.0) + number
    return sums
