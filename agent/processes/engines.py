"""Defaults of each engine that a plan may omit. Without I/O, except for `performance_cores`.

Called by `agent.server` (`processes.drain`, `processes.launching`, the metrics) and `agent.client.ssh`.
"""

from __future__ import annotations

import functools
import subprocess
import sys

from agent.contract import IdleQuestion, ProcessPlan

SHARED = ("ollama", "omlx")
"""Runtimes with one daemon that serves the models of several services."""

_IDLE = {
    "llamacpp": IdleQuestion(path="/slots", kind="slots"),
    "vllm": IdleQuestion(path="/metrics", kind="gauge", gauge="vllm:num_requests_running"),
}
_IDLE_OTHERWISE = {
    "llamacpp": IdleQuestion(path="/metrics", kind="gauge", gauge="llamacpp:requests_processing"),
}
"""Used if the first question gets no answer: the `/slots` path of llama-server can be disabled."""
_METRICS = {"llamacpp": "/metrics", "vllm": "/metrics"}


def idle_questions(plan: ProcessPlan) -> tuple[IdleQuestion, ...]:
    """Return the questions that show whether a process works on a request, in the order of preference."""
    if plan.daemon_model is not None:
        return ()  # a shared daemon is also busy with requests for other models
    if plan.idle is not None:
        return (plan.idle,)
    known = (_IDLE.get(plan.runtime), _IDLE_OTHERWISE.get(plan.runtime))
    return tuple(question for question in known if question is not None)


def metrics_path(plan: ProcessPlan) -> str | None:
    """Return the path of the engine's Prometheus metrics, or None if it has none."""
    return plan.metrics_path or _METRICS.get(plan.runtime)


def with_threads(arguments: list[str], cores: int | None) -> list[str]:
    """Add `--threads` so that llama-server uses only the performance cores of a Mac, unless the arguments set it."""
    chosen = any(each in ("-t", "--threads") or each.startswith("--threads=") for each in arguments)
    return arguments if cores is None or chosen else [*arguments, "--threads", str(cores)]


@functools.cache
def performance_cores() -> int | None:
    """Return the number of performance cores of an Apple processor, or None on other machines."""
    if sys.platform != "darwin":
        return None
    try:
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"], capture_output=True, timeout=5.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = asked.stdout.decode("ascii", "replace").strip()
    return int(text) if text.isdigit() and int(text) > 0 else None
